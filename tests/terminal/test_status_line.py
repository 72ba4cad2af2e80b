"""What a command that stays running shows, and that it outlives its terminal."""

import asyncio
import io
import logging
import re
import sys

import pytest
from rich.console import Console

from molink.cli.cluster_status import show_news
from molink.coordinator.reports.cluster_news import ClusterNews
from molink.logs import set_up_logs
from molink.report.cluster import ClusterReport
from molink.report.plain import from_plain
from molink.serving.events import EventLedger
from molink.tasks import background_tasks
from molink.terminal.progress import WorkProgress
from molink.terminal.status_line import StatusLine
from tests.nasty_text import OBEYED

NASTY = "\x1b]0;owned\x1b\\ \x1b[2J \x9b2J attic\u202e [red]is[/red] here\r\nnow"


class Screen(io.StringIO):
    """A terminal."""

    text = property(io.StringIO.getvalue)

    def isatty(self):
        return True


class Gone(io.StringIO):
    """A terminal that was closed, or a log on a full disk."""

    def __init__(self, error):
        super().__init__()
        self.error = error
        self.attempts = 0

    def write(self, text):
        self.attempts += 1
        raise self.error

    def flush(self):
        raise self.error

    def isatty(self):
        return True


GONE = [
    OSError(5, "Input/output error"),
    OSError(28, "No space left on device"),
    ValueError("I/O operation on closed file"),
    UnicodeEncodeError("ascii", "é", 0, 1, "ordinal not in range(128)"),
]


@pytest.mark.parametrize("error", GONE, ids=repr)
def test_a_terminal_that_is_gone_ends_nothing(error, monkeypatch):
    monkeypatch.setattr("sys.stdout", Gone(error))
    gone = Gone(error)
    with StatusLine(Console(file=gone, force_terminal=True)) as shown:
        shown.event("a node came")
        shown.status("serving")
        shown.status("loading")
        shown.hint("type this")
        shown.result("ready")
    assert gone.attempts, "it was written to, and refused"


@pytest.mark.parametrize("error", GONE, ids=repr)
def test_a_bar_that_cannot_be_drawn_ends_nothing_either(error, monkeypatch):
    gone = Gone(error)
    monkeypatch.setattr("sys.stderr", gone)
    with WorkProgress("weights", 1.0, "share") as bar:
        bar.reach(0.5)
    assert gone.attempts


def test_what_is_shown_obeys_nobody(capsys):
    written = io.StringIO()
    shown = StatusLine(Console(file=written, width=200))
    shown.event(NASTY)
    shown.result(NASTY)
    for text in (written.getvalue(), capsys.readouterr().out):
        assert not set(text) & OBEYED - {"\n"}
        assert text.count("\n") == 1
        assert "[red]is[/red] here now" in text


def test_the_present_state_obeys_nobody():
    written = io.StringIO()
    with StatusLine(Console(file=written, width=200, force_terminal=True)) as shown:
        written.truncate(0)
        shown.status(NASTY)
        text = written.getvalue()
    for sequence in ("\x1b]0", "\x1b[2J", "\x9b", "\u202e"):
        assert sequence not in text
    assert "[red]is[/red] here" in text


def test_what_is_quiet_shows_events_and_no_state():
    written = io.StringIO()
    console = Console(file=written, width=200, force_terminal=True)
    with StatusLine(console, quiet=True) as shown:
        shown.status("Loading: 3 %")
        shown.event("anna is here")
    assert "Loading" not in written.getvalue() and "anna is here" in written.getvalue()


def test_a_log_gets_what_happened_and_nothing_that_moves(capsys):
    written = io.StringIO()
    with StatusLine(Console(file=written, width=40)) as shown:
        shown.status("Loading: 3 %")
        shown.event("anna is here and measures what it can do, which takes some time")
        shown.result("ready http://a:1")
    assert "Loading" not in written.getvalue()
    assert written.getvalue()[2] == ":" and written.getvalue().count("\n") == 1
    assert capsys.readouterr().out == "ready http://a:1\n"


def test_a_terminal_shows_how_it_is_now():
    written = io.StringIO()
    with StatusLine(Console(file=written, width=40, force_terminal=True)) as shown:
        shown.status("Loading: 3 %")
        shown.status("Loading: 3 %")
        assert written.getvalue().count("Loading: 3 %") == 1


async def test_the_terminal_tells_what_the_ledger_tells(monkeypatch):
    written, events = io.StringIO(), EventLedger()
    report = from_plain(ClusterReport, {"model": "demo"})
    news = ClusterNews(lambda: report, events)
    events.add("node_joined", "anna is here", node="anna")
    async with background_tasks() as tasks:
        shown = StatusLine(Console(file=written, width=200))
        tasks.create_task(show_news(news, shown, after_start=True))
        await asyncio.sleep(0)
        events.add("request_moved", "request 1 leaves ring 0", ring=0)
        events.add("node_lost", "anna is\x1b[2J gone", node="anna")
        while "gone" not in written.getvalue():  # noqa: ASYNC110 - it is shown by itself
            await asyncio.sleep(0)
    lines = [line.split(" ", 1)[1] for line in written.getvalue().splitlines()]
    assert lines == ["anna is\N{REPLACEMENT CHARACTER}[2J gone"]


def test_a_log_line_stands_above_the_status_line(monkeypatch):
    """Not behind its last word, on the same line."""
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    set_up_logs("text", sys.stderr)
    with StatusLine(Console(file=screen, force_terminal=True, width=60)) as shown:
        shown.status("Starting: some seconds.")
        logging.getLogger("molink").warning("the broker runs as root")
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", one) for one in re.split("[\r\n]", screen.text)]
    assert "the broker runs as root" in lines
