"""Heat map and curves of where extra micro-batches stop paying.

A ring of three stages is busy with three micro-batches only if links cost no time; while one
travels, another could be computed. How many that takes depends on how long a round is against the
slowest stage, and more of them make each one smaller, which costs once the weights are read more
often than needed. A cell of the heat map tells the smallest number whose figure is within 2 % of
the best, and what that gains over the smallest number that was tried.

The curves show time per token over the number: one panel a ring, one line a number of users.
Columns are round-trip times, rows are stage times. A filled mark is the first number that is within
2 % of the best; a hollow diamond is what the automatic number made of it, at the number that it had
chosen.
"""

from pathlib import Path
from typing import Any

from molink.errors import UserError
from molink_sim.report.plots import colours, legend, logarithmic, picture
from molink_sim.report.summary import Parameter, Point, Sweep

FIGURE = "tpot_s.mean"

NOTHING_TO_DRAW = f"no run has rtt_ms, stage_ms, users, micro_batches and {FIGURE}"

PAYING_SHARE = 0.02
"""Share of a round below which no further micro-batch is worth it."""

SHADES = "YlGnBu"
PALE_UNTIL = 0.6
"""Depth on the scale from which on the text is white, as cells are dark."""

_Cells = dict[tuple[int, int], tuple[Point, Point]]
"""Panels by row and column: the first number that was tried, and the one that suffices."""


def fewest_near_best(points: list[Point]) -> Point:
    """The first number of micro-batches whose figure is within 2 % of the best."""
    best = min(one.mean for one in points)
    return next(one for one in points if one.mean <= best * (1 + PAYING_SHARE))


def plot_micro_batches(path: Path, sweep: Sweep, *, title: str = "") -> None:
    """One panel a number of users, one cell a pair of round-trip time and stage time.

    Raises:
        UserError: without matplotlib, or if no run has a delay, a stage time, users and a number.
    """
    rtts, stage_times = sorted(sweep.values("rtt_ms")), sorted(sweep.values("stage_ms"))
    cells = {
        users: _cells(sweep.only(users=users), rtts, stage_times) for users in sweep.values("users")
    }
    counts = [chosen.x for one in cells.values() for _, chosen in one.values()]
    if not counts:
        raise UserError(NOTHING_TO_DRAW)
    with picture(path, len(cells), title) as axes:
        for axis, (users, found) in zip(axes, cells.items(), strict=True):
            _panel(axis, found, (len(stage_times), len(rtts)), (min(counts), max(counts)))
            axis.set_xticks(range(len(rtts)), [f"{value:g}" for value in rtts])
            axis.set_yticks(range(len(stage_times)), [f"{value:g}" for value in stage_times])
            axis.set(xlabel="round-trip time, ms", ylabel="stage time, ms")
            axis.set_title(f"{users} users", fontsize=9)


def _cells(sweep: Sweep, rtts: list[Parameter], stage_times: list[Parameter]) -> _Cells:
    lines = {
        (row, column): sweep.only(stage_ms=stage_ms, rtt_ms=rtt_ms).line("micro_batches", FIGURE)
        for row, stage_ms in enumerate(stage_times)
        for column, rtt_ms in enumerate(rtts)
    }
    return {at: (points[0], fewest_near_best(points)) for at, points in lines.items() if points}


def _panel(
    axis: Any,
    cells: _Cells,
    shape: tuple[int, int],
    limits: tuple[float, float],
) -> None:
    nothing = float("nan")
    values = [[nothing] * shape[1] for _ in range(shape[0])]
    for (row, column), (_, chosen) in cells.items():
        values[row][column] = chosen.x
    axis.imshow(values, cmap=SHADES, vmin=limits[0], vmax=limits[1], aspect="auto", origin="lower")
    axis.grid(visible=False)
    for (row, column), (first, chosen) in cells.items():
        axis.text(
            column,
            row,
            _words(first, chosen),
            ha="center",
            va="center",
            fontsize=8,
            color="black" if _depth(chosen.x, limits) < PALE_UNTIL else "white",
        )


def _words(first: Point, chosen: Point) -> str:
    gain = 1 - chosen.mean / first.mean if first.mean else 0.0
    return f"{chosen.x:g}\n−{gain:.0%}" if chosen.x > first.x else f"{chosen.x:g}"


def _depth(value: float, limits: tuple[float, float]) -> float:
    return (value - limits[0]) / (limits[1] - limits[0] or 1.0)


def plot_micro_batch_curves(path: Path, sweep: Sweep, *, title: str = "") -> None:
    """Draw one panel a ring, one line a number of users.

    Raises:
        UserError: without matplotlib, or if no run has a delay, a stage time, users and a number.
    """
    rtts, stage_times = sorted(sweep.values("rtt_ms")), sorted(sweep.values("stage_ms"))
    users = sweep.values("users")
    if not (rtts and stage_times and users and sweep.line("micro_batches", FIGURE)):
        raise UserError(NOTHING_TO_DRAW)
    shades = colours(users)
    cells = [(stage_ms, rtt_ms) for stage_ms in stage_times for rtt_ms in rtts]
    with picture(path, len(cells), title, rows=len(stage_times)) as axes:
        for panel, (stage_ms, rtt_ms) in zip(axes, cells, strict=True):
            for crowd in users:
                runs = sweep.only(rtt_ms=rtt_ms, stage_ms=stage_ms, users=crowd)
                _line(panel, runs, crowd, shades[crowd])
            _label_ring(panel, f"stage {stage_ms:g} ms, round trip {rtt_ms:g} ms")
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
        chosen = fewest_near_best(points)
        panel.plot(chosen.x, 1e3 * chosen.mean, color=shade, marker="o", markersize=6)
    for run in runs.only(choice="auto").runs:
        at, seconds = run.figure("micro_batches"), run.figure(FIGURE)
        if at is not None and seconds is not None:
            panel.plot(at, 1e3 * seconds, marker="D", markersize=8, color=shade, fillstyle="none")


def _label_ring(panel: Any, title: str) -> None:
    panel.set_title(title, fontsize=9)
    panel.locator_params(axis="x", integer=True)
    logarithmic(panel, "y")
