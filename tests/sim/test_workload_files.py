import pytest

from molink.errors import UserError
from molink_sim.scenario import RequestArrival
from molink_sim.workload import load_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
OWN = "start_s,input_tokens,output_tokens\n"
GOOD = '{"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [0]}\n'


@pytest.fixture
def trace(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def line(timestamp, input_length=5, output_length=2):
    return (
        f'{{"timestamp": {timestamp}, "input_length": {input_length}, '
        f'"output_length": {output_length}}}\n'
    )


def test_azures_trace_within_the_limits(trace):
    rows = "2023-11-16 18:15:46,374,44\n2023-11-16 18:15:47,2049,9\n2023-11-16 18:15:50,396,0\n"
    path = trace("azure.csv", AZURE + rows + "2023-11-16 18:15:56.5,2048,1024\n")
    assert load_trace(path) == [RequestArrival(0.0, 374, 44), RequestArrival(10.5, 2048, 1024)]
    assert load_trace(path, input_tokens_max=400) == [RequestArrival(0.0, 374, 44)]
    assert load_trace(path, input_tokens_max=9999, output_tokens_max=9) == [
        RequestArrival(1.0, 2049, 9)
    ]


def test_mooncakes_own_times_stay(trace):
    path = trace("trace.jsonl", line(0) + line(40, 7, 3) + "\n" + line(2471))
    assert load_trace(path) == [
        RequestArrival(0.0, 5, 2),
        RequestArrival(0.04, 7, 3),
        RequestArrival(2.471, 5, 2),
    ]


def test_mooncakes_batches_are_spread_by_a_seed(trace):
    rows = [line(3000 * batch, 10 * batch + n + 1) for batch in range(20) for n in range(10)]
    path = trace("trace.jsonl", "".join(rows))
    found = load_trace(path)
    assert found == load_trace(path) != load_trace(path, jitter_seed=1)
    times = [one.at_s for one in found]
    assert times == sorted(times) and len(set(times)) == 200
    for one in found:
        assert 0 <= one.at_s - 3 * ((one.input_tokens - 1) // 10) < 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GOOD + "{", "line 2"),
        (GOOD + "[]\n", "line 2"),
        (GOOD + '{"timestamp": 1}\n', "line 2: .* input_length"),
        (GOOD + line(1, -5), "line 2: .* none negative"),
        (GOOD + line(1, '"5"'), "line 2"),
        (GOOD + line(1, "true"), "line 2"),
        (GOOD + line("1.5"), "line 2"),
        (GOOD + line("NaN"), "line 2"),
        (GOOD + line(10**30), "line 2"),
        (line(9) + "\n" + line(8), "line 3: times go back"),
        (GOOD + "[" * 100_000, "line 2"),
        ("", "holds no requests"),
        (line(0, 5000), "none of the 1 requests .* 1 to 2048"),
    ],
)
def test_a_bad_mooncake_file_is_one_sentence(trace, text, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        load_trace(trace("trace.jsonl", text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("start_s,input_tokens\n0,1\n", "lacks columns"),
        (OWN + "0,1,1\n1,-2,3\n", "line 3"),
        (OWN + "0,many,1\n", "line 2"),
        (OWN + "0,5,1\n\n3,5,1\n2,5,1\n", "line 5: times go back"),
        (OWN + "0,0,1\n", "none of the 1 requests"),
    ],
)
def test_a_bad_csv_file_is_one_sentence(trace, text, sentence):
    with pytest.raises(UserError, match=sentence):
        load_trace(trace("trace.csv", text))


@pytest.mark.parametrize("name", ["none.csv", "none.jsonl"])
def test_no_file(tmp_path, name):
    with pytest.raises(UserError, match="cannot read the trace"):
        load_trace(tmp_path / name)


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\xff\xfe\x00\x80" * 9)
    with pytest.raises(UserError, match="is no JSONL file"):
        load_trace(path)
