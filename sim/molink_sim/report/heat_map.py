"""Where extra micro-batches stop paying, over round-trip time, stage time and users.

A ring of three stages is busy with three micro-batches only if links cost no time; while one
travels, another could be computed. How many that takes depends on how long a round is against the
slowest stage, and more of them make each one smaller, which costs once the weights are read more
often than needed. A cell tells the smallest number whose figure is within 2 % of the best, and what
that gains over the smallest number that was tried.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molink.errors import UserError
from molink_sim.report.curves import AXIS_NAMES
from molink_sim.report.plots import picture
from molink_sim.report.sweep import Parameter, Point, Sweep

__all__ = ["enough", "plot_micro_batches"]

PAYING_SHARE = 0.02
"""Less is not worth a further micro-batch."""

SHADES = "YlGnBu"
PALE_UNTIL = 0.6
"""Of the scale: on darker cells the text is white."""

_Cells = dict[tuple[int, int], tuple[Point, Point]]
"""Of one panel, by row and column: the first number that was tried, and the one that is enough."""


def enough(points: list[Point]) -> Point:
    """Of a figure over the number of micro-batches: the first that is within 2 % of the best."""
    best = min(one.mean for one in points)
    return next(one for one in points if one.mean <= best * (1 + PAYING_SHARE))


def plot_micro_batches(
    path: Path,
    sweep: Sweep,
    *,
    across: str = "rtt_ms",
    down: str = "stage_ms",
    panels: str = "users",
    count: str = "micro_batches",
    figure: str = "tpot_s.mean",
    title: str = "",
) -> None:
    """One panel a value of `panels`, one cell a pair of values of `across` and `down`.

    Raises:
        UserError: without matplotlib, or if no run has all four parameters and the figure.
    """
    x, y = (_Axis(name, sorted(sweep.values(name))) for name in (across, down))
    cells = {
        panel: _cells(sweep.only(**{panels: panel}), x, y, count, figure)
        for panel in sweep.values(panels)
    }
    counts = [chosen.x for one in cells.values() for _, chosen in one.values()]
    if not counts:
        raise UserError(f"no run has {panels}, {down}, {across}, {count} and {figure}")
    with picture(path, len(cells), title) as axes:
        for axis, (panel, found) in zip(axes, cells.items(), strict=True):
            _panel(axis, found, (len(y.values), len(x.values)), (min(counts), max(counts)))
            axis.set_xticks(range(len(x.values)), [f"{value:g}" for value in x.values])
            axis.set_yticks(range(len(y.values)), [f"{value:g}" for value in y.values])
            axis.set(xlabel=AXIS_NAMES.get(across, across), ylabel=AXIS_NAMES.get(down, down))
            axis.set_title(f"{panel} {panels}", fontsize=9)


@dataclass(frozen=True, slots=True)
class _Axis:
    """A parameter and its values, in order."""

    name: str
    values: list[Parameter]


def _cells(sweep: Sweep, x: _Axis, y: _Axis, count: str, figure: str) -> _Cells:
    lines = {
        (row, column): sweep.only(**{y.name: down, x.name: across}).line(count, figure)
        for row, down in enumerate(y.values)
        for column, across in enumerate(x.values)
    }
    return {at: (points[0], enough(points)) for at, points in lines.items() if points}


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
