"""Gaps between tokens as panels of a picture: over time, and the share up to each length.

Several calls may draw into one panel, so whoever has drawn all makes its axis logarithmic.
"""

from collections.abc import Mapping
from typing import Any

from molink_sim.report.plots import colour, cumulative
from tools.experiments.harness.rounds import Runs

__all__ = ["gap_shares", "gaps_over_time", "last_rounds"]

Samples = Mapping[str, Mapping[str, Any]]
"""Of each policy what contention kept of one run: `gaps_ms` as (s, ms), `loaded_ms`."""

SMALL = 8
"""Points of a legend's letters."""


def last_rounds(runs: Runs) -> Samples:
    """The samples that are drawn: more rounds would lie on top of one another."""
    return {name: measured[-1].samples for name, measured in runs.items()}


def gaps_over_time(axes: Any, samples: Samples, quiet_s: float) -> None:
    """One dot for each gap; long prompts come from `quiet_s` on."""
    for number, (name, seen) in enumerate(samples.items()):
        times, gaps = zip(*sorted(seen["gaps_ms"]), strict=True)
        axes.plot(times, gaps, ".", ms=2, label=name, color=colour(name, number))
    axes.axvline(quiet_s, color="#444444", lw=0.8, ls="--")
    axes.set(xlabel="s (prompts from the dashed line on)", ylabel="gap, ms")
    axes.legend(fontsize=SMALL, markerscale=4)


def gap_shares(axes: Any, samples: Samples, kind: str = "", line: str = "-") -> None:
    """Cumulative, of the gaps with prompts; `kind` and `line` tell apart what is drawn over."""
    for number, (name, seen) in enumerate(samples.items()):
        cumulative(axes, seen["loaded_ms"], f"{name}{kind}", colour(name, number), line)
    axes.set(xlabel="gap with prompts, ms", ylabel="share of gaps")
    axes.legend(fontsize=SMALL)
