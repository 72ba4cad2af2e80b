"""Draws the pictures of docs/dashboard.md from recordings.

    python -m tools.experiments.dashboard.pictures --out DIR

Each picture is a moment that is found in the recording by what it shows (the first look at which a
PC stands out as slow, the first without one), drawn by the dashboard itself on a terminal of a
fixed size, in UTC. So the same recording gives the same bytes, and a test compares them with those
in docs/images: a change of the screen shows there.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import partialmethod
from pathlib import Path
from unittest.mock import patch

import click
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme

from molink.dashboard.model.history import History
from molink.dashboard.pages.lines import UNICODE
from molink.dashboard.recording import DashboardRecording, DashboardReplay
from molink.dashboard.screen.app import DashboardApp
from molink.dashboard.sources import ReplaySource
from molink.errors import UserError
from tools.experiments.dashboard.stories import USERS
from tools.experiments.harness.experiment import experiment

__all__ = ["PICTURES", "Picture", "draw", "main"]

FONT = re.compile(r"\s*@font-face \{.*?\}\n", re.DOTALL)
"""A font that a browser would fetch from elsewhere; without it the reader's own is used."""

STEADY_S = 12.0
"""After the beginning, when the sparklines have something to show."""

REFRESHES = 4
"""Of the screen after the last key: the last line tells what the others left it."""

Moment = Callable[[DashboardRecording], int]
"""Number of the look that a picture shows."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Picture of one moment, after keys were pressed."""

    moment: Moment
    keys: Sequence[str] = ()
    size: tuple[int, int] = (100, 28)
    recording: str = "node_loss"
    """Script that has made it."""

    theme: TerminalTheme = SVG_EXPORT_THEME
    """Colours of the terminal; Rich's default is one with a white background."""


def _first(what: Callable[[History], bool], after: Moment | None = None) -> Moment:
    """The first look, at or after another, of which this is true."""

    def find(recording: DashboardRecording) -> int:
        replay = DashboardReplay(recording, after(recording) if after is not None else 0)
        while not what(replay.history):
            if replay.is_at_end:
                raise UserError("the recording lacks a moment: record it again")
            replay.step(1)
        return replay.index

    return find


def _later(moment: Moment, looks: int) -> Moment:
    return lambda recording: min(moment(recording) + looks, len(recording.times_s) - 1)


def _has(kind: str) -> Callable[[History], bool]:
    return lambda history: any(one.kind == kind for one in history.findings)


def _serves(history: History) -> bool:
    return not history.state.unready_reason and len(history.tokens_per_s()) > 0


def _moved(history: History) -> bool:
    """Whether a request that has left its ring is seen with its end."""
    return any(one.moves and not one.is_live for one in history.requests or ())


STEADY = _later(_first(_serves), int(2 * STEADY_S))
SLOW = _later(_first(_has("slow"), STEADY), 8)
LOST = _later(_first(_has("node_lost"), SLOW), 4)
RECOVERED = _later(_first(_serves, LOST), 12)
MOVED = _first(_moved, LOST)
SLOWED = _later(_first(_has("slow")), 30)

PICTURES: Mapping[str, Picture] = {
    "ring": Picture(STEADY),
    "slow": Picture(SLOW, size=(80, 24)),
    "lost": Picture(LOST),
    "recovered": Picture(RECOVERED),
    "nodes": Picture(SLOW, ("2",)),
    "requests": Picture(RECOVERED, ("3",)),
    "events": Picture(RECOVERED, ("5",)),
    "keys": Picture(STEADY, ("question_mark",)),
    "wide": Picture(SLOW, size=(120, 40)),
    "alerts": Picture(LOST, ("7",), (80, 24)),
    "light": Picture(LOST, size=(80, 24), theme=DEFAULT_TERMINAL_THEME),
    "found": Picture(_later(_first(_has("slow")), 8), (), (80, 24), "slow_pc"),
    "request": Picture(SLOWED, ("3", *["down"] * USERS, "enter"), (80, 24), "slow_pc"),
}


async def draw(recording: DashboardRecording, picture: Picture, name: str) -> str:
    """The picture as SVG."""
    source = ReplaySource(DashboardReplay(recording, picture.moment(recording)), UTC, playing=False)
    app = DashboardApp(source, UNICODE, None, UTC)
    async with app.run_test(size=picture.size) as pilot:
        for key in picture.keys:
            await pilot.press(key)
        for _ in range(REFRESHES):
            await pilot.pause()
        export_svg = partialmethod(Console.export_svg, theme=picture.theme)
        with patch.object(Console, "export_svg", export_svg):
            svg = app.export_screenshot(title=f"molink dashboard: {name}")
        return FONT.sub("", svg)


@experiment
@click.option(
    "--recordings",
    type=click.Path(file_okay=False, path_type=Path),
    default="docs/images",
    show_default=True,
    help="Folder with those of node_loss and slow_pc.",
)
def main(out: Path, recordings: Path) -> None:
    """Draw all of them into OUT/dashboard-NAME.svg."""
    for name, picture in PICTURES.items():
        opened = DashboardRecording.open(recordings / f"{picture.recording}.jsonl.gz")
        svg = asyncio.run(draw(opened, picture, name))
        (out / f"dashboard-{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
