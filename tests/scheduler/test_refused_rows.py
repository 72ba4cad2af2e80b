"""Rows that a stage refuses, and tokens that are late: each costs its own request alone."""

from dataclasses import dataclass, field
from random import Random

import pytest

from molink_scheduler.batch import DECODE, PREFILL, Batch, Refusal, RowFault, Span
from molink_scheduler.events import (
    BatchArrived,
    BatchReturned,
    Refuse,
    RequestCancelled,
    RequestSubmitted,
    SampledToken,
    SendCacheChange,
    SendRelease,
    SendRows,
    SendTokens,
)
from molink_scheduler.head.objections import tokens_by_request
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import HeadSettings, RingTerms
from molink_scheduler.kv.changes import KeepBlocks
from molink_scheduler.request import ModelLimits, Request, SamplingParams
from molink_scheduler.stage.queue import cut_rows, join_batches
from molink_scheduler.timing.round_tracker import StageStamp
from molink_scheduler.token_ids import token_bytes
from tests.scheduler.fake_ring import FakeRing
from tests.scheduler.seeded_drafter import SeededDrafter

GRAMMAR = "start: /a*/"


@dataclass
class DamagedRing(FakeRing):
    """Some requests overflow at a stage and a position; tokens of those with a grammar may be
    late."""

    spoilt: dict[int, tuple[int, int]] = field(default_factory=dict)
    misled: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The same of requests of which only wrong drafts overflow there."""
    redone: set[int] = field(default_factory=set)
    """Those that were begun anew without drafts."""
    refused: set[int] = field(default_factory=set)
    late_count: int = 0

    def computed(self, index, stage, run, step_s):
        match stage.core.computed(run, step_s, 0.0, self.now):
            case SendRows(batch):
                self.send(index, batch.batch_class, BatchArrived(self.checked(index, batch)))
            case SendTokens(batch):
                at = max(self.now + self.random.uniform(0.01, 0.2), self.tail_link_free_at + 1e-6)
                self.tail_link_free_at = at
                event = self.sample(self.checked(index, batch))
                self.push(at, lambda: self.returned(event))
        stage.core.finished(run, step_s, self.now)

    def checked(self, index: int, batch: Batch) -> Batch:
        """A row that attends to a spoilt one is spoilt, and so is one beside it in a step."""
        bad = [
            Refusal(span.request_id, RowFault.OVERFLOWN)
            for span in batch.spans
            if self.is_spoilt(index, span) or self.is_misled(index, span)
        ]
        return batch.refusing(bad) if bad else batch

    def is_spoilt(self, index: int, span: Span) -> bool:
        stage, position = self.spoilt.get(span.request_id, (-1, 0))
        return stage == index and span.end > position

    def is_misled(self, index: int, span: Span) -> bool:
        stage, position = self.misled.get(span.request_id, (-1, 0))
        if stage != index or not span.known_end <= position < span.end:
            return False
        draft = span.drafts[position - span.known_end]
        return draft != self.text(span.request_id)[position]

    def sample(self, batch):
        event = super().sample(batch)
        refused = {one.request_id for one in batch.refused}
        own = tokens_by_request(one for one in event.sampled if one.request_id not in refused)
        late = [
            request_id
            for request_id in own
            if self.requests[request_id].sampling.grammar and self.random.random() < 0.5
        ]
        for token in (own.pop(request_id)[0] for request_id in late):  # No draft is verified.
            self.late_count += 1
            at = self.tail_link_free_at = self.tail_link_free_at + self.random.uniform(0.01, 2)
            after = BatchReturned(PREFILL, -1, (), (token,))
            self.push(at, lambda after=after: self.returned(after))
        kept = [token for tokens in own.values() for token in tokens]
        gone = [SampledToken(one, 0, finished=True, refused=True) for one in refused]
        return BatchReturned(
            event.batch_class, event.micro_batch, event.spans, (*kept, *gone), event.stamps
        )

    def returned(self, event):
        """The coordinator hears of a refusal as the head does, and cancels; but where there were
        drafts, which may be what overflowed, it hears nothing."""
        drafted = {span.request_id for span in event.spans if span.drafts}
        refused = {one.request_id for one in event.sampled if one.refused}
        gone = refused - drafted
        self.redone |= refused & drafted
        if event.batch_class is PREFILL:
            self.prefill_in_flight -= sum(span.tokens for span in event.spans)
        for token in event.sampled:
            if token.refused or token.request_id in self.refused:
                continue
            self.answers[token.request_id].append(token.token_id)
            if token.finished:
                self.ended.append(token.request_id)
        self.ended += [one for one in gone if one not in self.refused]
        self.refused |= gone
        self.receive(0, event)
        for request_id in sorted(gone):
            self.cancel_at(self.now + self.random.uniform(0.0, 0.3), request_id)


def some_request(random: Random, request_id: int) -> Request:
    prompt = token_bytes([1 + random.randrange(50) for _ in range(random.randrange(1, 60))])
    grammar = GRAMMAR if random.random() < 0.4 else ""
    sampling = SamplingParams(max_tokens=random.randrange(1, 25), grammar=grammar)
    return Request(request_id, prompt, sampling)


@pytest.mark.parametrize("seed", range(60))
def test_a_spoilt_request_ends_and_all_others_are_answered_exactly(seed):
    random = Random(seed)
    ring = DamagedRing(
        seed,
        stage_count=random.randrange(1, 5),
        kv_tokens=random.choice([144, 256, 4096]),
        micro_batch_count=random.randrange(1, 4),
        prefix_cache=random.random() < 0.5,
    )
    for request_id in range(1, 11):
        request = some_request(random, request_id)
        if random.random() < 0.3:
            at = random.randrange(request.tokens_max - 1)
            ring.spoilt[request_id] = random.randrange(ring.stage_count), at
        ring.submit_at(random.uniform(0, 2), request)
    ring.run()
    assert ring.refused == set(ring.spoilt)
    for request_id, answer in ring.answers.items():
        expected = ring.expected_answer(request_id)
        assert answer == (expected[: len(answer)] if request_id in ring.refused else expected)
    ring.assert_nothing_left()


@pytest.mark.parametrize("seed", range(60))
def test_a_draft_that_overflows_costs_its_request_no_token(seed):
    """A wrong one; where a right one does, the request ends as without drafts, where it would
    have."""
    random = Random(seed)
    ring = DamagedRing(
        seed,
        stage_count=random.randrange(1, 5),
        kv_tokens=random.choice([144, 256, 4096]),
        micro_batch_count=random.randrange(1, 4),
        prefix_cache=random.random() < 0.5,
        drafter=SeededDrafter(random, random.choice([1, 4, 16]), "depth", 0.1),
    )
    for request_id in range(1, 11):
        request = some_request(random, request_id)
        last = max(1, request.tokens_max - 1)
        where = random.randrange(ring.stage_count), random.randrange(last)
        if random.random() < 0.7:
            (ring.spoilt if random.random() < 0.4 else ring.misled)[request_id] = where
        ring.submit_at(random.uniform(0, 2), request)
    ring.run()
    assert ring.refused == set(ring.spoilt)
    for request_id, answer in ring.answers.items():
        expected = ring.expected_answer(request_id)
        if request_id in ring.refused:
            first = ring.spoilt[request_id][1] - ring.requests[request_id].prompt_tokens
            expected = expected[: max(0, first + 1)]
        assert answer == expected
    ring.assert_nothing_left()


def test_some_drafts_overflowed():
    ring = DamagedRing(5, 3, 4096, drafter=SeededDrafter(Random(1), 4, "wrong"))
    for request_id in range(1, 5):
        ring.misled[request_id] = request_id % 3, 9
        sampling = SamplingParams(max_tokens=20)
        ring.submit_at(0.0, Request(request_id, token_bytes([request_id]), sampling))
    ring.run()
    assert ring.redone == {1, 2, 3, 4} and not ring.refused
    assert ring.answers[4] == ring.expected_answer(4)
    ring.assert_nothing_left()


def test_some_tokens_were_late():
    ring = DamagedRing(3, 2, 4096)
    for request_id in range(1, 5):
        sampling = SamplingParams(max_tokens=20, grammar=GRAMMAR)
        ring.submit_at(0.0, Request(request_id, token_bytes([request_id]), sampling))
    ring.run()
    assert ring.late_count > 10 and ring.answers[4] == ring.expected_answer(4)
    ring.assert_nothing_left()


# -- the head by itself ---------------------------------------------------------------------------


def head_with(*requests: Request, **terms) -> HeadScheduler:
    ring = RingTerms(kv_tokens_capacity=512, **{"micro_batch_count": 1, **terms})
    head = HeadScheduler(HeadSettings(ring, limits=ModelLimits(400, 100)))
    for one in requests:
        assert head.handle(RequestSubmitted(one), 0.0) == []
    return head


def request(request_id: int, tokens: int = 3, grammar: str = "") -> Request:
    sampling = SamplingParams(max_tokens=4, grammar=grammar)
    return Request(request_id, token_bytes([7] * tokens), sampling)


def next_run(head: HeadScheduler):
    return head.next_batch(0.0, 0.0)[1]


def returned(run, *tokens: SampledToken) -> BatchReturned:
    batch = run.batch
    return BatchReturned(batch.batch_class, batch.micro_batch, batch.spans, tokens)


def refusal(request_id: int) -> SampledToken:
    return SampledToken(request_id, 0, finished=True, refused=True)


def test_a_prompt_that_is_refused_halfway_ends_behind_what_is_under_way_of_it():
    """And nothing of it is cached: what followed has been computed with zeros."""
    head = head_with(request(1, tokens=96), span_tokens=32, prefix_cache=True)
    first, second, third = next_run(head), next_run(head), next_run(head)
    orders = head.handle(returned(first), 1.0)
    assert [type(one) for one in orders] == [SendCacheChange], "the rows before are as good as any"
    assert head.handle(returned(second, refusal(1)), 2.0) == [], "one piece is still under way"
    assert next_run(head) is None
    orders = head.handle(returned(third, refusal(1)), 3.0)
    assert [type(one) for one in orders] == [SendRelease]
    assert not any(
        isinstance(one.change, KeepBlocks) for one in orders if isinstance(one, SendCacheChange)
    )
    assert head.running_count == 0 and not head.kv.holders()
    assert head.handle(RequestCancelled(1), 4.0) == [], "the coordinator has heard of it too"


def test_a_micro_batch_goes_on_without_the_request_that_is_refused():
    head = head_with(request(1), request(2))
    run = next_run(head)
    head.handle(returned(run, SampledToken(1, 8, False), SampledToken(2, 8, False)), 0.0)
    run = next_run(head)
    assert run.batch.batch_class is DECODE and len(run.batch.spans) == 2
    orders = head.handle(returned(run, refusal(1), SampledToken(2, 9, False)), 0.0)
    assert [type(one) for one in orders] == [SendRelease]
    (span,) = next_run(head).batch.spans
    assert span.request_id == 2


def test_only_a_grammar_excuses_a_token_that_lacks():
    head = head_with(request(1), request(2, grammar=GRAMMAR), micro_batch_count=2)
    run = next_run(head)
    assert isinstance(head.handle(returned(run, SampledToken(2, 8, False)), 0.0)[0], Refuse)
    assert head.handle(returned(run, SampledToken(1, 8, False)), 0.0) == []
    (span,) = next_run(head).batch.spans
    assert span.request_id == 1, "the other one sits this round out"
    late = BatchReturned(PREFILL, -1, (), (SampledToken(2, 8, False),))
    assert head.handle(late, 0.0) == []
    (span,) = next_run(head).batch.spans
    assert span == Span(2, 3, 4, samples=True)


def test_a_late_token_is_checked_and_those_that_nobody_awaits_are_passed_over():
    head = head_with(request(1, grammar=GRAMMAR))
    run = next_run(head)

    def late(*tokens: SampledToken):
        return head.handle(BatchReturned(PREFILL, -1, (), tokens), 0.0)

    assert late(SampledToken(1, 8, False), SampledToken(9, 8, False)) == [], "too soon"
    head.handle(returned(run), 0.0)
    assert isinstance(late(SampledToken(1, 100, False))[0], Refuse)
    assert late(SampledToken(1, 8, False)) == []
    assert late(SampledToken(1, 8, False)) == [], "once is enough"
    assert next_run(head).token_ids == (8,)


def test_who_goes_away_while_a_token_is_late_is_forgotten_at_once():
    head = head_with(request(1, grammar=GRAMMAR))
    head.handle(returned(next_run(head)), 0.0)
    assert [type(one) for one in head.handle(RequestCancelled(1), 0.0)] == [SendRelease]


# -- batches --------------------------------------------------------------------------------------

BOTH = Batch(
    1,
    PREFILL,
    -1,
    (Span(1, 0, 4, False), Span(2, 0, 3, True)),
    refused=(Refusal(1, RowFault.RECEIVED),),
)


def test_refusals_stay_with_the_rows_of_their_request():
    assert cut_rows(BOTH, 0, 2).refused == BOTH.refused
    assert cut_rows(BOTH, 4, 7).refused == ()
    overflown = Refusal(3, RowFault.OVERFLOWN)
    other = Batch(2, PREFILL, -1, (Span(3, 0, 1, True),), refused=(overflown,))
    assert set(join_batches([BOTH, other]).refused) == {*BOTH.refused, overflown}
    again = BOTH.refusing([Refusal(1, RowFault.OVERFLOWN), Refusal(2, RowFault.OVERFLOWN)])
    assert dict((one.request_id, one.fault) for one in again.refused) == {
        1: RowFault.RECEIVED,
        2: RowFault.OVERFLOWN,
    }
    assert BOTH.stamped(StageStamp(0.1, 1.0)).refused == BOTH.refused


@pytest.mark.parametrize("request_ids", [(3,), (1, 1)])
def test_a_batch_refuses_requests_of_its_own_once(request_ids):
    refused = tuple(Refusal(one, RowFault.RECEIVED) for one in request_ids)
    with pytest.raises(ValueError, match="of its own, each once"):
        Batch(1, PREFILL, -1, BOTH.spans, refused=refused)
