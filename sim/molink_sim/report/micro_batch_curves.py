"""Time per token over the number of micro-batches: one panel a ring, one line a number of users.

Columns are round-trip times, rows are stage times. A filled mark is the first number that is within
2 % of the best; a hollow diamond is what the automatic number made of it, at the number that it had
chosen.
"""

from pathlib import Path
from typing import Any

from molink.errors import UserError
from molink_sim.report.heat_map import enough
from molink_sim.report.plots import logarithmic, picture
from molink_sim.report.style import colours, legend
from molink_sim.report.sweep import Parameter, Sweep

__all__ = ["plot_micro_batch_curves"]

FIGURE = "tpot_s.mean"


def plot_micro_batch_curves(path: Path, sweep: Sweep, *, title: str = "") -> None:
    """Draw the runs of a survey.

    Raises:
        UserError: without matplotlib, or if no run has a delay, a stage time, users and a number.
    """
    rtts, stage_times = sorted(sweep.values("rtt_ms")), sorted(sweep.values("stage_ms"))
    users = sweep.values("users")
    if not (rtts and stage_times and users and sweep.line("micro_batches", FIGURE)):
        raise UserError(f"no run has rtt_ms, stage_ms, users, micro_batches and {FIGURE}")
    shades = colours(users)
    cells = [(stage_ms, rtt_ms) for stage_ms in stage_times for rtt_ms in rtts]
    with picture(path, len(cells), title, rows=len(stage_times)) as axes:
        for panel, (stage_ms, rtt_ms) in zip(axes, cells, strict=True):
            for crowd in users:
                runs = sweep.only(rtt_ms=rtt_ms, stage_ms=stage_ms, users=crowd)
                _line(panel, runs, crowd, shades[crowd])
            _label(panel, f"stage {stage_ms:g} ms, round trip {rtt_ms:g} ms")
        for row in range(len(stage_times)):
            axes[row * len(rtts)].set_ylabel("time per token, ms")
        for panel in axes[-len(rtts) :]:
            panel.set_xlabel("micro-batches")
        legend(axes[len(rtts) - 1], "users")


def _line(panel: Any, runs: Sweep, crowd: Parameter, shade: Any) -> None:
    points = runs.line("micro_batches", FIGURE)
    panel.plot(
        [point.x for point in points],
        [1e3 * point.mean for point in points],
        color=shade,
        marker=".",
        markersize=3,
        label=str(crowd),
    )
    if points:
        chosen = enough(points)
        panel.plot(chosen.x, 1e3 * chosen.mean, color=shade, marker="o", markersize=6)
    for run in runs.only(choice="auto").runs:
        at, seconds = run.figure("micro_batches"), run.figure(FIGURE)
        if at is not None and seconds is not None:
            panel.plot(at, 1e3 * seconds, marker="D", markersize=8, color=shade, fillstyle="none")


def _label(panel: Any, title: str) -> None:
    panel.set_title(title, fontsize=9)
    panel.locator_params(axis="x", integer=True)
    logarithmic(panel, "y")
