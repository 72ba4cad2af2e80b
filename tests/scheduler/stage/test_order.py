"""Decode first, prefill never starved, rows in order and none lost."""

from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.batch import Batch, BatchClass, Span
from molink_scheduler.stage.batch_pieces import join_batches
from molink_scheduler.stage.order import DECODES_BEFORE_PREFILL_MAX, StageOrder
from molink_scheduler.timing.decode_clock import DecodeClock
from molink_scheduler.timing.prefill_budget import PrefillBudget
from molink_scheduler.timing.step_profile import StepProfile

DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL


def an_order(rows_max: int = 64) -> StageOrder[str]:
    return StageOrder(PrefillBudget(rows_max, DecodeClock(), StepProfile()))


def a_prefill(number: int, start: int, end: int) -> Batch:
    return Batch(number, PREFILL, -1, (Span(1, start, end, False),))


def a_decode(number: int, place: int = 0) -> Batch:
    return Batch(number, DECODE, place, (Span(2, number, number + 1, True),))


def test_decode_goes_first():
    order = an_order()
    order.push(a_prefill(1, 0, 8), "span", now=0.0)
    order.push(a_decode(2), "decode", now=0.0)
    works = [[piece.work for piece in order.next_pieces(0.0)] for _ in range(3)]
    assert works == [["decode"], ["span"], []]


def test_spans_that_have_arrived_are_computed_together():
    order = an_order(rows_max=64)
    for number in range(3):
        order.push(a_prefill(number, 8 * number, 8 * number + 8), f"span {number}", now=0.0)
    pieces = order.next_pieces(0.0)
    assert [piece.work for piece in pieces] == ["span 0", "span 1", "span 2"]
    assert join_batches([piece.batch for piece in pieces]).spans == (Span(1, 0, 24, False),)
    assert len(order) == 0


def test_a_span_that_would_take_too_long_is_cut():
    order = an_order(rows_max=10)
    order.push(a_prefill(1, 0, 24), "span", now=0.0)
    cuts = [[(p.start, p.end) for p in order.next_pieces(0.0)] for _ in range(3)]
    assert cuts == [[(0, 10)], [(10, 20)], [(20, 24)]]
    assert order.prefill_tokens_waiting == 0


def test_a_waiting_span_is_passed_a_bounded_number_of_times():
    order = an_order()
    order.push(a_prefill(1, 0, 8), "span", now=0.0)
    popped: list[str] = []
    while "span" not in popped:
        order.push(a_decode(len(popped)), "decode", now=0.0)
        popped += [piece.work for piece in order.next_pieces(0.0)]
    assert len(popped) == DECODES_BEFORE_PREFILL_MAX + 1


@given(
    st.lists(st.sampled_from([DECODE, PREFILL, None]), max_size=60),
    st.integers(1, 40),
    st.integers(1, 30),
)
def test_nothing_is_lost_and_each_class_keeps_its_order(script, rows_max, span_tokens):
    order = an_order(rows_max)
    decodes, prefilled = 0, 0
    taken: dict[BatchClass, list[Span]] = {DECODE: [], PREFILL: []}

    def take() -> bool:
        pieces = order.next_pieces(0.0)
        for piece in pieces:
            taken[piece.batch.batch_class] += piece.batch.spans
        assert sum(piece.end - piece.start for piece in pieces) <= max(1, rows_max)
        return bool(pieces)

    for number, batch_class in enumerate(script):
        if batch_class is None:
            take()
        elif batch_class is DECODE:
            decodes += 1
            order.push(a_decode(number), "decode", now=0.0)
        else:
            span = a_prefill(number, prefilled, prefilled + span_tokens)
            prefilled += span_tokens
            order.push(span, "span", now=0.0)
    while len(order):
        take()
    assert len(taken[DECODE]) == decodes
    ends = [0, *(span.end for span in taken[PREFILL])]
    assert [span.start for span in taken[PREFILL]] == ends[:-1]
    assert ends[-1] == prefilled


def test_only_decode_interrupts_a_step_and_a_bounded_number_of_times():
    order = an_order()
    order.push(a_prefill(1, 0, 8), "span", now=0.0)
    assert order.next_decode() == []
    for number in range(DECODES_BEFORE_PREFILL_MAX + 1):
        order.push(a_decode(number), f"decode {number}", now=0.0)
    interrupts = []
    while pieces := order.next_decode():
        interrupts += [piece.work for piece in pieces]
    assert interrupts == [f"decode {number}" for number in range(DECODES_BEFORE_PREFILL_MAX)]
    assert [piece.work for piece in order.next_pieces(0.0)] == ["span"]


@given(st.lists(st.integers(0, 3), max_size=8))
def test_decode_that_finds_nobody_is_taken_at_once_as_if_it_had_waited(places):
    at_once, in_turn = an_order(), an_order()
    for order in (at_once, in_turn):
        order.push(a_prefill(0, 0, 8), "span", now=0.0)
        order.push(a_decode(0), "decode", now=0.0)
        while order.next_pieces(0.0):
            pass
    for number, place in enumerate(places):
        batch, now = a_decode(number, place), 1.0 + number
        at_once.take_at_once(batch, now)
        in_turn.push(batch, "decode", now)
        assert [piece.work for piece in in_turn.next_pieces(now)] == ["decode"]
    assert at_once == in_turn
