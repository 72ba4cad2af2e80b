"""The arithmetic of an emulated link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.config.link_schedule import LinkSchedule, LinkShape, LinkStep
from molink.transport.emulator import ShapedPipe

RATE_MBPS, ONE_WAY_MS = 8.0, 30.0
BYTES_PER_S = 1e6


def a_pipe(**options) -> ShapedPipe:
    return ShapedPipe(LinkSchedule((LinkStep(0.0, LinkShape(RATE_MBPS, ONE_WAY_MS, **options)),)))


def test_a_rate_that_changes_under_a_transfer_counts_from_then_on():
    steps = (LinkStep(0.0, LinkShape(8, 30)), LinkStep(1.0, LinkShape(2, 10)))
    pipe = ShapedPipe(LinkSchedule(steps))
    assert pipe.deliver_at(500_000, now=0.75) == pytest.approx(1.0 + 1.0 + 0.010)
    assert pipe.deliver_at(250_000, now=5.0) == pytest.approx(5.0 + 1.0 + 0.010)


def test_a_delay_that_shrinks_keeps_the_order():
    steps = (LinkStep(0.0, LinkShape(8, 100)), LinkStep(1.0, LinkShape(8, 1)))
    pipe = ShapedPipe(LinkSchedule(steps))
    first = pipe.deliver_at(1000, now=0.995)
    assert pipe.deliver_at(1000, now=1.0) >= first


def test_a_piece_takes_its_time_on_the_wire_and_then_the_delay():
    pipe = a_pipe()
    assert pipe.deliver_at(10_000, now=5.0) == pytest.approx(5.0 + 0.010 + 0.030)
    assert pipe.deliver_at(10_000, now=5.0) == pytest.approx(5.0 + 0.020 + 0.030)


def test_an_idle_link_owes_nothing():
    pipe = a_pipe()
    pipe.deliver_at(10_000, now=0.0)
    assert pipe.deliver_at(1_000, now=9.0) == pytest.approx(9.0 + 0.001 + 0.030)


def test_a_full_queue_says_when_it_has_room():
    pipe = a_pipe(queue_bytes=50_000)
    pipe.deliver_at(40_000, now=0.0)
    assert pipe.wait_s(now=0.0) == 0.0
    pipe.deliver_at(30_000, now=0.0)
    assert pipe.wait_s(now=0.0) == pytest.approx(0.020)
    assert pipe.queued_bytes(now=0.05) == pytest.approx(20_000)


@given(
    st.lists(st.tuples(st.integers(1, 50_000), st.floats(0, 0.1)), min_size=1, max_size=50),
)
def test_never_faster_than_the_rate_and_always_in_order(pieces):
    pipe = a_pipe()
    now, first, last, total = 0.0, None, 0.0, 0
    for size, gap_s in pieces:
        now += gap_s
        first = now if first is None else first
        at = pipe.deliver_at(size, now)
        total += size
        assert at >= last
        assert at - first >= total / BYTES_PER_S * (now == first) + 0.030 - 1e-9
        assert at >= now + size / BYTES_PER_S + 0.030 - 1e-9
        last = at
    assert pipe.bytes_total == total
