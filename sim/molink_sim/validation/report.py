"""A comparison for the terminal and for files."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from molink.workload.figures import ALL
from molink.workload.scenario_file import ValidationScenario
from molink_sim.report.tables import Table
from molink_sim.validation.comparison import ERROR_MAX, Comparison, Figure
from molink_sim.validation.real import RealRound
from molink_sim.validation.simulated import SimulatedRun

__all__ = ["comparison_json", "comparison_table", "disturbed", "verdict"]

NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT"}

OTHERS_CORES_MAX = 0.1
"""Cores that others may take: the real figures of a busy PC are not those of the profile."""

HEAD = ("requests", "time", "real, ms", "simulated, ms", "error", "within 15 %")


def comparison_table(scenario: ValidationScenario, comparison: Comparison) -> Table:
    """One row for each figure; only those that are judged pass or fail."""
    link = scenario.link
    title = f"{scenario.name}: {scenario.about}" if scenario.about else scenario.name
    title += f" ({scenario.stages} stages, {link.rate_mbps:g} Mbps, {link.one_way_ms:g} ms)"
    return Table(title, HEAD, [_row(figure) for figure in comparison.figures])


def verdict(comparison: Comparison) -> str:
    """One sentence."""
    judged = [figure for figure in comparison.figures if figure.is_judged]
    errors = " and ".join(f"mean {NAMES[one.time]} {one.error:+.1%}" for one in judged)
    word = "within" if comparison.passes else "NOT within"
    return f"{errors}: {word} {ERROR_MAX:.0%}."


def disturbed(rounds: Sequence[RealRound]) -> str | None:
    """One sentence when others computed on the PC during a round; None when it was quiet."""
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


def _row(figure: Figure) -> list[str]:
    judged = ("yes" if figure.passes else "NO") if figure.is_judged else ""
    name = f"{NAMES[figure.time]} {figure.column}"
    load = "all" if figure.load == ALL else figure.load
    times = (f"{1e3 * seconds:,.1f}" for seconds in (figure.real_s, figure.simulated_s))
    return [load, name, *times, f"{figure.error:+.1%}", judged]
