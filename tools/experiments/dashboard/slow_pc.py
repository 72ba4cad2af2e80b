"""Records what the dashboard sees of a PC that is slowed to a third, and how soon it names it.

    python -m tools.experiments.dashboard.slow_pc --out DIR

Real processes on this machine: a ring of four stages behind emulated home links whose steps take
12 ms (`paced_ring`), users who ask all the time, and `molink dashboard --record` beside them. All
is well, then the steps of one stage take three times as long, then all is well again. From
OUT/slow_pc.jsonl.gz it is then told how long an operator waits for the PC's name: one who was there
before, and one who opens the dashboard at any second of the slow part and has seen nothing of what
was usual.

What stands out (`molink.findings`) was tuned on the recording of `node_loss`, which
has other PCs, another place in the ring and another way of being slow.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from molink.dashboard.model.history import History
from molink.dashboard.recording import DashboardRecording
from molink.errors import UserError
from tools.experiments.dashboard.paced_ring import MODULE, PACE_FILE
from tools.experiments.dashboard.stories import users
from tools.experiments.harness.agents import get_json
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.experiments.harness.processes import MOLINK, running

__all__ = ["NAMING", "main"]

NODES = 4

LINK = "60:10"
"""Of every PC: 60 Mbps up, 10 ms to the next."""

NAMING = ("slow", "pace")
"""Kinds of findings that name a PC as the one to look at."""

OPENED_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What an operator saw who began to look at some moment."""

    named_after_s: float | None
    """Until the slowed PC was named; None: it never was."""
    wrong: tuple[str, ...]
    """Other PCs that were named while it was slow."""


@experiment
@click.option("--steady-s", default=20.0, show_default=True, help="Of each part of the story.")
@click.option("--slow", "stage", default=NODES - 1, show_default=True, help="From 0 on.")
def main(out: Path, steady_s: float, stage: int) -> None:
    """Record the story, and say how soon the PC is found."""
    recording = out / "slow_pc.jsonl.gz"
    if recording.exists():
        raise UserError(f"{recording} exists: give another --out")
    name, began_at_s, ended_at_s = _record(recording, steady_s, stage)
    opened = DashboardRecording.open(recording)
    watched = _sight(opened, opened.times_s[0], began_at_s, ended_at_s, name)
    late = list(_late_sights(opened, began_at_s, ended_at_s, name))
    _write_sights(out, name, began_at_s - opened.times_s[0], watched, late)


def _record(recording: Path, steady_s: float, stage: int) -> tuple[str, float, float]:
    """Let it happen; whose stage was slow, from and to when, in seconds since 1970."""
    words = ("serve", "demo", "--nodes", str(NODES), "--link", LINK, "--port", "0")
    pace = recording.with_name("slow_layer")
    with running(MODULE, *words, environment={PACE_FILE: str(pace)}, quiet=True) as serve:
        url = serve.line("ready")[1].split()[-1]
        slow = get_json(f"{url}/cluster")["stages"][stage]
        watch = ("dashboard", "--url", url, "--record", str(recording))
        with users(url), running(MOLINK, *watch) as dashboard:
            dashboard.line()
            time.sleep(steady_s)
            began_at_s = time.time()
            pace.write_text(str(slow["layers"][0]))
            time.sleep(2 * steady_s)
            ended_at_s = time.time()
            pace.unlink()
            time.sleep(steady_s)
    return slow["node"], began_at_s, ended_at_s


def _late_sights(
    opened: DashboardRecording, began: float, ended: float, name: str
) -> Iterator[Sight]:
    """Of operators who open the dashboard while it is slow, ten seconds before the end at the
    latest."""
    at_s = began
    while at_s <= ended - 10.0:
        yield _sight(opened, at_s, began, ended, name)
        at_s += OPENED_EVERY_S


def _sight(
    opened: DashboardRecording, opened_at_s: float, began: float, ended: float, name: str
) -> Sight:
    """What one sees who opens the dashboard at a time, until the PC is as before."""
    history, wrong, named_after_s = History(), set[str](), None
    waits_from_s = max(opened_at_s, began)
    for index, at_s in enumerate(opened.times_s):
        if not opened_at_s <= at_s <= ended:
            continue
        history.take(opened.observation(index))
        named = {one.subject for one in history.findings if one.kind in NAMING}
        if at_s < waits_from_s:
            continue
        wrong |= named - {name}
        if name in named and named_after_s is None:
            named_after_s = at_s - waits_from_s
    return Sight(named_after_s, tuple(sorted(wrong)))


def _write_sights(out: Path, name: str, began_s: float, watched: Sight, late: list[Sight]) -> None:
    waits = [one.named_after_s for one in late if one.named_after_s is not None]
    figures = {
        "slowed": name,
        "began_s": round(began_s, 1),
        "watched_s": watched.named_after_s,
        "watched_wrong": watched.wrong,
        "opened": len(late),
        "opened_found": len(waits),
        "opened_median_s": statistics.median(waits) if waits else None,
        "opened_longest_s": max(waits, default=None),
        "opened_wrong": sorted({other for one in late for other in one.wrong}),
    }
    show(markdown_table(["slowed to a third", "seen"], [[k, str(v)] for k, v in figures.items()]))
    write_report(out, "slow_pc", figures)


if __name__ == "__main__":
    main()
