"""The page of one run: what users felt, how busy everything was, some seconds of it as bars."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from molink_sim.outcome import Outcome
from molink_sim.report.curves import plot_cdfs
from molink_sim.report.gantt import plot_gantt
from molink_sim.report.page import Picture, Section, write_page
from molink_sim.report.summary import summary
from molink_sim.report.tables import Table, busy_table, spread_table, totals

__all__ = ["write_run_page"]

WINDOW_S = 2.0
"""Of the Gantt picture when nobody chose one: about ten rounds of a home ring."""


def write_run_page(
    path: Path,
    outcome: Outcome,
    *,
    title: str,
    settings: Mapping[str, object],
    window_s: tuple[float, float] | None = None,
) -> None:
    """Write the page of a run; with a timeline, `window_s` of it is drawn (None: in its middle).

    Raises:
        UserError: without matplotlib, and for a window in which nothing happened.
    """
    found = summary(outcome)
    rows = [[name, str(one)] for name, one in settings.items()]
    told = Table("", ["setting", "value"], rows, numbers=False)
    with TemporaryDirectory() as folder:
        times = Path(folder, "times.png")
        plot_cdfs(times, {"": outcome})
        sections = [
            Section(
                "What users felt",
                totals(found),
                [spread_table(found, "")],
                [Picture(times, "The share of requests that had to wait no longer than so.")],
            ),
            Section("How busy it was", "", [busy_table(found, "")]),
            *_gantt(Path(folder, "gantt.png"), outcome, window_s),
            Section("What was run", "", [told]),
        ]
        write_page(path, title, sections)


def _gantt(path: Path, outcome: Outcome, window_s: tuple[float, float] | None) -> list[Section]:
    if not outcome.timeline:
        return []
    start_s, end_s = window_s or _middle(outcome)
    plot_gantt(path, outcome.timeline, start_s, end_s)
    caption = f"Stages and links from {start_s:g} s to {end_s:g} s, head to tail."
    return [Section("Some seconds of it", pictures=[Picture(path, caption)])]


def _middle(outcome: Outcome) -> tuple[float, float]:
    """Around the bar that is in the middle of the timeline, so that something is seen."""
    bar = outcome.timeline[len(outcome.timeline) // 2]
    start_s = max(0.0, round(bar.start_s - WINDOW_S / 2, 1))
    return start_s, start_s + WINDOW_S
