"""The trace file: Chrome's format, whole or broken off, of bounded size."""

import json
from itertools import pairwise

import pytest

from molink.errors import UserError
from tests.trace.chrome_trace import checked
from tools.trace.trace_file import NAME_CHARS_MAX, TraceFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


def test_what_is_written_follows_the_format(path):
    trace = TraceFile.create(path, began_at=100.0)
    trace.slice("stages", "anna", "prefill 32", 101.0, 0.5, {"rows": 32})
    trace.slice("stages", "anna", "decode 1", 101.1, 0.2, {"rows": 1})
    trace.slice("links", "anna to ben", "9 bytes", 101.0, 0.1, {})
    trace.counter("links", "anna to ben waiting", 101.0, {"decode": 3.0})
    trace.begin("requests", "r", "request r", 101.0, {"tokens": 2})
    trace.begin("requests", "r", "prefill", 101.0, {})
    trace.end("requests", "r", "prefill", 102.0)
    trace.end("requests", "r", "request r", 102.0)
    trace.close()
    events = checked(path)
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {"events", "anna", "anna to ben"}
    (prefill,) = [e for e in events if e["name"] == "prefill 32"]
    assert (prefill["ts"], prefill["dur"]) == (1e6, 5e5)


def test_a_file_that_was_broken_off_lacks_only_its_bracket(path):
    trace = TraceFile.create(path, 0.0)
    trace.instant("cluster", "events", "anna is here", 1.0, {})
    trace.flush()
    assert json.loads(path.read_text() + "]")[-1]["name"] == "anna is here"


def test_nothing_is_written_beyond_its_size(path):
    trace = TraceFile.create(path, 0.0)
    trace.bytes_max = 3000
    for number in range(100):
        trace.instant("cluster", "events", f"event {number}", 1.0, {})
    assert trace.is_full
    trace.close()
    events = checked(path)
    assert path.stat().st_size <= 3010
    assert 0 < sum(e["ph"] == "i" for e in events) < 100


def test_names_from_afar_are_short_and_printable(path):
    trace = TraceFile.create(path, 0.0)
    trace.slice("stages", "anna\x1b[2J" + "x" * 999, "step", -5.0, 1.0, {})
    trace.close()
    (named,) = [e for e in checked(path) if e["ph"] == "M" and "anna" in str(e["args"])]
    assert len(named["args"]["name"]) == NAME_CHARS_MAX and "\x1b" not in named["args"]["name"]


def test_a_place_that_cannot_be_written_is_the_operators_to_mend(tmp_path):
    with pytest.raises(UserError, match=r"--out .* cannot be written"):
        TraceFile.create(tmp_path / "no" / "trace.json", 0.0)


def test_slices_that_follow_each_other_do_not_overlap(path):
    """However their times are rounded."""
    begins = [100.0]
    trace = TraceFile.create(path, began_at=100.0)
    for number in range(300):
        begins.append(begins[-1] + 0.5 + number * 1.37e-7)
        trace.slice("links", "a to b", "bytes", begins[-2], begins[-1] - begins[-2], {})
    trace.close()
    slices = [e for e in checked(path) if e["ph"] == "X"]
    assert all(a["ts"] + a["dur"] == b["ts"] for a, b in pairwise(slices))
