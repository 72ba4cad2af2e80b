"""A wire: its rate over time, and TCP's window in the numbers of the paper's setting."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_sim.network.line import INITIAL_WINDOW_BYTES, RateSchedule, Window
from molink_sim.scenario import LinkChange, LinkSpec

CUT = LinkSpec(8, 0.1, changes=(LinkChange(2, 0, 0.1), LinkChange(5, 16, 0.2)))
"""1 MB/s, nothing from 2 s to 5 s, then 2 MB/s."""


@pytest.mark.parametrize(
    "start, size, finish", [(0, 1e6, 1), (0, 2e6, 2), (1, 2e6, 5.5), (3, 1e6, 5.5), (6, 2e6, 7)]
)
def test_bytes_wait_for_the_end_of_a_cut(start, size, finish):
    assert RateSchedule.of(CUT).finish(start, size) == pytest.approx(finish)


def test_what_arrives_during_a_cut_comes_one_delay_after_it():
    schedule = RateSchedule.of(CUT)
    assert [schedule.after_cut(at) for at in (1.0, 2.05, 4.9, 5.0)] == [1.0, 5.2, 5.2, 5.0]


def test_after_a_cut_without_end_nothing_leaves_or_arrives():
    schedule = RateSchedule.of(LinkSpec(8, 0.1, changes=(LinkChange(2, 0, 0.1),)))
    assert schedule.finish(1, 1.5e6) == math.inf == schedule.after_cut(3)


@given(st.floats(0, 20), st.floats(1, 1e8))
def test_as_much_leaves_until_the_finish_as_was_sent(start, size):
    schedule = RateSchedule.of(CUT)
    finish = schedule.finish(start, size)
    assert schedule.carried_bytes(start, finish) == pytest.approx(size, rel=1e-6, abs=1)


RATE, ROUND_TRIP_S = 12.5e6, 0.06


def test_a_prompt_after_a_quiet_time_waits_for_six_doublings():
    carried = INITIAL_WINDOW_BYTES * (2**6 - 1) / RATE
    expected = 6 * ROUND_TRIP_S - carried
    assert Window().opening_s(12.5e6, 1.0, RATE, ROUND_TRIP_S) == pytest.approx(expected)


def test_what_follows_without_a_pause_does_not_wait():
    window = Window()
    waited_s = window.opening_s(12.5e6, 1.0, RATE, ROUND_TRIP_S)
    assert window.opening_s(12.5e6, 1.0 + waited_s + 1.0, RATE, ROUND_TRIP_S) == 0.0


def test_a_long_pause_closes_it_again():
    window = Window()
    first = window.opening_s(12.5e6, 1.0, RATE, ROUND_TRIP_S)
    assert window.opening_s(12.5e6, 60.0, RATE, ROUND_TRIP_S) == first


def test_a_trickle_does_not_keep_it_open():
    window = Window()
    window.opening_s(12.5e6, 1.0, RATE, ROUND_TRIP_S)
    for number in range(40):
        assert window.opening_s(10_000, 3.0 + 0.2 * number, RATE, ROUND_TRIP_S) == 0.0
    assert window.opening_s(12.5e6, 11.0, RATE, ROUND_TRIP_S) > 0.2


def test_what_fits_the_initial_window_never_waits():
    window = Window()
    assert all(window.opening_s(14_600, 1.0 * n, RATE, ROUND_TRIP_S) == 0.0 for n in range(9))


@given(
    bursts=st.lists(st.tuples(st.floats(0, 3), st.floats(1, 2e7)), min_size=1, max_size=30),
    rate=st.floats(1e5, 1e9),
    round_trip_s=st.floats(1e-4, 0.5),
)
def test_no_burst_waits_for_more_than_an_opening_from_the_start(bursts, rate, round_trip_s):
    window, now = Window(), 0.0
    for pause_s, size_bytes in bursts:
        now += pause_s
        waited_s = window.opening_s(size_bytes, now, rate, round_trip_s)
        most_s = 0.0
        size = float(INITIAL_WINDOW_BYTES)
        while size < rate * round_trip_s:
            most_s, size = most_s + round_trip_s, 2 * size
        assert 0.0 <= waited_s <= most_s + 1e-9
        now += waited_s + size_bytes / rate
