from itertools import pairwise
from random import Random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink.errors import UserError
from molink.workload.trace import TraceRequest, at_rate, generate_trace
from molink_sim.scenario import RequestArrival
from molink_sim.workload import generate, thin


def evenly(count, rate_per_s):
    return [RequestArrival(number / rate_per_s, number + 1, 1) for number in range(count)]


TRACE = evenly(10_000, 5.0)


def thinned(rate, duration_s, seed):
    return thin(TRACE, rate, duration_s, seed)


SOURCES = pytest.mark.parametrize("draw", [generate, thinned])


@SOURCES
def test_one_seed_one_load(draw):
    assert draw(2.0, 60.0, 7) == draw(2.0, 60.0, 7) != draw(2.0, 60.0, 8)


@SOURCES
@settings(max_examples=25)
@given(rate=st.floats(0.05, 8), duration_s=st.floats(1, 300), seed=st.integers(0, 99))
def test_times_rise_and_end_with_the_duration(draw, rate, duration_s, seed):
    found = draw(rate, duration_s, seed)
    assert all(a.at_s <= b.at_s for a, b in pairwise(found))
    assert all(0 <= one.at_s < duration_s for one in found)


@SOURCES
def test_the_rate_is_the_one_asked_for(draw):
    assert mean(len(draw(2.0, 1500.0, seed)) for seed in range(9)) == pytest.approx(3000, rel=0.05)


def test_thinning_starts_after_the_slow_minutes_and_keeps_times():
    found = thin(evenly(20_000, 5.0), 0.5, 1800.0, 1)
    assert all(one.at_s == pytest.approx((one.input_tokens - 1) / 5 - 300) for one in found)


def test_thinning_gives_the_live_benchmarks_requests():
    trace = [TraceRequest(number / 3, number, 1) for number in range(9000)]
    arrivals = [RequestArrival(one.start_s, one.input_tokens, 1) for one in trace]
    live = at_rate(Random("trace 4"), trace, 0.7, 600.0)
    found = thin(arrivals, 0.7, 600.0, 4)
    assert [(a.at_s, a.input_tokens) for a in found] == [(b.start_s, b.input_tokens) for b in live]


def test_generating_gives_the_live_benchmarks_requests():
    live = generate_trace(Random("trace 4"), 2, 60)
    assert [(one.at_s, one.output_tokens) for one in generate(2, 60, 4)] == [
        (one.start_s, one.output_tokens) for one in live
    ]


def test_a_quiet_trace_is_played_faster():
    assert len(thin(evenly(2000, 1.0), 4.0, 400.0, 0)) == pytest.approx(1600, rel=0.01)


def test_a_trace_that_ends_too_soon_is_refused():
    with pytest.raises(UserError, match=r"lasts 20 s at 100 requests/s and not 600 s"):
        thin(evenly(2000, 1.0), 100.0, 600.0, 0)
    with pytest.raises(UserError, match="lasts 0 s"):
        thin([], 1.0, 600.0, 0)


@pytest.mark.parametrize("rate,duration_s", [(0, 1), (1, 0), (-1, 1), (float("nan"), 1), (9e9, 9)])
@SOURCES
def test_what_is_no_load_is_refused(draw, rate, duration_s):
    with pytest.raises(UserError, match="requests"):
        draw(rate, duration_s, 0)
