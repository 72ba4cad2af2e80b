from random import Random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.workload.trace import TraceRequest
from molink.workload.trace_fit import at_rate, scaled, within
from molink.workload.trace_mix import generate_trace


def evenly(count, rate_per_s):
    return [TraceRequest(number / rate_per_s, 100, 10) for number in range(count)]


def test_the_generated_mix_has_the_published_means():
    requests = generate_trace(Random(1), 10, 2000)
    assert len(requests) == pytest.approx(20_000, rel=0.03)
    assert mean(one.input_tokens for one in requests) == pytest.approx(763, rel=0.03)
    assert mean(one.output_tokens for one in requests) == pytest.approx(232, rel=0.03)
    assert len(within(requests, 4096)) == len(requests), "inside the mix's own limits"
    starts = [one.start_s for one in requests]
    assert starts == sorted(starts) and starts[-1] < 2000


def test_one_seed_one_trace():
    assert generate_trace(Random(7), 1, 60) == generate_trace(Random(7), 1, 60)
    assert generate_trace(Random(7), 1, 60) != generate_trace(Random(8), 1, 60)


def test_what_cannot_be_served_is_left_out():
    lengths = [(0, 5), (5, 0), (2048, 1024), (2049, 1), (1, 1025), (60, 40), (61, 40)]
    requests = [TraceRequest(0.0, *pair) for pair in lengths]
    assert [one.input_tokens for one in within(requests, 5000)] == [2048, 60, 61]
    assert [one.input_tokens for one in within(requests, 100)] == [60]


@given(st.integers(1, 3000), st.floats(0.001, 10))
def test_scaled_lengths_stay_at_least_one(tokens, scale):
    (one,) = scaled([TraceRequest(3.0, tokens, tokens)], scale, 1.0)
    assert one.input_tokens == max(1, round(tokens * scale))
    assert (one.start_s, one.output_tokens) == (3.0, tokens)


@pytest.mark.parametrize("rate", [0.5, 2.0, 5.0])
def test_a_trace_is_thinned_or_played_faster_to_the_rate(rate):
    found = at_rate(Random(3), evenly(2000, 2.0), rate, 200.0)
    assert len(found) == pytest.approx(200 * rate, rel=0.25)
    assert max(one.start_s for one in found) < 200


def test_a_long_trace_starts_after_its_slow_minutes():
    found = at_rate(Random(0), evenly(8001, 2.0), 2.0, None)
    assert len(found) == 8001 - 600 and found[0].start_s == 0


def test_a_trace_without_time_stays_as_it_is():
    assert at_rate(Random(0), [], 1.0, None) == []
    assert at_rate(Random(0), evenly(1, 1.0), 1.0, 5.0) == evenly(1, 1.0)
