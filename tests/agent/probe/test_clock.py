"""How far off is the clock, and what is it called?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_agent.probe.clock import CLOCK_OFF_S, ClockReading, clock_trouble


@given(st.floats(-1e6, 1e6), st.floats(0, 10), st.floats(0, 10), st.floats(1.6e9, 2e9))
def test_the_true_offset_is_within_the_error(offset_s, there_s, back_s, sent_s):
    told = sent_s + there_s + offset_s
    reading = ClockReading(sent_s, there_s + back_s, told)
    assert abs(reading.offset_s - offset_s) <= (there_s + back_s) / 2 + 1e-3


@pytest.mark.parametrize("offset_s", [0, CLOCK_OFF_S - 1, 1 - CLOCK_OFF_S])
def test_a_little_off_is_no_trouble(offset_s):
    assert clock_trouble(offset_s) is None


def test_hours_off_is_the_time_zone():
    said = clock_trouble(-7200 + 40)
    assert said is not None
    assert "2.0 hours ahead of" in said
    assert "time zone" in said


@pytest.mark.parametrize(
    "offset_s, span", [(600, "10 min behind"), (5400, "1.5 hours behind"), (-9e6, "104 days ahead")]
)
def test_anything_else_is_the_clock(offset_s, span):
    said = clock_trouble(offset_s)
    assert said is not None
    assert span in said
    if span != "104 days ahead":
        assert "set-ntp" in said
