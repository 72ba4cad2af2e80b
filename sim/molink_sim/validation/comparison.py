"""Simulated against real: each figure of both, how far they are apart, and whether that will do."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from molink.workload.figures import ALL, COLUMNS, TIMES, Figures, SeenRequest, figures_of
from molink.workload.scenario_file import ValidationScenario
from molink_sim.report.tables import Table
from molink_sim.validation.real import RealRound
from molink_sim.validation.simulated import SimulatedRun

ERROR_MAX = 0.15
"""Error of the means over all requests that a forecast may have for a decision about a ring. Two
rounds on one machine differ by up to a third of it."""

JUDGED = "mean"

NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT"}

OTHERS_CORES_MAX = 0.1
"""Cores that others may take: the real figures of a busy PC are not those of the profile."""

HEAD = ("requests", "time", "real, ms", "simulated, ms", "error", "within 15 %")


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """Number of the real rounds and of the simulation."""

    load: str
    time: str
    """Name of the time: `ttft_s` or `tpot_s`."""
    column: str
    """Name of the column: `mean`, `p50` or `p95`."""
    real_s: float
    """The median of the rounds."""
    simulated_s: float

    @property
    def error(self) -> float:
        """Error of the simulated figure as a share of the real: above 0 when it is too slow."""
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
    """Figures of one scenario, real beside simulated."""

    figures: tuple[ComparedFigure, ...]

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
                    found.append(ComparedFigure(load, time, column, measured_s, seconds))
    return Comparison(tuple(found))


def _value(figures: Figures, load: str, time: str, column: str) -> float:
    value = figures[load][time][column]
    assert value is not None, "both halves have the same requests"
    return value


def comparison_table(scenario: ValidationScenario, comparison: Comparison) -> Table:
    """Table with a row for each figure; only those that are judged pass or fail."""
    link = scenario.link
    title = f"{scenario.name}: {scenario.about}" if scenario.about else scenario.name
    title += f" ({scenario.stages} stages, {link.rate_mbps:g} Mbps, {link.one_way_ms:g} ms)"
    return Table(title, HEAD, [_row(figure) for figure in comparison.figures])


def verdict(comparison: Comparison) -> str:
    """Sentence about the judged figures, and whether they are near enough."""
    judged = [figure for figure in comparison.figures if figure.is_judged]
    errors = " and ".join(f"mean {NAMES[one.time]} {one.error:+.1%}" for one in judged)
    word = "within" if comparison.passes else "NOT within"
    return f"{errors}: {word} {ERROR_MAX:.0%}."


def disturbed(rounds: Sequence[RealRound]) -> str | None:
    """Sentence when others computed on the PC during a round; None when it was quiet."""
    worst = max(one.others_cores for one in rounds)
    if worst <= OTHERS_CORES_MAX:
        return None
    return (
        f"Other programs took up to {worst:.2f} cores meanwhile: on a quiet PC the real figures "
        "are lower."
    )


def comparison_json(
    scenario: ValidationScenario,
    comparison: Comparison,
    rounds: Sequence[RealRound],
    simulated: SimulatedRun,
) -> dict[str, Any]:
    """All figures, and every request of both halves."""
    return {
        "scenario": scenario.name,
        "passes": comparison.passes,
        "error_max": ERROR_MAX,
        "figures": [
            asdict(one) | {"error": one.error, "judged": one.is_judged}
            for one in comparison.figures
        ],
        "real": [asdict(one) for one in rounds],
        "simulated": asdict(simulated),
    }


def _row(figure: ComparedFigure) -> list[str]:
    judged = ("yes" if figure.passes else "NO") if figure.is_judged else ""
    name = f"{NAMES[figure.time]} {figure.column}"
    load = "all" if figure.load == ALL else figure.load
    times = (f"{1e3 * seconds:,.1f}" for seconds in (figure.real_s, figure.simulated_s))
    return [load, name, *times, f"{figure.error:+.1%}", judged]
