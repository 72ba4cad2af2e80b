"""The arithmetic of an emulated link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.config.link_shape import LinkShape
from molink.transport.shaped_pipe import ShapedPipe

RATE_MBPS, ONE_WAY_MS = 8.0, 30.0
BYTES_PER_S = 1e6


def test_a_piece_takes_its_time_on_the_wire_and_then_the_delay():
    pipe = ShapedPipe(LinkShape(RATE_MBPS, ONE_WAY_MS))
    assert pipe.deliver_at(10_000, now=5.0) == pytest.approx(5.0 + 0.010 + 0.030)
    assert pipe.deliver_at(10_000, now=5.0) == pytest.approx(5.0 + 0.020 + 0.030)


def test_an_idle_link_owes_nothing():
    pipe = ShapedPipe(LinkShape(RATE_MBPS, ONE_WAY_MS))
    pipe.deliver_at(10_000, now=0.0)
    assert pipe.deliver_at(1_000, now=9.0) == pytest.approx(9.0 + 0.001 + 0.030)


def test_a_full_queue_says_when_it_has_room():
    pipe = ShapedPipe(LinkShape(RATE_MBPS, ONE_WAY_MS, queue_bytes=50_000))
    pipe.deliver_at(40_000, now=0.0)
    assert pipe.room_in_s(now=0.0) == 0.0
    pipe.deliver_at(30_000, now=0.0)
    assert pipe.room_in_s(now=0.0) == pytest.approx(0.020)
    assert pipe.queued_bytes(now=0.05) == pytest.approx(20_000)


@given(
    st.lists(st.tuples(st.integers(1, 50_000), st.floats(0, 0.1)), min_size=1, max_size=50),
)
def test_never_faster_than_the_rate_and_always_in_order(pieces):
    pipe = ShapedPipe(LinkShape(RATE_MBPS, ONE_WAY_MS))
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
