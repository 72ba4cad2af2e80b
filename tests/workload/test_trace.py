import pytest

from molink.errors import UserError
from molink.workload.trace import TraceRequest, read_trace

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
