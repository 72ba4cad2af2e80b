"""A small random world for one seed of the swarm.

Small, because thousands of them must pass, and crowded: prompts that come at once, KV for a few of
them only, links that differ and change. Each part has random numbers of its own, so that a seed
replayed with fewer faults meets the same rings and the same requests.
"""

import math
import random
from collections.abc import Collection
from dataclasses import dataclass, replace

from molink_scheduler.batch import BatchClass
from molink_scheduler.link.transmission import POLICIES
from molink_sim.faults import draw_faults
from molink_sim.network.make import LINK_MODELS
from molink_sim.scenario import (
    Arrival,
    LinkChange,
    LinkSpec,
    RingSpec,
    Scenario,
    StageSpec,
    SystemSpec,
)
from molink_sim.systems import SYSTEMS

__all__ = ["SWARM_DURATION_S", "LinearCost", "swarm_scenario"]

SWARM_DURATION_S = 20.0
"""Requests and faults come within it."""

SWARM_DRAIN_S = 3000.0
"""More than the slowest drawn ring takes for all that is drawn; what lasts longer is stuck."""

STAGES_MAX = 5
REQUESTS_MAX = 24
INPUT_TOKENS_MAX = 200
OUTPUT_TOKENS_MAX = 100
KV_TOKENS_MIN = 200
KV_TOKENS_MAX = 800
"""For two requests of usual length, or for all: preemption is common, and some are refused."""

OURS_SHARE = 0.8
"""Of the worlds that run what we ship; the rest are compared systems."""


@dataclass(frozen=True, slots=True)
class LinearCost:
    """A time for the step, one for each row, one for each key."""

    fixed_s: float
    row_s: float
    kv_token_s: float

    def step_s(self, batch_class: BatchClass, rows: int, kv_tokens: int, sequences: int) -> float:
        """As `StepCost` says."""
        return self.fixed_s + rows * self.row_s + kv_tokens * self.kv_token_s


def swarm_scenario(seed: int, kinds: Collection[str]) -> Scenario:
    """The world of a seed, with faults of these kinds (names of `molink_sim.faults.FAULTS`)."""
    rings = _rings(random.Random(f"{seed} rings"))
    return Scenario(
        rings=rings,
        arrivals=_arrivals(random.Random(f"{seed} arrivals")),
        system=_system(random.Random(f"{seed} system")),
        duration_s=SWARM_DURATION_S,
        drain_s=SWARM_DRAIN_S,
        seed=seed,
        faults=draw_faults(seed, kinds, rings, SWARM_DURATION_S),
    )


def _rings(source: random.Random) -> tuple[RingSpec, ...]:
    count = source.choice([1, 1, 1, 2])
    return tuple(_ring(source) for _ in range(count))


def _ring(source: random.Random) -> RingSpec:
    stages = source.randint(1, STAGES_MAX)
    kv_tokens = round(_between(source, KV_TOKENS_MIN, KV_TOKENS_MAX))
    return RingSpec(
        stages=tuple(_stage(source, kv_tokens) for _ in range(stages)),
        links=tuple(_link(source) for _ in range(stages)),
        row_bytes=round(_between(source, 16, 4096)),
        coordinator_one_way_s=source.uniform(0.0, 0.05),
    )


def _stage(source: random.Random, kv_tokens: int) -> StageSpec:
    cost = LinearCost(
        _between(source, 0.002, 0.03), _between(source, 1e-5, 1e-3), _between(source, 1e-8, 1e-6)
    )
    upload_mbps = source.choice([None, None, _between(source, 10, 200)])
    return StageSpec(source.randint(1, 4), cost, kv_tokens + source.randint(0, 200), upload_mbps)


def _link(source: random.Random) -> LinkSpec:
    mbps, one_way_s = _between(source, 10, 1000), _between(source, 0.0005, 0.1)
    jitter_s = source.choice([0.0, 0.0, one_way_s / 4])
    loss = source.choice([0.0, 0.0, 0.02])
    link = LinkSpec(mbps, one_way_s, jitter_s, loss)
    if source.random() < 0.8:
        return link
    at_s = source.uniform(0.0, SWARM_DURATION_S)
    change = LinkChange(at_s, mbps * _between(source, 0.2, 5), one_way_s * source.uniform(0.5, 2))
    return replace(link, changes=(change,))


def _system(source: random.Random) -> SystemSpec:
    if source.random() >= OURS_SHARE:
        return SYSTEMS[source.choice([name for name in SYSTEMS if name != "molink"])]
    return SystemSpec(
        policy=source.choice(["molink", "molink", *POLICIES]),
        micro_batches=source.choice([None, None, source.randint(1, 6)]),
        span_tokens=source.choice([None, None, source.randint(16, 256)]),
        codec=source.choice(["raw", "int8"]),
        link_model=source.choice(["paced", "paced", "paced", *LINK_MODELS]),
        paced=source.random() < 0.9,
    )


def _arrivals(source: random.Random) -> tuple[Arrival, ...]:
    """A crowd or a trickle, some at the same moment."""
    found: list[Arrival] = []
    at_s, gap_s = source.uniform(0.0, 1.0), _between(source, 0.03, 2.0)
    for _ in range(source.randint(2, REQUESTS_MAX)):
        input_tokens = round(_between(source, 1, INPUT_TOKENS_MAX))
        output_tokens = round(_between(source, 2, OUTPUT_TOKENS_MAX))
        found.append(Arrival(at_s, input_tokens, output_tokens))
        at_s += source.choice([0.0, source.expovariate(1 / gap_s)])
    return tuple(arrival for arrival in found if arrival.at_s < SWARM_DURATION_S)


def _between(source: random.Random, least: float, most: float) -> float:
    """Of all magnitudes alike."""
    return least * math.exp(source.random() * math.log(most / least))
