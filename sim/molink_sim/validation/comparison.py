"""Simulated against real: each figure of both, how far they are apart, and whether that will do."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from molink.workload.figures import ALL, COLUMNS, TIMES, Figures, SeenRequest, figures_of

__all__ = ["ERROR_MAX", "Comparison", "Figure", "compare_figures"]

ERROR_MAX = 0.15
"""Of the means over all requests: what a forecast must be good to for a decision about a ring. Two
rounds on one machine differ by up to a third of it."""

JUDGED = "mean"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, twice."""

    load: str
    time: str
    """`ttft_s` or `tpot_s`."""
    column: str
    """`mean`, `p50` or `p95`."""
    real_s: float
    """The median of the rounds."""
    simulated_s: float

    @property
    def error(self) -> float:
        """Of the simulated, in shares of the real: above 0 when the simulator is too slow."""
        return self.simulated_s / self.real_s - 1

    @property
    def is_judged(self) -> bool:
        """Whether the verdict rests on it."""
        return self.load == ALL and self.column == JUDGED

    @property
    def passes(self) -> bool:
        """Whether it is near enough."""
        return abs(self.error) <= ERROR_MAX


@dataclass(frozen=True, slots=True)
class Comparison:
    """All figures of a scenario."""

    figures: tuple[Figure, ...]

    @property
    def passes(self) -> bool:
        """Whether every judged figure does."""
        return all(figure.passes for figure in self.figures if figure.is_judged)


def compare_figures(
    rounds: Sequence[Sequence[SeenRequest]], simulated: Sequence[SeenRequest]
) -> Comparison:
    """Medians of the real rounds beside the simulated run."""
    real, ours = [figures_of(one) for one in rounds], figures_of(simulated)
    found = []
    for load in ours:
        for time in TIMES:
            for column in COLUMNS:
                seconds = ours[load][time][column]
                if seconds is not None:
                    measured_s = statistics.median(_value(one, load, time, column) for one in real)
                    found.append(Figure(load, time, column, measured_s, seconds))
    return Comparison(tuple(found))


def _value(figures: Figures, load: str, time: str, column: str) -> float:
    value = figures[load][time][column]
    assert value is not None, "both halves have the same requests"
    return value
