"""TCP's window: what must hold of it, and the numbers of the paper's setting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_sim.network.window import INITIAL_WINDOW_BYTES, Window

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
