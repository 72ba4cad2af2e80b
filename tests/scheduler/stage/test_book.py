"""A stage takes what the head plans, and nothing that it could not compute."""

from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.blocks import KvBlocks
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.request import ModelLimits, SamplingParams
from molink_scheduler.stage.book import MESSAGE_ROWS_MAX, StageBook

BLOCKS = 6
LEN_MAX = 64
WORDS = 50
SAMPLING = SamplingParams(max_tokens=8)


def admission(
    request_id: int = 1, prompt: int = 8, expected: int = 20, sampling=SAMPLING, **words
) -> Admission:
    return Admission(request_id, prompt, expected, sampling, **words)


def biased(token_id: int) -> SamplingParams:
    return SamplingParams(max_tokens=8, logit_bias=((token_id, 1.0),))


def batch(*spans: Span, admit=(), batch_class: BatchClass = BatchClass.PREFILL) -> Batch:
    return Batch(1, batch_class, -1, spans, tuple(admit))


def decode(*spans: Span, **more) -> Batch:
    return batch(*spans, batch_class=BatchClass.DECODE, **more)


def span(start: int, end: int, request_id: int = 1, samples: bool = False) -> Span:
    return Span(request_id, start, end, samples)


@pytest.fixture
def book():
    return StageBook(BlockTable(KvLedger(BLOCKS)), ModelLimits(LEN_MAX, WORDS))


def take(book: StageBook, *batches: Batch) -> None:
    for one in batches:
        assert book.objection(one) is None
        book.received(one)


def test_a_request_from_its_admission_to_its_end(book):
    take(book, batch(span(0, 5), admit=(admission(),)), batch(span(5, 8, samples=True)))
    book.computed(batch(span(0, 7), admit=(admission(),)))
    assert "cannot go on from 8" in book.objection(decode(span(8, 9, samples=True)))
    book.computed(batch(span(7, 8)))
    take(book, decode(span(8, 9, samples=True)))
    assert "something of it waits" in book.release_objection(Release(1))
    book.computed(batch(span(8, 9)))
    assert book.release_objection(Release(1)) is None
    book.released(Release(1))
    assert book.kv.tokens_used == 0
    take(book, batch(span(0, 9), admit=(admission(),)))


def test_an_admission_may_come_before_its_span(book):
    """A stage before cut the batch between them."""
    take(book, batch(span(0, 5), admit=(admission(), admission(2))))
    assert book.objection(decode(span(0, 3, request_id=2))) is not None
    assert book.release_objection(Release(2)) is not None
    take(book, batch(span(5, 8), span(0, 3, request_id=2)))


def test_decode_and_prefill_of_a_request_do_not_wait_together(book):
    """Each goes past the other on the device."""
    admit = (admission(prompt=1),)
    take(book, decode(span(0, 1), admit=admit))
    assert "cannot go on from 1" in book.objection(batch(span(1, 2)))
    assert "cannot go on from 1" in book.objection(decode(span(1, 2)))
    book.computed(decode(span(0, 1), admit=admit))
    take(book, batch(span(1, 2)), batch(span(2, 3)))
    assert "cannot go on from 3" in book.objection(decode(span(3, 4)))


@pytest.mark.parametrize(
    "bad, says",
    [
        (batch(span(0, 3, request_id=9)), "9 was never admitted"),
        (batch(span(4, 6)), "cannot go on from 4 to 6, 5 of 20"),
        (batch(span(6, 7)), "cannot go on from 6"),
        (batch(span(5, 21)), "to 21"),
        (batch(span(5, 7, samples=True)), "cannot go on"),
        (batch(span(5, 2**62)), "rows"),
        (batch(), "no rows"),
        (batch(admit=(admission(2),)), "no rows"),
        (batch(span(5, 6), span(6, 7)), "names a request twice"),
        (batch(span(5, 6), admit=(admission(2), admission(2))), "names a request twice"),
        (batch(span(0, 5), admit=(admission(),)), "1 is admitted twice"),
        (batch(span(0, 3, 2), admit=(admission(2, expected=LEN_MAX + 1),)), "none of this model"),
        (batch(span(0, 3, 2), admit=(admission(2, expected=-1),)), "none of this model"),
        (batch(span(0, 3, 2), admit=(admission(2, prompt=0),)), "none of this model"),
        (batch(span(0, 3, 2), admit=(admission(2, prompt=21),)), "none of this model"),
        (batch(span(0, 3, 2), admit=(admission(2, prompt=2, output=(WORDS,)),)), "none of this"),
        (batch(span(0, 3, 2), admit=(admission(2, prompt=2, output=(-1,)),)), "none of this"),
        (batch(span(0, 3, 2), admit=(admission(2, sampling=biased(WORDS)),)), "none of this model"),
        (batch(span(0, 3, 2), admit=(admission(2, sampling=biased(-1)),)), "none of this model"),
        (batch(span(5, 6), admit=tuple(map(admission, range(2, 8)))), "more requests than the 6"),
        (
            batch(
                *(span(0, 60, request_id=i) for i in (2, 3)),
                admit=tuple(admission(i, expected=60) for i in (2, 3)),
            ),
            "needs 8 KV blocks, 5 are free",
        ),
    ],
)
def test_what_the_stage_could_not_compute_is_objected_to_and_changes_nothing(book, bad, says):
    take(book, batch(span(0, 5), admit=(admission(),)))
    assert says in book.objection(bad)
    take(book, batch(span(5, 8, samples=True)))
    assert book.kv.tokens_used == 16


def test_a_message_has_so_many_rows_and_no_more():
    book = StageBook(BlockTable(KvLedger(1000)), ModelLimits(10**6, WORDS))
    admit = (admission(expected=10**6),)
    assert book.objection(batch(span(0, MESSAGE_ROWS_MAX), admit=admit)) is None
    assert "rows" in book.objection(batch(span(0, MESSAGE_ROWS_MAX + 1), admit=admit))


@dataclass(frozen=True)
class Wish:
    """A span as a neighbour may send it; most go on from what came before."""

    request_id: int
    off_by: int
    tokens: int
    samples: bool
    admits: bool

    def span(self, came: dict[int, int]) -> Span:
        start = max(0, came.get(self.request_id, 0) + self.off_by)
        return Span(self.request_id, start, start + self.tokens, self.samples)


IDS = st.integers(1, 3)
WISHES = st.builds(
    Wish, IDS, st.sampled_from([0] * 8 + [1, -1]), st.integers(1, 9), st.booleans(), st.booleans()
)
BATCHES = st.tuples(st.lists(WISHES, min_size=1, max_size=3), st.sampled_from(BatchClass))
COMPUTE = st.sampled_from(BatchClass)
"""Of which class a batch is computed next: decode may go past prefill."""
STEPS = st.lists(st.one_of(BATCHES, BATCHES, st.builds(Release, IDS), COMPUTE), max_size=30)


class Executor:
    """What of a stage's executor fails on a batch that does not fit."""

    def __init__(self):
        self.kv = KvBlocks(BLOCKS)
        self.tokens: dict[int, int] = {}

    def step(self, work: Batch) -> None:
        for one in work.admissions:
            assert not self.tokens.get(one.request_id), "a live request was lost"
            self.tokens[one.request_id] = 0
        for one in work.spans:
            assert self.tokens[one.request_id] == one.start
            self.kv.grow(one.request_id, one.end)
            self.tokens[one.request_id] = one.end

    def release(self, release: Release) -> None:
        self.kv.release(release.request_id)
        self.tokens.pop(release.request_id, None)


@settings(max_examples=400)  # A hundred missed an order that a stage could not compute.
@given(STEPS)
def test_whatever_comes_the_executor_can_compute_what_is_let_through(steps):
    book, executor = (
        StageBook(BlockTable(KvLedger(BLOCKS)), ModelLimits(LEN_MAX, WORDS)),
        Executor(),
    )
    queues: dict[BatchClass, deque[Batch]] = {kind: deque() for kind in BatchClass}
    came: dict[int, int] = {}
    for step in [*steps, *[kind for kind in BatchClass for _ in steps]]:
        match step:
            case BatchClass():
                if queues[step]:
                    work = queues[step].popleft()
                    executor.step(work)
                    book.computed(work)
            case Release():
                if book.release_objection(step) is None:
                    book.released(step)
                    executor.release(step)
                    came.pop(step.request_id, None)
            case wishes, batch_class:
                admit = [admission(wish.request_id, prompt=3) for wish in wishes if wish.admits]
                spans = [wish.span(came) for wish in wishes]
                work = batch(*spans, admit=admit, batch_class=batch_class)
                if book.objection(work) is None:
                    book.received(work)
                    queues[batch_class].append(work)
                    came |= {one.request_id: one.end for one in spans}
    assert book.kv.tokens_used == executor.kv.tokens_used
    assert not any(queues.values())


@pytest.mark.parametrize(("start", "fits"), [(8, False), (9, True), (11, True), (12, False)])
def test_a_span_begins_behind_the_drafts_that_came_true(book, start, fits):
    """The span before had a token and two drafts: [8, 11)."""
    first, drafted = (
        batch(span(0, 8, samples=True), admit=(admission(),)),
        Span(1, 8, 11, True, (4, 5)),
    )
    for one in (first, decode(drafted)):
        take(book, one)
        book.computed(one)
    following = decode(Span(1, start, start + 1, True))
    assert (book.objection(following) is None) == fits


def test_a_span_without_drafts_is_not_gone_back_behind(book):
    for one in (
        batch(span(0, 8, samples=True), admit=(admission(),)),
        decode(Span(1, 8, 11, True, (4, 5))),
        decode(Span(1, 9, 10, True)),
    ):
        take(book, one)
        book.computed(one)
    assert book.objection(decode(Span(1, 9, 10, True))) is not None
    assert book.objection(decode(Span(1, 10, 11, True))) is None


def test_drafts_are_words_of_the_model(book):
    """A tail would count them for penalties, and fail."""
    first = batch(span(0, 8, samples=True), admit=(admission(),))
    take(book, first)
    book.computed(first)
    words = book.limits.vocabulary_size
    assert "vocabulary" in book.objection(decode(Span(1, 8, 11, True, (4, words))))
    assert book.objection(decode(Span(1, 8, 11, True, (4, words - 1)))) is None


def test_drafts_go_no_further_than_the_request_may(book):
    first = batch(span(0, 8, samples=True), admit=(admission(expected=10),))
    take(book, first)
    book.computed(first)
    assert book.objection(decode(Span(1, 8, 11, True, (4, 5)))) is not None
    assert book.objection(decode(Span(1, 8, 10, True, (4,)))) is None
