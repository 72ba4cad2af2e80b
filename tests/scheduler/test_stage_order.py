"""Decode first, prefill never starved, order kept within each class."""

from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.batch import BatchClass
from molink_scheduler.stage_order import DECODES_BEFORE_PREFILL_MAX, StageOrder


def test_decode_goes_first():
    order: StageOrder[str] = StageOrder()
    order.push(BatchClass.PREFILL, "span")
    order.push(BatchClass.DECODE, "decode")
    assert [order.pop(), order.pop(), order.pop()] == ["decode", "span", None]


def test_a_waiting_span_is_passed_a_bounded_number_of_times():
    order: StageOrder[str] = StageOrder()
    order.push(BatchClass.PREFILL, "span")
    popped = []
    while "span" not in popped:
        order.push(BatchClass.DECODE, "decode")
        popped.append(order.pop())
    assert len(popped) == DECODES_BEFORE_PREFILL_MAX + 1


@given(st.lists(st.sampled_from([BatchClass.DECODE, BatchClass.PREFILL, None]), max_size=80))
def test_nothing_is_lost_and_each_class_keeps_its_order(script):
    order: StageOrder[tuple[BatchClass, int]] = StageOrder()
    pushed, popped = [], []
    for number, batch_class in enumerate(script):
        if batch_class is None:
            popped.append(order.pop())
        else:
            pushed.append((batch_class, number))
            order.push(batch_class, pushed[-1])
    while len(order):
        popped.append(order.pop())
    done = [work for work in popped if work is not None]
    assert sorted(done, key=lambda work: work[1]) == pushed
    for batch_class in BatchClass:
        assert [w for w in done if w[0] is batch_class] == [
            w for w in pushed if w[0] is batch_class
        ]
