"""A home's upload, packet by packet, in time that the test makes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.config.link_schedule import LinkShape
from tools.experiments.homes.delay_lines import PacketLine

ONE_WAY_S = 0.030
BYTES_PER_S = 1e6


def a_line(queue_bytes: int = 1_000_000) -> PacketLine:
    return PacketLine(LinkShape(8.0, 30.0, queue_bytes))


def test_a_packet_takes_its_time_on_the_wire_and_then_the_delay():
    line = a_line()
    assert line.offer(bytes(1000), 5.0)
    assert line.next_arrival_s == pytest.approx(5.0 + 0.001 + ONE_WAY_S)
    assert not list(line.arrived(5.0309))
    assert list(line.arrived(5.0311)) == [bytes(1000)]
    assert line.next_arrival_s == math.inf


def test_packets_wait_for_each_other_but_not_for_the_delay():
    line = a_line()
    for content in (b"a", b"b"):
        line.offer(content * 1000, 0.0)
    assert list(line.arrived(0.0315)) == [b"a" * 1000]
    assert line.next_arrival_s == pytest.approx(0.002 + ONE_WAY_S)


def test_what_does_not_fit_is_lost_until_there_is_room_again():
    line = a_line(queue_bytes=2500)
    assert [line.offer(bytes(1000), 0.0) for _ in range(3)] == [True, True, False]
    assert line.dropped_count == 1
    assert line.offer(bytes(1000), 0.0006)  # 600 bytes have left.
    assert len(list(line.arrived(1.0))) == 3


def test_an_idle_line_owes_nothing():
    line = a_line()
    line.offer(bytes(1000), 0.0)
    line.offer(bytes(1000), 9.0)
    list(line.arrived(8.0))
    assert line.next_arrival_s == pytest.approx(9.0 + 0.001 + ONE_WAY_S)


@given(st.lists(st.tuples(st.integers(20, 1500), st.floats(0, 0.01)), min_size=1, max_size=80))
def test_never_faster_than_the_rate_in_order_and_none_twice(packets):
    line = a_line(queue_bytes=6000)
    now_s, taken = 0.0, []
    for number, (size, gap_s) in enumerate(packets):
        now_s += gap_s
        packet = number.to_bytes(2) + bytes(size - 2)
        if line.offer(packet, now_s):
            taken.append((now_s, packet))
    out, last_s = [], 0.0
    while (at_s := line.next_arrival_s) < math.inf:
        [packet] = line.arrived(at_s)
        assert at_s >= last_s + len(packet) / BYTES_PER_S - 1e-9
        out.append(packet)
        sent_s = taken[len(out) - 1][0]
        assert 0 <= at_s - sent_s - ONE_WAY_S <= 6000 / BYTES_PER_S + 1e-9
        last_s = at_s
    assert out == [packet for _, packet in taken]
    assert line.dropped_count == len(packets) - len(taken)


def test_a_packet_that_is_late_holds_up_those_behind_it():
    line = a_line()
    line.offer(b"a" * 1000, 0.0, late_s=0.2)
    line.offer(b"b" * 1000, 0.0)
    assert not list(line.arrived(0.23))
    assert len(list(line.arrived(0.2311))) == 2
