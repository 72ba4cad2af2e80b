"""Logs as lines or as JSON, and the options of what is left for programs that watch."""

import io
import json
import logging
import sys

import pytest

from molink.cli.watching import OPERATOR_LOG, Watching, log_request
from molink.errors import UserError
from molink.logs import set_up_logs
from molink.serving.timeline import ARRIVAL, Arrival, RequestTimeline
from molink.terminal.status_line import StatusLine

OTLP_PACKAGE = "opentelemetry.exporter.otlp.proto.http.metric_exporter"

NASTY = "what \x1b[2J came\nfrom afar"


@pytest.fixture
def logs():
    """A function that sets up logs and gives what they are written to."""
    root, molink = logging.getLogger(), logging.getLogger("molink")
    before = (root.handlers[:], root.level, molink.level)

    def set_up(log_format):
        written = io.StringIO()
        set_up_logs(log_format, written)
        return written

    yield set_up
    root.handlers[:], molink_level = before[0], before[2]
    root.setLevel(before[1])
    molink.setLevel(molink_level)


@pytest.fixture
def in_request():
    token = ARRIVAL.set(Arrival("my-id"))
    yield
    ARRIVAL.reset(token)


def records(written):
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_lines_bear_the_id_of_the_request_and_nothing_a_terminal_obeys(logs, in_request):
    written = logs("text")
    logging.getLogger("molink.api").warning("failed on %s", NASTY)
    logging.getLogger("molink.api").info("not for people")
    assert written.getvalue().startswith("[my-id] failed on what \N{REPLACEMENT CHARACTER}[2J")
    assert "not for people" not in written.getvalue()


def test_lines_outside_of_a_request_are_as_before(logs):
    written = logs("text")
    logging.getLogger("molink.control").warning("the disk is full")
    assert written.getvalue() == "the disk is full\n"


def test_json_is_one_object_a_line(logs, in_request):
    written = logs("json")
    try:
        raise ValueError(NASTY)
    except ValueError:
        logging.getLogger("molink.api").exception("failed on %s", NASTY)
    (record,) = records(written)
    assert (record["level"], record["logger"], record["request_id"]) == (
        "error",
        "molink.api",
        "my-id",
    )
    assert record["message"] == f"failed on {NASTY}" and "ValueError" in record["exception"]
    assert record["time"].endswith("+00:00") and "\x1b" not in written.getvalue()


def test_a_request_that_has_ended_is_a_record_of_json_only(logs):
    timeline = RequestTimeline("m", 9, 4, arrival=Arrival("r", at=1.0))
    timeline.submitted(2, (), 1.5)
    timeline.tokens_came(1, 3.0)
    timeline.finished("length", 3.0)
    lines = logs("text")
    log_request(timeline)
    assert lines.getvalue() == ""
    written = logs("json")
    log_request(timeline)
    (record,) = records(written)
    assert (record["request_id"], record["finish_reason"]) == ("r", "length")
    assert (record["queue_s"], record["prefill_s"], record["rings"]) == (0.5, 1.5, [2])


def test_what_the_operator_is_told_becomes_records(logs, capsys):
    written = logs("json")
    with StatusLine(log=OPERATOR_LOG) as shown:
        shown.event("anna is gone", kind="node_lost", node="anna", ring=None)
        shown.hint("Type that line,\nwhole.")
        shown.status("Loading: 3 %")
        shown.result("ready http://a:1")
    event, hint = records(written)
    assert (event["message"], event["kind"], event["node"]) == ("anna is gone", "node_lost", "anna")
    assert hint["message"] == "Type that line, whole."
    assert capsys.readouterr().out == "ready http://a:1\n"


@pytest.mark.parametrize("url", ["localhost:4318", "ftp://a", "http://", ""])
def test_an_otlp_url_that_is_none_is_refused(url):
    with pytest.raises(UserError, match="--otlp takes a URL such as"):
        Watching(otlp=url)


def test_without_its_packages_otlp_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "molink.api.metrics.otlp", raising=False)
    monkeypatch.setitem(sys.modules, OTLP_PACKAGE, None)
    with pytest.raises(UserError, match=r"pip install 'molink\[otlp\]'"):
        Watching(otlp="http://127.0.0.1:4318")
