"""A head asks before a sequence departs, takes along what it is told, settles what came true."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from molink_scheduler.batch import DECODE, DRAFTS_MAX, PREFILL, Span
from molink_scheduler.drafting.acceptance import DraftKind
from molink_scheduler.drafting.asks import AskDrafts, Draft, DraftAsk, Drafted
from molink_scheduler.drafting.proposals import COPY
from molink_scheduler.events import (
    BatchReturned,
    Refuse,
    RequestCancelled,
    RequestSubmitted,
    RunBatch,
    SampledToken,
    SendRelease,
)
from molink_scheduler.head.drafts import DRAFTED_ROWS_MAX
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import HeadSettings, RingTerms
from molink_scheduler.head.snapshots import Snapshots
from molink_scheduler.kv.snapshots import SnapshotDirectory
from molink_scheduler.request import ModelLimits, Request, SamplingParams
from molink_scheduler.token_ids import token_bytes
from tests.scheduler.fake_stage import NothingGrows

LIMITS = ModelLimits(sequence_tokens_max=4096, vocabulary_size=1000)


@dataclass
class SomeWidths:
    """Widths that a test sets."""

    drafts: int = 4
    is_probing: bool = False
    seen: list[tuple[int, int, int]] = field(default_factory=list)
    kinds: list[DraftKind] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    rounds: list[tuple[int, float]] = field(default_factory=list)

    def width(self, request_id: int, kind: DraftKind) -> int:
        self.kinds.append(kind)
        return self.drafts

    def probes(self, request_id: int, kind: DraftKind) -> bool:
        return self.is_probing

    def judged(self, request_id: int, kind: DraftKind, tried: int, right: int) -> None:
        self.kinds.append(kind)
        self.seen.append((request_id, tried, right))

    def drafted(self, step_s: float) -> None:
        self.steps_s.append(step_s)

    def round_completed(self, tracker, count, prefill_share) -> None:
        self.rounds.append((count, prefill_share))

    def forget(self, request_id: int) -> None:
        self.forgotten.append(request_id)


@dataclass
class Head:
    """A head, and the tail that draws what a test says."""

    kv_tokens: int = 1024
    width: int = 4
    options: dict = field(default_factory=dict)

    def __post_init__(self):
        terms = RingTerms(
            self.kv_tokens, 4, draft_width_max=DRAFTS_MAX, draft_width_fixed=True, **self.options
        )
        self.core = HeadScheduler(HeadSettings(terms, limits=LIMITS))
        self.widths = self.core.decode.drafts.widths = SomeWidths(self.width)
        self.core.prompts.forecast = NothingGrows()

    def told(self, event):
        return [*self.core.handle(event, 0.0)]

    def run(self) -> RunBatch | None:
        return self.core.next_batch(0.0, 0.0)[1]

    def submit(self, request_id=1, prompt=3, max_tokens=40, first=1, predicted=(), **sampling):
        """Submit a request and have its prompt computed; what the head asks then."""
        tokens = token_bytes(range(first, first + prompt))
        params = SamplingParams(max_tokens, **sampling)
        request = Request(request_id, tokens, params, prediction=predicted)
        self.told(RequestSubmitted(request))
        while not (run := self.run()).batch.spans[-1].samples:
            self.back(run)
        return self.back(run, (request_id, 100))

    def back(self, run: RunBatch, *tokens, finished=False):
        """A batch is back with tokens (request, id), of which the last may end its request."""
        last = len(tokens) - 1
        sampled = [SampledToken(*one, finished and at == last) for at, one in enumerate(tokens)]
        batch = run.batch
        event = BatchReturned(batch.batch_class, batch.micro_batch, batch.spans, tuple(sampled))
        return self.told(event)

    def draft(self, position: int, *token_ids: int, request_id=1):
        return self.told(Drafted((Draft(request_id, position, token_ids, COPY),)))

    @property
    def sequence(self):
        return self.core._sequences[1]


def asked(orders) -> list[DraftAsk]:
    return [ask for one in orders if isinstance(one, AskDrafts) for ask in one.asks]


def test_without_a_drafter_nobody_is_asked_about():
    head = HeadScheduler(HeadSettings(RingTerms(1024, 1)))
    head.handle(RequestSubmitted(Request(1, token_bytes((1, 2)), SamplingParams(9))), 0.0)
    batch = head.next_batch(0.0, 0.0)[1].batch
    event = BatchReturned(PREFILL, -1, batch.spans, (SampledToken(1, 7, False),))
    assert [*head.handle(event, 0.0)] == []
    assert head.next_batch(0.0, 0.0)[1].batch.spans == (Span(1, 2, 3, samples=True),)


def test_a_round_from_the_question_to_what_came_true():
    head = Head()
    (ask,) = asked(head.submit())
    assert (ask.request_id, ask.start, ask.tokens, ask.width) == (1, 0, (1, 2, 3, 100), 4)
    assert head.run() is None, "it departs once it is answered"
    assert head.draft(4, 101, 102, 103) == []
    run = head.run()
    assert run.batch.spans == (Span(1, 3, 7, True, (101, 102, 103)),)
    assert run.token_ids == (100, 101, 102, 103)
    (ask,) = asked(head.back(run, (1, 101), (1, 102), (1, 200)))
    assert (ask.start, ask.tokens, ask.position) == (4, (101, 102, 200), 7)
    sequence = head.sequence
    assert sequence.planned_tokens == sequence.returned_tokens == len(sequence.known) - 1 == 6
    assert head.widths.seen == [(1, 3, 2)]
    head.draft(7)
    assert head.run().batch.spans == (Span(1, 6, 7, True),)


@pytest.mark.parametrize("right", [0, 1, 2])
def test_what_is_behind_the_end_of_an_answer_is_not_computed(right):
    head = Head(options={"prefix_cache": True})
    head.submit(prompt=13)
    head.draft(14, 101, 102, 103)
    run = head.run()
    request = head.sequence
    tokens = [(1, 101), (1, 102), (1, 103)][: right + 1]
    orders = head.back(run, *tokens, finished=True)
    assert [type(one) for one in orders].count(SendRelease) == 1 and not asked(orders)
    assert request.returned_tokens == len(request.known) - 1 == 14 + right
    cached = head.core.book.cache.tree.blocks
    assert cached == request.returned_tokens // 16, "blocks are cached that hold drafts"


@pytest.mark.parametrize(
    "tokens",
    [
        [(1, 101), (1, 102), (1, 103), (1, 104), (1, 105)],
        [(1, 101), (1, 999), (1, 103)],
        [(1, 100), (1, 101)],
        [(1, 101), (1, 1000)],
        [(2, 101)],
        [],
    ],
)
def test_tokens_that_do_not_follow_the_drafts_are_refused(tokens):
    head = Head()
    head.submit()
    head.draft(4, 101, 102, 103)
    assert [type(one) for one in head.back(head.run(), *tokens)] == [Refuse]
    assert head.sequence.in_flight


def test_no_token_comes_behind_an_end_and_none_beyond_the_most():
    head = Head()
    head.submit()
    head.draft(4, 101, 102)
    batch = head.run().batch
    ended = SampledToken(1, 101, finished=True)
    for tokens in (
        (ended, SampledToken(1, 102, False)),
        (SampledToken(1, 0, True, refused=True), SampledToken(1, 102, False)),
    ):
        event = BatchReturned(DECODE, batch.micro_batch, batch.spans, tokens)
        assert [type(one) for one in head.told(event)] == [Refuse]


@pytest.mark.parametrize(("max_tokens", "width"), [(2, 0), (3, 1), (5, 3), (40, 4)])
def test_no_draft_reaches_beyond_what_the_request_may(max_tokens, width):
    """One token is there, and the token behind the last draft is drawn as well."""
    asks = asked(Head().submit(max_tokens=max_tokens))
    assert [ask.width for ask in asks] == [width] * (width > 0)


def test_a_round_that_ends_by_length_has_all_its_tokens():
    head = Head()
    head.submit(max_tokens=3)
    head.draft(4, 101)
    run = head.run()
    assert not head.core.kv.blocks_missing(1, 5)
    orders = head.back(run, (1, 101), (1, 102), finished=True)
    assert any(isinstance(one, SendRelease) for one in orders)


@pytest.mark.parametrize(
    ("position", "ids", "refused"),
    [(4, (1, 2, 3, 4, 5), True), (4, (1, 1000), True), (4, (-1,), True), (3, (7,) * 9, False)],
)
def test_what_is_no_answer_is_void_and_the_sequence_goes(position, ids, refused):
    head = Head()
    head.submit()
    orders = head.draft(position, *ids)
    assert [type(one) for one in orders] == [Refuse] * refused
    if refused:
        assert "request 1" in orders[0].reason
    assert head.run().batch.spans == (Span(1, 3, 4, True),)
    assert head.draft(4, 7) == [], "it was answered before"


def test_answers_that_nobody_awaits_are_ignored():
    head = Head()
    assert head.draft(4, 7) == []
    head.submit()
    released = head.told(RequestCancelled(1))
    assert [type(one) for one in released] == [SendRelease] and head.widths.forgotten == [1]
    assert head.draft(4, 7) == [] and head.run() is None


def test_after_a_preemption_drafters_are_told_anew():
    head = Head()
    head.submit()
    head.sequence.preempting = True
    head.core._settle(head.sequence)
    assert head.draft(4, 7) == [] and head.sequence.planned_tokens == 0
    run = head.run()
    assert run.batch.batch_class is PREFILL
    (ask,) = asked(head.back(run, (1, 101)))
    assert (ask.start, ask.tokens) == (0, (1, 2, 3, 100, 101))


def test_a_prediction_is_told_with_the_first_tokens_and_not_again():
    head = Head()
    (first,) = asked(head.submit(predicted=(7, 8)))
    head.draft(4, 101)
    (second,) = asked(head.back(head.run(), (1, 101), (1, 102)))
    assert (first.start, first.prediction) == (0, (7, 8))
    assert (second.start, second.prediction) == (4, ())
    head.sequence.preempting = True
    head.core._settle(head.sequence)
    (anew,) = asked(head.back(head.run(), (1, 103)))
    assert (anew.start, anew.prediction) == (0, (7, 8))


def test_a_grammar_whose_token_is_late_voids_the_drafts():
    head = Head()
    head.submit(grammar="root ::= [0-9]+")
    head.draft(4, 101, 102)
    assert head.back(head.run()) == []
    sequence = head.sequence
    assert sequence.token_is_late and not sequence.in_flight and head.run() is None
    late = BatchReturned(PREFILL, -1, (), (SampledToken(1, 300, False),))
    (ask,) = asked(head.told(late))
    assert ask.position == 5
    head.draft(5, 9)
    assert head.run().batch.spans == (Span(1, 4, 6, True, (9,), wants=4),)


@pytest.mark.parametrize("right", [(), (101,)])
def test_rows_that_were_refused_are_computed_anew_without_drafts(right):
    """It may have been a draft's that went beyond its format; if the request's own do it again, it
    ends."""
    head = Head()
    head.submit()
    head.draft(4, 101, 102)

    def refused(run, *before):
        tokens = [SampledToken(1, one, False) for one in before]
        tokens.append(SampledToken(1, 0, finished=True, refused=True))
        batch = run.batch
        back = BatchReturned(batch.batch_class, batch.micro_batch, batch.spans, tuple(tokens))
        return [type(one) for one in head.told(back)]

    assert refused(head.run(), *right) == [SendRelease]
    run, known = head.run(), 4 + len(right)
    assert run.batch.spans == (Span(1, 0, known, True),)
    assert run.batch.admissions[0].output == (100, *right)
    assert head.back(run, (1, 300)) == [], "nobody is asked about it any more"
    run = head.run()
    assert run.batch.spans == (Span(1, known, known + 1, True),)
    assert refused(run) == [SendRelease]
    assert head.run() is None and head.core.running_count == 0


def test_drafts_take_free_blocks_only_and_leave_one_to_each_other():
    """Sixteen drafts need one block more; three others may need one each for their next token."""
    for free, drafts in ((4, 16), (3, 4)):
        head = Head(kv_tokens=16 * (4 + free), width=16)
        for one in (2, 3, 4, 1):
            head.submit(one, prompt=11)
        assert head.core.kv.blocks_free == free
        head.draft(12, *range(16), request_id=1)
        (span,) = head.run().batch.spans
        assert len(span.drafts) == drafts, "its own block has room for four more"
        assert head.core.kv.blocks_free == free - (drafts > 4)


def test_cached_blocks_do_not_make_room_for_drafts():
    head = Head(kv_tokens=16 * 5, width=16, options={"prefix_cache": True})
    head.submit(9, prompt=49, max_tokens=9)
    head.draft(50, request_id=9)
    head.back(head.run(), (9, 5), finished=True)
    head.submit(1, prompt=27, first=500)
    cached = head.core.book.cache.tree.blocks
    assert cached == 4 and head.core.kv.blocks_free == 0
    head.draft(28, *range(16))
    (span,) = head.run().batch.spans
    assert len(span.drafts) == 4, "its own block has room for these"
    assert head.core.book.cache.tree.blocks == cached


def test_a_micro_batch_with_drafts_has_bounded_rows():
    head = Head(kv_tokens=16_384, width=16)
    for one in range(1, 21):
        head.submit(one)
    for one in range(1, 21):
        head.draft(4, *range(16), request_id=one)
    head.core.micro_batches.count = 1
    batch = head.run().batch
    assert len(batch.spans) == 20 and batch.tokens == DRAFTED_ROWS_MAX
    assert Counter(len(span.drafts) for span in batch.spans) == {16: 6, 12: 1, 0: 13}


@pytest.mark.parametrize(("known", "most"), [(1, 62), (62, 1), (63, 0), (64, 63), (100, 27)])
def test_where_states_are_kept_a_span_ends(known, most):
    """Behind `most` drafts, all right, and one more token, as much is known as is kept next."""
    assert Snapshots(SnapshotDirectory(2)).drafts_most(known) == most
    assert (known + most + 1) % 64 == 0


def test_widths_are_held_while_micro_batches_are_compared():
    head = Head()
    head.submit()
    head.widths.drafts = 2
    drafts = head.core.decode.drafts
    for at, (hold, width) in enumerate(((True, 4), (False, 2), (True, 2))):
        head.draft(4 + at)
        head.sequence.known.append(9)
        drafts.ask(head.sequence, hold=hold)
        assert asked(drafts.take_asks()[0])[0].width == width


@pytest.mark.parametrize("width", [-1, DRAFTS_MAX + 1])
def test_a_width_that_cannot_be_is_refused(width):
    with pytest.raises(ValueError, match="draft_width_max"):
        RingTerms(1024, draft_width_max=width)
