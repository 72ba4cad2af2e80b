import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_sim.network.rates import RateSchedule
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
