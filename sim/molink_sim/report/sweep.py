"""Many runs, each with what it was made with: what curves, heat maps and tables are drawn from.

A sweep is a flat list and not a grid: runs may be missing, several seeds may share a point, and
published values stand beside simulated ones as runs of another `system`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Parameter", "Point", "Run", "Sweep"]

Parameter = str | int | float


@dataclass(frozen=True, slots=True)
class Run:
    """Parameters and summary of one run."""

    parameters: Mapping[str, Parameter]
    summary: Mapping[str, Any]
    """As `molink_sim.report.summary` makes it, or a part of that."""

    def figure(self, name: str) -> float | None:
        """A number of the summary by its path, like `ttft_s.mean`; None where there is none."""
        value: Any = self.summary
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return None if value is None else float(value)


@dataclass(frozen=True, slots=True)
class Point:
    """A figure at one value of a parameter, over all runs that have it (several seeds)."""

    x: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """Runs in the order in which they were made."""

    runs: Sequence[Run]

    def values(self, parameter: str) -> list[Parameter]:
        """Those that occur, in the order in which they first do."""
        found = (run.parameters[parameter] for run in self.runs if parameter in run.parameters)
        return list(dict.fromkeys(found))

    def only(self, **wanted: Parameter) -> "Sweep":
        """The runs with these parameters."""
        return Sweep([run for run in self.runs if wanted.items() <= dict(run.parameters).items()])

    def line(self, x: str, figure: str) -> list[Point]:
        """A figure over a numeric parameter, ascending; runs without the figure are left out."""
        found: dict[float, list[float]] = {}
        for run in self.runs:
            value = run.figure(figure)
            if value is not None and x in run.parameters:
                found.setdefault(float(run.parameters[x]), []).append(value)
        return [Point(at, sum(v) / len(v), min(v), max(v)) for at, v in sorted(found.items())]

    def as_json(self) -> list[dict[str, Any]]:
        """Parameters and summary of every run, ready for `to_json`."""
        return [{"parameters": dict(r.parameters), "summary": dict(r.summary)} for r in self.runs]
