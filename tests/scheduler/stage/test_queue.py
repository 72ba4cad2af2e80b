"""Decode first, prefill never starved, rows in order and none lost, also when they are cut."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.batch import Admission, Batch, BatchClass, Span
from molink_scheduler.events import BatchArrived, Piece, RunBatch
from molink_scheduler.request import SamplingParams
from molink_scheduler.stage.queue import StageOrder, cut_rows, join_batches
from molink_scheduler.timing.steps import (
    DECODES_BEFORE_PREFILL_MAX,
    DecodeClock,
    PrefillBudget,
    StepProfile,
)

DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL


def an_order(rows_max: int = 64, cut_tokens: int = 1) -> StageOrder:
    return StageOrder(PrefillBudget(rows_max, DecodeClock(), StepProfile()), cut_tokens)


def a_prefill(number: int, start: int, end: int) -> BatchArrived:
    return BatchArrived(Batch(number, PREFILL, -1, (Span(1, start, end, False),)), number)


def a_decode(number: int, slot: int = 0) -> BatchArrived:
    return BatchArrived(Batch(number, DECODE, slot, (Span(2, number, number + 1, True),)), number)


def messages(run: RunBatch | None) -> list[int]:
    """Numbers of the messages whose rows are computed."""
    return [piece.message for piece in run.pieces] if run is not None else []


def test_decode_goes_first():
    order = an_order()
    order.push(a_prefill(1, 0, 8), 0.0)
    order.push(a_decode(2), 0.0)
    assert [messages(order.next_batch(0.0)) for _ in range(3)] == [[2], [1], []]


def test_spans_that_have_arrived_are_computed_together():
    order = an_order(rows_max=64)
    for number in range(3):
        order.push(a_prefill(number, 8 * number, 8 * number + 8), 0.0)
    run = order.next_batch(0.0)
    assert messages(run) == [0, 1, 2]
    assert run.batch.spans == (Span(1, 0, 24, False),)
    assert len(order) == 0


def test_replayed_rows_go_nowhere_and_take_larger_steps():
    budget = PrefillBudget(10, DecodeClock(), StepProfile(), replay_rows_max=24)
    order = StageOrder(budget)
    replayed = replace(a_prefill(1, 0, 30).batch, replay=True)
    order.push(BatchArrived(replayed, 1), 0.0)
    order.push(a_prefill(2, 30, 50), 0.0)
    runs = iter(lambda: order.next_batch(0.0), None)
    assert [run.batch.tokens for run in runs] == [24, 6, 10, 10]


def test_a_span_that_would_take_too_long_is_cut():
    order = an_order(rows_max=10)
    order.push(a_prefill(1, 0, 24), 0.0)
    pieces = [order.next_batch(0.0).pieces for _ in range(3)]
    assert pieces == [(Piece(1, 0, 10),), (Piece(1, 10, 20),), (Piece(1, 20, 24),)]
    assert order.next_batch(0.0) is None


def test_a_span_is_cut_where_recurrences_take_whole_chunks():
    order = an_order(rows_max=100, cut_tokens=64)
    order.push(a_prefill(1, 64, 364), 0.0)
    other = (Span(2, 0, 50, True), Span(3, 0, 90, False))
    order.push(BatchArrived(Batch(2, PREFILL, -1, other), 2), 0.0)
    steps = [order.next_batch(0.0).pieces for _ in range(6)]
    assert steps == [
        *((Piece(1, 64 * n, 64 * n + 64),) for n in range(4)),
        (Piece(1, 256, 300), Piece(2, 0, 50)),  # Six rows are no chunk of the third prompt.
        (Piece(2, 50, 140),),
    ]


def test_a_waiting_span_is_passed_a_bounded_number_of_times():
    order = an_order()
    order.push(a_prefill(99, 0, 8), 0.0)
    popped: list[int] = []
    while 99 not in popped:
        order.push(a_decode(len(popped)), 0.0)
        popped += messages(order.next_batch(0.0))
    assert len(popped) == DECODES_BEFORE_PREFILL_MAX + 1


@given(
    st.lists(st.sampled_from([DECODE, PREFILL, None]), max_size=60),
    st.integers(1, 40),
    st.integers(1, 30),
    st.sampled_from([1, 8]),
)
def test_nothing_is_lost_and_each_class_keeps_its_order(script, rows_max, span_tokens, cut_tokens):
    order = an_order(rows_max, cut_tokens)
    decodes, prefilled = 0, 0
    taken: dict[BatchClass, list[Span]] = {DECODE: [], PREFILL: []}

    def take() -> bool:
        run = order.next_batch(0.0)
        if run is None:
            return False
        taken[run.batch.batch_class] += run.batch.spans
        assert run.batch.tokens == sum(piece.end - piece.start for piece in run.pieces)
        assert run.batch.tokens <= max(1, rows_max)
        return True

    for number, batch_class in enumerate(script):
        if batch_class is None:
            take()
        elif batch_class is DECODE:
            decodes += 1
            order.push(a_decode(number), 0.0)
        else:
            order.push(a_prefill(number, prefilled, prefilled + span_tokens), 0.0)
            prefilled += span_tokens
    while len(order):
        take()
    assert len(taken[DECODE]) == decodes
    ends = [0, *(span.end for span in taken[PREFILL])]
    assert [span.start for span in taken[PREFILL]] == ends[:-1]
    assert ends[-1] == prefilled


def test_only_decode_interrupts_a_step_and_a_bounded_number_of_times():
    order = an_order()
    order.push(a_prefill(99, 0, 8), 0.0)
    assert order.next_decode() is None
    for number in range(DECODES_BEFORE_PREFILL_MAX + 1):
        order.push(a_decode(number), 0.0)
    interrupts = []
    while (run := order.next_decode()) is not None:
        interrupts += messages(run)
    assert interrupts == list(range(DECODES_BEFORE_PREFILL_MAX))
    assert messages(order.next_batch(0.0)) == [99]


ADMISSION = Admission(1, 10, 20, SamplingParams(max_tokens=4))


@st.composite
def prefill_batches(draw):
    lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=5))
    wants = [draw(st.none() | st.integers(0, 16)) for _ in lengths]
    spans = tuple(
        Span(number, 5, 5 + length, samples=wanted is not None, wants=wanted or 0)
        for number, (length, wanted) in enumerate(zip(lengths, wants, strict=True), 1)
    )
    return Batch(7, BatchClass.PREFILL, -1, spans, (ADMISSION,))


@given(prefill_batches(), st.data())
def test_pieces_laid_together_are_the_whole(batch, data):
    cuts = data.draw(st.sets(st.integers(1, batch.tokens)).map(lambda c: sorted(c | {0})))
    edges = sorted({*cuts, batch.tokens})
    pieces = [cut_rows(batch, a, b) for a, b in pairwise(edges)]
    assert [piece.tokens for piece in pieces] == [b - a for a, b in pairwise(edges)]
    assert sum(len(piece.admissions) for piece in pieces) == 1
    assert sum(span.samples for piece in pieces for span in piece.spans) == sum(
        span.samples for span in batch.spans
    )
    assert join_batches(pieces) == batch


def test_spans_of_different_requests_stay_apart():
    first = Batch(1, BatchClass.PREFILL, -1, (Span(1, 0, 4, True),))
    second = Batch(2, BatchClass.PREFILL, -1, (Span(2, 4, 9, False),))
    assert join_batches([first, second]).spans == (Span(1, 0, 4, True), Span(2, 4, 9, False))


def test_no_batch_is_cut_inside_a_span_with_drafts():
    """Its rows are verified together, so it is cut between spans alone."""
    spans = Span(1, 8, 11, True, (4, 5)), Span(2, 3, 4, True)
    batch = Batch(1, BatchClass.DECODE, 0, spans)
    assert [cut_rows(batch, *rows).spans for rows in ((0, 3), (3, 4))] == [spans[:1], spans[1:]]
    for rows in ((0, 2), (1, 3), (0, 1), (2, 4)):
        with pytest.raises(ValueError, match="drafts"):
            cut_rows(batch, *rows)
