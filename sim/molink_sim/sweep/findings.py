"""How many micro-batches suffice on each ring for so many users, and what they gain.

Sufficient is the smallest number whose time per token is within 2 % of the best.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from molink_sim.report.micro_batches import fewest_near_best
from molink_sim.report.sweep import Sweep
from molink_sim.report.tables import Table
from molink_sim.sweep.measure import SweepSetting

__all__ = ["Finding", "findings", "findings_table", "sweep_json"]

FIGURE = "tpot_s.mean"


@dataclass(frozen=True, slots=True)
class Finding:
    """Numbers of micro-batches on one ring with so many users; times are seconds per token."""

    rtt_ms: float
    stage_ms: float
    users: int
    sufficient: int
    one_s: float
    """Time with one micro-batch."""
    stages_s: float
    """Time with as many as stages, or as users if those are fewer."""
    sufficient_s: float
    best_s: float
    auto: int
    """The number that the core had chosen at the end."""
    auto_s: float


def findings(sweep: Sweep, stages: int) -> list[Finding]:
    """Findings in the order in which rings and users were simulated."""
    auto = [run for run in sweep.runs if run.parameters.get("choice") == "auto"]
    return [
        _finding(
            sweep.only(**{name: run.parameters[name] for name in ("rtt_ms", "stage_ms", "users")}),
            run.figure(FIGURE) or 0.0,
            int(run.figure("micro_batches") or 0),
            stages,
        )
        for run in auto
    ]


def _finding(runs: Sweep, auto_s: float, auto: int, stages: int) -> Finding:
    points = runs.line("micro_batches", FIGURE)
    chosen = fewest_near_best(points)
    parameters = runs.runs[0].parameters
    return Finding(
        rtt_ms=float(parameters["rtt_ms"]),
        stage_ms=float(parameters["stage_ms"]),
        users=int(parameters["users"]),
        sufficient=int(chosen.x),
        one_s=points[0].mean,
        stages_s=points[min(stages, len(points)) - 1].mean,
        sufficient_s=chosen.mean,
        best_s=min(point.mean for point in points),
        auto=auto,
        auto_s=auto_s,
    )


def findings_table(found: Sequence[Finding], stages: int) -> Table:
    """Table of milliseconds per token, one row a finding."""
    head = [
        "stage, ms",
        "RTT, ms",
        "users",
        "enough",
        "1",
        f"{stages}",
        "enough",
        "auto",
        "auto over best",
    ]
    rows = [
        [
            f"{one.stage_ms:g}",
            f"{one.rtt_ms:g}",
            str(one.users),
            str(one.sufficient),
            *(_milliseconds(s) for s in (one.one_s, one.stages_s, one.sufficient_s, one.auto_s)),
            f"{one.auto_s / one.best_s - 1:+.0%}",
        ]
        for one in found
    ]
    return Table("Milliseconds per token with so many micro-batches", head, rows)


def sweep_json(setting: SweepSetting, sweep: Sweep) -> dict[str, Any]:
    """Setting, findings and runs, ready for `to_json`."""
    found = findings(sweep, setting.stages)
    return {
        "setting": asdict(setting),
        "findings": [_as_dict(one) for one in found],
        "runs": sweep.as_json(),
    }


def _as_dict(one: Finding) -> dict[str, Any]:
    """The finding under the keys of the JSON file."""
    keys = {"sufficient": "enough", "sufficient_s": "enough_s"}
    return {keys.get(key, key): value for key, value in asdict(one).items()}


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}"
