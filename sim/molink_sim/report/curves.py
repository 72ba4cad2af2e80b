"""Lines over a parameter, and the shares of requests that had to wait so long."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from molink.errors import UserError
from molink_sim.outcome import Outcome
from molink_sim.report.plots import colours, cumulative, legend, logarithmic, picture
from molink_sim.report.summary import Point, Sweep, samples
from molink_sim.report.tables import figure_label

AXIS_NAMES = {
    "bandwidth_mbps": "bandwidth, Mbps",
    "latency_ms": "one-way latency, ms",
    "rate_per_s": "requests per second",
}

FIGURES = ("ttft_s.mean", "tpot_s.mean", "latency_s.mean")

LOGARITHMIC_FROM = 8.0
"""An axis whose largest value is so many times its smallest is logarithmic."""

CDF_POINTS_MAX = 2000
"""Points of one line: more than the picture has pixels."""

CDF_NAMES = {
    "ttft_s": "time to first token, s",
    "tpot_s": "time per output token, s",
    "latency_s": "whole answer, s",
}


def plot_curves(
    path: Path,
    sweep: Sweep,
    x: str,
    *,
    published: Sweep | None = None,
    title: str = "",
) -> None:
    """One panel a figure, one line a system, over the parameter `x`.

    Runs that share a point (seeds) are averaged, with a band from the smallest to the largest.
    `published` holds other people's values: dashed lines with hollow marks, in the same colours.

    Raises:
        UserError: without matplotlib, or if no run has the parameter and a figure.
    """
    names = sweep.values("system") + (published.values("system") if published else [])
    shades = colours(list(dict.fromkeys(names)))
    with picture(path, len(FIGURES), title) as axes:
        for panel, figure in zip(axes, FIGURES, strict=True):
            drawn = [
                _line(panel, runs.only(system=name).line(x, figure), name, shades[name], style)
                for runs, style in ((sweep, "-"), (published or Sweep(()), "--"))
                for name in runs.values("system")
            ]
            _label(panel, x, figure, [point for points in drawn for point in points])
        legend(axes[-1])


def _line(panel: Any, points: Sequence[Point], name: Any, shade: Any, style: str) -> list[Point]:
    xs, means = [one.x for one in points], [one.mean for one in points]
    panel.plot(
        xs,
        means,
        color=shade,
        linestyle=style,
        marker="o",
        markersize=4,
        markerfacecolor=shade if style == "-" else "white",
        label=str(name) if style == "-" else f"{name}, published",
    )
    if any(one.low < one.high for one in points):
        panel.fill_between(
            xs, [one.low for one in points], [one.high for one in points], color=shade, alpha=0.15
        )
    return list(points)


def _label(panel: Any, x: str, figure: str, points: Sequence[Point]) -> None:
    if not points:
        raise UserError(f"no run has both {x} and {figure}: there is nothing to draw")
    panel.set(xlabel=AXIS_NAMES.get(x, x.replace("_", " ")), ylabel=figure_label(figure))
    _scale(panel, "x", [one.x for one in points])
    _scale(panel, "y", [value for one in points for value in (one.low, one.high)])


def _scale(panel: Any, which: str, values: Sequence[float]) -> None:
    if min(values) > 0 and max(values) >= LOGARITHMIC_FROM * min(values):
        logarithmic(panel, which)
    elif which == "y":
        panel.set_ylim(bottom=min(0.0, *values))


def plot_cdfs(path: Path, outcomes: Mapping[str, Outcome], *, title: str = "") -> None:
    """The share of requests up to each time, one line an outcome.

    Raises:
        UserError: without matplotlib.
    """
    shades = colours(list(outcomes))
    values = {name: samples(outcome) for name, outcome in outcomes.items()}
    with picture(path, len(CDF_NAMES), title) as axes:
        for panel, (key, label) in zip(axes, CDF_NAMES.items(), strict=True):
            lines = {name: _thinned(getattr(one, key)) for name, one in values.items()}
            for name, line in lines.items():
                if line:
                    cumulative(panel, line, name, shades[name])
            panel.set(xlabel=label, ylabel="share of requests", ylim=(0, 1.02))
            together = [value for line in lines.values() for value in line]
            if together:
                _scale(panel, "x", together)
        if len(outcomes) > 1:
            legend(axes[-1])


def _thinned(values: Sequence[float]) -> list[float]:
    """Evenly spaced quantiles of them."""
    ordered = sorted(values)
    step = -(-len(ordered) // CDF_POINTS_MAX) or 1
    return ordered[step - 1 :: step] if step > 1 else ordered
