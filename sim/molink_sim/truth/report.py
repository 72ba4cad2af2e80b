"""A comparison for the terminal and for files."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from molink.bench.truth.figures import ALL, SeenRequest
from molink.bench.truth.scenario_file import TruthScenario
from molink_sim.report.tables import Table
from molink_sim.truth.comparison import ERROR_MAX, Comparison, Figure

__all__ = ["comparison_json", "comparison_table", "verdict"]

NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT"}
HEAD = ("requests", "time", "real, ms", "simulated, ms", "error", "within 15 %")


def comparison_table(scenario: TruthScenario, comparison: Comparison) -> Table:
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


def comparison_json(
    scenario: TruthScenario,
    comparison: Comparison,
    rounds: Sequence[Sequence[SeenRequest]],
    simulated: Sequence[SeenRequest],
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
        "real": [[asdict(one) for one in requests] for requests in rounds],
        "simulated": [asdict(one) for one in simulated],
    }


def _row(figure: Figure) -> list[str]:
    judged = ("yes" if figure.passes else "NO") if figure.is_judged else ""
    name = f"{NAMES[figure.time]} {figure.column}"
    load = "all" if figure.load == ALL else figure.load
    times = (f"{1e3 * seconds:,.1f}" for seconds in (figure.real_s, figure.simulated_s))
    return [load, name, *times, f"{figure.error:+.1%}", judged]
