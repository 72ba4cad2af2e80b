"""Worlds whose outcomes are recorded: what makes the simulator faster must not change one of them.

`python -m tests.sim.recorded_outcomes` writes them anew, which goes with a change of what the core
decides, or of what is simulated, and with nothing else.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from molink_sim.even_ring import even_ring
from molink_sim.faults import FAULTS
from molink_sim.outcome import Outcome
from molink_sim.scenario import (
    HostSuspended,
    LinkChange,
    LinkSpec,
    NodeLoss,
    OnePc,
    RingSpec,
    Scenario,
    StageSpec,
)
from molink_sim.simulate import simulate
from molink_sim.swarm import LinearCost, swarm_scenario
from molink_sim.systems import system_named
from molink_sim.workload import generate

RECORDED = Path(__file__).parent / "recorded_outcomes.json"

SEEDS = range(12)
"""Swarm's worlds with all kinds of faults; three of them are compared systems."""

DIGITS = 9
"""Decimals of a second that count: beyond them libraries of mathematics differ."""


def _ideal(micro_batches: int | None) -> Scenario:
    ring = even_ring("qwen-7b", "rtx4090", 5, LinkSpec(100, 0.03), kv_tokens_max=4000)
    system = system_named("molink", link_model="ideal", micro_batches=micro_batches)
    faults = NodeLoss(0, 2, 8.0, 12.0), HostSuspended(1, 1, 5.0, 9.0, silent_s=60.0)
    arrivals = generate(1.0, 12.0, 3)
    return Scenario((ring, ring), arrivals, system, duration_s=12.0, faults=faults)


def _paced() -> Scenario:
    changes = (LinkChange(4, 30, 0.05), LinkChange(8, 0, 0.05), LinkChange(9, 80, 0.03))
    link = LinkSpec(100, 0.03, jitter_s=0.01, loss=0.02, changes=changes)
    ring = even_ring("qwen-7b", "rtx4090", 3, link, upload_mbps=50)
    return Scenario((ring,), generate(0.5, 12.0, 4), system_named("molink"), duration_s=12.0)


def _one_pc() -> Scenario:
    cost = LinearCost(0.004, 0.0003, 1e-7)
    stage = StageSpec(4, cost, 4000, after_idle=((0.01, 0.001), (0.1, 0.002)))
    one_pc = OnePc((1.0, 1.1, 1.5), 0.0015, 0.0015)
    ring = RingSpec((stage,) * 3, (LinkSpec(20, 0.03),) * 3, 1536, 0.03, one_pc)
    return Scenario((ring,), generate(0.5, 12.0, 5), system_named("molink"), duration_s=12.0)


WORLDS: dict[str, Callable[[], Scenario]] = {
    "ideal links": lambda: _ideal(3),
    "ideal links, automatic": lambda: _ideal(None),
    "paced links": _paced,
    "one pc": _one_pc,
    **{f"seed {seed}": lambda seed=seed: swarm_scenario(seed, tuple(FAULTS)) for seed in SEEDS},
}


def digest(outcome: Outcome) -> str:
    """All that users saw, and how busy stages and links were."""
    return hashlib.sha256("\n".join(_lines(outcome)).encode()).hexdigest()[:16]


def _lines(outcome: Outcome) -> Iterator[str]:
    for one in outcome.requests:
        times = [round(at, DIGITS) for at in one.token_times_s]
        yield repr((one.ring, one.finished, one.refused, one.failed, one.losses, times))
    for stage in outcome.stages:
        yield repr((stage.steps, round(stage.busy_share, DIGITS)))
    for link in outcome.links:
        yield repr((link.bytes, round(link.busy_share, DIGITS)))


def recorded() -> dict[str, str]:
    """Digests by the names of worlds."""
    found: dict[str, str] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    digests = {name: digest(simulate(world())) for name, world in WORLDS.items()}
    RECORDED.write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")
