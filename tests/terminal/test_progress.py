"""What long work shows: words, bars on a terminal, lines in a log now and then, or nothing."""

import io

import pytest
from rich.console import Console

from molink.terminal.amounts import duration_text, progress_text
from molink.terminal.progress import LINE_EVERY_S, WorkProgress


@pytest.mark.parametrize(
    ("done", "total", "per_s", "unit", "text"),
    [
        (12, 64, 0.4, "count", "12 of 64, 0.4 per s, 2 min left"),
        (12, 64, 0.01, "count", "12 of 64, 0.6 per min, 1.4 h left"),
        (12, None, 2.0, "count", "12, 2.0 per s"),
        (0, 64, 0.0, "count", "0 of 64"),
        (64, 64, 2.0, "count", "64 of 64, 2.0 per s"),
        (650e6, 2.6e9, 12.5e6, "bytes", "0.7 of 2.6 GB, 12.5 MB/s, 3 min left"),
        (12e6, 80e6, 0.0, "bytes", "12.0 of 80.0 MB"),
        (0.25, 1.0, 0.01, "share", "25%, 1 min left"),
        (0.25, 1.0, 0.0, "share", "25%"),
    ],
)
def test_words(done, total, per_s, unit, text):
    assert progress_text(done, total, per_s, unit) == text


def test_lengths_of_time():
    assert [duration_text(s) for s in (0, 59, 60, 3599, 5400)] == [
        *("0 s", "59 s", "1 min", "60 min", "1.5 h")
    ]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def log(**options) -> tuple[WorkProgress, io.StringIO, Clock]:
    written, clock = io.StringIO(), Clock()
    console = Console(file=written, width=40)
    return WorkProgress(console=console, clock=clock, **options), written, clock


def test_a_log_gets_a_line_now_and_then():
    progress, written, clock = log(parts="requests", total=100)
    with progress:
        for clock.now in range(1, 71):
            progress.advance()
    assert written.getvalue().splitlines() == [
        "requests: 30 of 100, 1.0 per s, 1 min left",
        "requests: 60 of 100, 1.0 per s, 40 s left",
    ]


def test_short_work_and_quiet_work_write_nothing():
    progress, written, clock = log(parts="requests", total=100)
    with progress:
        clock.now = LINE_EVERY_S - 1
        progress.advance()
    assert not written.getvalue()
    progress, written, clock = log(parts="requests", total=100, quiet=True)
    with progress:
        clock.now = 10 * LINE_EVERY_S
        progress.advance()
    assert not written.getvalue()


def test_a_part_may_go_on_to_something_else():
    progress, written, clock = log(parts="stage 0 starts", total=1.0, unit="share")
    with progress:
        clock.now = 100.0
        progress.rename("stage 0 loads")
        progress.reach(0.5)
    assert written.getvalue() == "stage 0 loads: 50%, 2 min left\n"


def test_several_parts_share_a_line():
    progress, written, clock = log(parts=["stage 0", "stage [1]"], total=1.0, unit="share")
    with progress:
        clock.now = 100.0
        progress.reach(0.5, 1)
    assert written.getvalue() == "stage 0: 0%; stage [1]: 50%, 2 min left\n"


def test_a_total_that_comes_later():
    progress, written, clock = log(parts="requests")
    with progress:
        clock.now = LINE_EVERY_S
        progress.expect(8)
    assert written.getvalue() == "requests: 0 of 8\n"


def test_a_terminal_gets_a_bar_and_no_lines():
    written, clock = io.StringIO(), Clock()
    console = Console(file=written, width=120, force_terminal=True)
    with WorkProgress("requests", 8, console=console, clock=clock) as progress:
        clock.now = 40.0
        progress.advance(4)
    assert "4 of 8, 0.1 per s, 40 s left" in written.getvalue()
    assert "requests:" not in written.getvalue()
