from random import Random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.errors import UserError
from molink.workload.trace import TraceRequest, at_rate, generate_trace, read_trace, scaled, within

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
OWN = "start_s,input_tokens,output_tokens\n"


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"

    def write(text):
        path.write_text(text)
        return path

    return write


def test_azures_columns_start_at_zero(trace):
    path = trace(
        AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9305900,396,109\n"
    )
    assert read_trace(path) == [TraceRequest(0.0, 374, 44), TraceRequest(4.25, 396, 109)]


def test_our_columns_in_any_order_beside_others(trace):
    path = trace("note,output_tokens, start_s ,input_tokens\na,2,0.5,3\nb,5,0.5,4\n")
    assert read_trace(path) == [TraceRequest(0.5, 3, 2), TraceRequest(0.5, 4, 5)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("start_s,input_tokens\n0,1\n", "lacks columns"),
        ("", "lacks columns"),
        (OWN, "holds no requests"),
        (OWN + "0,1,1\n1,-2,3\n", "line 3: .* none negative"),
        (OWN + "0,1,1\n-1,2,3\n", "line 3"),
        (OWN + "0,one,1\n", "line 2"),
        (OWN + "0,1.5,1\n", "line 2"),
        (OWN + "nan,1,1\n", "line 2"),
        (OWN + "0,1\n", "line 2"),
        (OWN + "2,1,1\n1,1,1\n", "line 3: times go back"),
        (OWN + "2,1,1\n\n1,1,1\n", "line 4: times go back"),
        (AZURE + "yesterday,1,1\n", "line 2"),
        (AZURE + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1\n", "times go back"),
    ],
)
def test_a_bad_file_is_one_sentence(trace, text, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        read_trace(trace(text))
    assert "\n" not in str(caught.value)


def test_files_that_are_no_text(trace, tmp_path):
    with pytest.raises(UserError, match="cannot read the trace"):
        read_trace(tmp_path / "none.csv")
    path = tmp_path / "binary.csv"
    path.write_bytes(b"\xff\xfe\x00\x80" * 9)
    with pytest.raises(UserError, match="is no CSV file"):
        read_trace(path)


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
