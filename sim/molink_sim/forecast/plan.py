"""What a set of PCs can do: found by simulating the ring that they would make.

The highest rate at which the mean TPOT stays within a bound, and TTFT too, is searched by halving
between two rates; by Little's law the rate times the mean time of an answer is how many users are
served at once. Only the ring's order and split are simple here (`split`); the scheduler is the one
that ships.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from molink.config.node_file import NodeFile
from molink.errors import UserError
from molink_sim.forecast.nodes import device_of, link_of
from molink_sim.forecast.split import Share, split_layers
from molink_sim.hardware import ModelShape, stage_cost
from molink_sim.report import summary
from molink_sim.scenario import RingSpec, Scenario, StageSpec, SystemSpec
from molink_sim.simulate import simulate
from molink_sim.workload import generate

__all__ = ["Bounds", "Capacity", "Plan", "make_plan", "plan_with_one_more"]

DURATION_S, WARMUP_S, DRAIN_S = 360.0, 60.0, 120.0
"""Of each run: longer than an answer takes, short enough for a dozen of them."""

RATE_MIN_PER_S, RATE_MAX_PER_S = 0.02, 40.0
SEARCH_STEPS = 6
"""Halvings of the ratio between the highest rate that holds and the lowest that does not: once they
are within a factor of two of each other, to 1 %."""

BUSY_SHARE = 0.5
"""Less than that at the highest rate and nothing is a bottleneck but delay."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What users are to feel at most, in the mean."""

    ttft_s: float = 5.0
    tpot_s: float = 0.25


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate within the bounds; 0 when even a lonely user is beyond them."""

    rate_per_s: float
    users: float
    """At once, at that rate."""
    kv_users: float
    """For how many the KV memory would suffice."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The forecast for one set of PCs."""

    shares: tuple[Share, ...]
    capacity: Capacity
    rate_per_s: float
    """Of the run below: the one asked for, else the capacity's."""
    run: dict[str, Any]
    """As `molink_sim.report.summary` makes it."""
    bottleneck: str


def make_plan(
    shape: ModelShape, nodes: NodeFile, rate_per_s: float | None, bounds: Bounds, seed: int = 0
) -> Plan:
    """Split, simulate, judge. Raises UserError when the model does not fit."""
    shares = split_layers(shape, nodes.nodes)
    ring = _ring(shape, nodes, shares)
    capacity = _capacity(ring, bounds, seed)
    rate = rate_per_s or max(RATE_MIN_PER_S, capacity.rate_per_s)
    run = _run(ring, rate, seed)
    busiest = run if rate >= capacity.rate_per_s else _run(ring, capacity.rate_per_s, seed)
    return Plan(shares, capacity, rate, run, _bottleneck(ring, busiest, capacity))


def plan_with_one_more(
    shape: ModelShape, nodes: NodeFile, rate_per_s: float, bounds: Bounds, seed: int = 0
) -> Plan | None:
    """The forecast with a copy of the fastest PC; None where no further PC has a place, since a
    layer for each is the least."""
    try:
        return make_plan(shape, _with_one_more(nodes), rate_per_s, bounds, seed)
    except UserError:
        return None


def _with_one_more(nodes: NodeFile) -> NodeFile:
    """The same set and a copy of the PC with the fastest memory, beside its original."""
    best = max(nodes.nodes, key=lambda node: device_of(node).bandwidth_gb_per_s)
    copy = replace(best, name=f"{best.name} (one more)")
    place = nodes.nodes.index(best) + 1
    return replace(nodes, nodes=(*nodes.nodes[:place], copy, *nodes.nodes[place:]))


def _ring(shape: ModelShape, nodes: NodeFile, shares: Sequence[Share]) -> RingSpec:
    last = len(shares) - 1
    stages = tuple(
        StageSpec(
            share.layers,
            stage_cost(shape, device_of(share.node), share.layers, index == 0, index == last),
            share.kv_tokens,
            share.node.upload_mbps,
            share.node.name,
        )
        for index, share in enumerate(shares)
    )
    ring = [share.node for share in shares]
    links = tuple(
        link_of(nodes, sender, receiver)
        for sender, receiver in zip(ring, ring[1:] + ring[:1], strict=True)
    )
    return RingSpec(stages, links, shape.row_bytes)


def _run(ring: RingSpec, rate_per_s: float, seed: int) -> dict[str, Any]:
    scenario = Scenario(
        rings=(ring,),
        arrivals=generate(rate_per_s, max(DURATION_S, 20 / rate_per_s), seed),
        system=SystemSpec(link_model="ideal"),
        duration_s=max(DURATION_S, 20 / rate_per_s),
        warmup_s=WARMUP_S,
        drain_s=DRAIN_S,
        seed=seed,
    )
    return summary(simulate(scenario))


def _capacity(ring: RingSpec, bounds: Bounds, seed: int) -> Capacity:
    low, high, best = 0.0, RATE_MIN_PER_S, None
    while high < RATE_MAX_PER_S and (run := _run(ring, high, seed)) and _within(run, bounds):
        low, high, best = high, 4 * high, run
    for _ in range(SEARCH_STEPS if low else 0):
        middle = math.sqrt(low * high)
        run = _run(ring, middle, seed)
        if _within(run, bounds):
            low, best = middle, run
        else:
            high = middle
    tokens = (
        sum(best["offered"][f"{kind}_tokens_mean"] for kind in ("input", "output")) if best else 0
    )
    kv_users = min(stage.kv_tokens for stage in ring.stages) / tokens if tokens else 0.0
    return Capacity(low, low * best["latency_s"]["mean"] if best else 0.0, kv_users)


def _within(run: dict[str, Any], bounds: Bounds) -> bool:
    """Whether all were served, and in time."""
    if run["unfinished"] or not run["ttft_s"] or not run["tpot_s"]:
        return False
    in_time: bool = run["ttft_s"]["mean"] <= bounds.ttft_s
    return in_time and run["tpot_s"]["mean"] <= bounds.tpot_s


def _bottleneck(ring: RingSpec, run: dict[str, Any], capacity: Capacity) -> str:
    """In words."""
    names = [stage.name for stage in ring.stages]
    parts = [(one["busy_share"], f"the GPU of {names[one['stage']]}") for one in run["stages"]]
    for one in run["links"]:
        sender, receiver = names[one["link"]], names[(one["link"] + 1) % len(names)]
        parts.append((one["busy_share"], f"the link from {sender} to {receiver}"))
    share, what = max(parts)
    if share >= BUSY_SHARE:
        return f"{what}, busy {share:.0%} of the time"
    if capacity.users >= 0.8 * capacity.kv_users > 0:
        smallest = min(ring.stages, key=lambda stage: stage.kv_tokens)
        return f"the memory of {smallest.name}, full with {smallest.kv_tokens:,} tokens"
    delays_ms = 1e3 * sum(link.one_way_s for link in ring.links)
    return f"delay: {delays_ms:.0f} ms of every round are links, and {what} is busy {share:.0%}"
