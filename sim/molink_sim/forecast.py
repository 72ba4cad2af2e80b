"""Forecast of a set of PCs with a model: the rings that a placement chooses, simulated.

`molink plan` forecasts these rings by arithmetic. Here the very same rings serve drawn requests,
with the scheduler that ships, so the two can be held against each other. The highest rate at which
mean TTFT and TPOT stay within bounds is searched by halving, from the rate that the forecast
expects; by Little's law the rate times the mean time of an answer is how many users are served at
once.

A simulated step has any number of rows over any context, which the straight lines that a placement
counts with do not tell. So each PC needs a device here, whatever was measured of it.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from molink.checkpoint.model_shape import ModelShape, PlannedModel
from molink.config.node_file import BYTES_PER_MBIT, ListedNode, NodeFile, read_node_file
from molink.errors import UserError
from molink.hardware.gpu import Gpu
from molink.hardware.roofline import stage_cost
from molink.terminal.plan_report import milliseconds, plan_fields
from molink_scheduler.placement import Forecast, Goal, Network, Plan
from molink_sim.report.summary import summary
from molink_sim.scenario import LinkSpec, RingSpec, Scenario, StageSpec, SystemSpec
from molink_sim.simulate import simulate
from molink_sim.workload import generate

DURATION_S, WARMUP_S = 360.0, 60.0
"""Seconds of each run: longer than an answer takes, short enough for a dozen of them."""

DRAIN_S = 600.0
"""Longer than the longest answer takes at any bound that people set: 1,024 tokens of 0.25 s take
256 s, and one that is cut off would look like a ring that cannot keep up."""

ARRIVALS_MIN = 20
"""A run at a low rate lasts until so many requests have come."""

RATE_MIN_PER_S, RATE_MAX_PER_S = 0.02, 40.0
SEARCH_STEPS = 5
"""Halvings of the ratio between the highest rate that holds and the lowest that does not: once they
are a factor of two apart, to 2 %."""

LOOPBACK = LinkSpec(mbps=10_000.0, one_way_s=0.0)
"""Link over which a ring of one PC hands its tokens back."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Mean times that users are to wait at most."""

    ttft_s: float = 5.0
    tpot_s: float = 0.25


@dataclass(frozen=True, slots=True)
class Capacity:
    """Highest rate within the bounds; 0 when even a single user is beyond them."""

    rate_per_s: float
    users: float
    """Users at once, at that rate."""


@dataclass(frozen=True, slots=True)
class SimulatedPlan:
    """A placement, and what its rings came to in the simulation."""

    plan: Plan
    capacity: Capacity
    rate_per_s: float
    """Rate of the run below: the one asked for, else the capacity's."""
    run: dict[str, Any]
    """Summary that `molink_sim.report.summary` makes of it."""


def read_nodes(path: Path) -> NodeFile:
    """Raises UserError for a file that does not describe a set of PCs with devices."""
    nodes = read_node_file(path)
    for node in nodes.nodes:
        if node.device is None:
            raise UserError(
                f"{node.name} in {path} has measured times but no device, which a simulation "
                "computes with: give a known gpu, or memory_gib, bandwidth_gb_per_s and tflops."
            )
    return nodes


def simulate_plan(
    model: PlannedModel,
    nodes: NodeFile,
    bounds: Bounds,
    rate_per_s: float | None = None,
    seed: int = 0,
) -> SimulatedPlan:
    """Place the model, then simulate. Raises UserError when it does not fit."""
    plan = nodes.plan(model, _goal(bounds))
    rings = _rings(model.shape, nodes, plan)
    expected_per_s = plan.tokens_per_s / plan.goal.answer_tokens if plan.users else 0.0
    capacity = _capacity(rings, expected_per_s, bounds, seed)
    rate = rate_per_s or max(RATE_MIN_PER_S, capacity.rate_per_s)
    return SimulatedPlan(plan, capacity, rate, _run(rings, rate, seed))


def _goal(bounds: Bounds) -> Goal:
    """Goal for the requests that are drawn: users keep no more than a prompt and its answer."""
    goal = Goal(tpot_s=bounds.tpot_s)
    return replace(goal, context_tokens=goal.prompt_tokens + goal.answer_tokens)


def with_one_more(nodes: NodeFile) -> NodeFile:
    """Set of nodes with a copy of the PC with the fastest memory, beside its original."""
    best = max(nodes.nodes, key=lambda node: _device(node).bandwidth_gb_per_s)
    copy = replace(best, name=f"{best.name} (one more)")
    place = nodes.nodes.index(best) + 1
    return replace(nodes, nodes=(*nodes.nodes[:place], copy, *nodes.nodes[place:]))


def _device(node: ListedNode) -> Gpu:
    assert node.device is not None, "`read_nodes` refuses a PC that has none"
    return node.device


def _rings(shape: ModelShape, nodes: NodeFile, plan: Plan) -> tuple[RingSpec, ...]:
    """The planned rings, with the roofline's step times instead of the placement's lines."""
    listed, network = {node.name: node for node in nodes.nodes}, nodes.network()
    return tuple(_ring(shape, listed, network, ring) for ring in plan.rings)


def _ring(
    shape: ModelShape, listed: Mapping[str, ListedNode], network: Network, ring: Forecast
) -> RingSpec:
    stages = []
    for stage in ring.stages:
        node, (first, end) = listed[stage.node_id], stage.layers
        cost = stage_cost(shape, _device(node), end - first, first == 0, end == shape.layers)
        stages.append(
            StageSpec(
                *(end - first, cost, stage.kv_tokens, node.upload_mbps, node.name),
                state_slots=stage.state_slots,
            )
        )
    names = [stage.node_id for stage in ring.stages]
    found = [network.links[pair] for pair in pairwise([*names, names[0]]) if len(names) > 1]
    links = [LinkSpec(one.rate_bytes_per_s / BYTES_PER_MBIT, one.one_way_s) for one in found]
    return RingSpec(tuple(stages), tuple(links) or (LOOPBACK,), shape.row_bytes)


def _run(rings: tuple[RingSpec, ...], rate_per_s: float, seed: int) -> dict[str, Any]:
    duration_s = max(DURATION_S, ARRIVALS_MIN / rate_per_s)
    scenario = Scenario(
        rings=rings,
        arrivals=generate(rate_per_s, duration_s, seed),
        system=SystemSpec(link_model="ideal"),
        duration_s=duration_s,
        warmup_s=WARMUP_S,
        drain_s=DRAIN_S,
        seed=seed,
    )
    return summary(simulate(scenario))


def _capacity(
    rings: tuple[RingSpec, ...], expected_per_s: float, bounds: Bounds, seed: int
) -> Capacity:
    low, high, best = 0.0, math.inf, None
    rate = min(max(expected_per_s, RATE_MIN_PER_S), RATE_MAX_PER_S)
    # Double or halve until there is a rate that holds and one that does not ...
    while (not low and rate >= RATE_MIN_PER_S) or (high == math.inf and rate <= RATE_MAX_PER_S):
        run = _run(rings, rate, seed)
        if _is_within(run, bounds):
            low, best, rate = rate, run, 2 * rate
        else:
            high, rate = rate, rate / 2
    # ... then halve the ratio between the two.
    for _ in range(SEARCH_STEPS if low and high < math.inf else 0):
        rate = math.sqrt(low * high)
        run = _run(rings, rate, seed)
        if _is_within(run, bounds):
            low, best = rate, run
        else:
            high = rate
    return Capacity(low, low * best["latency_s"]["mean"] if best else 0.0)


def _is_within(run: Mapping[str, Any], bounds: Bounds) -> bool:
    """Whether all were served, and in time."""
    if run["unfinished"] or not run["ttft_s"] or not run["tpot_s"]:
        return False
    in_time: bool = run["ttft_s"]["mean"] <= bounds.ttft_s
    return in_time and run["tpot_s"]["mean"] <= bounds.tpot_s


def forecast_lines(found: SimulatedPlan, more: SimulatedPlan, bounds: Bounds) -> list[str]:
    """Sentences to stand below the forecast of the plan."""
    within = f"{milliseconds(bounds.tpot_s)} per token and {bounds.ttft_s:g} s to the first"
    return [
        f"Simulated within {within}: {_served(found.capacity)}.",
        f"Simulated at {_times(found)}.",
        f"One more PC like the fastest: a forecast of {more.plan.users} users at once; simulated "
        f"{_served(more.capacity)}, and at {_times(more)}.",
    ]


def _served(capacity: Capacity) -> str:
    users = round(capacity.users)
    return f"{users} user{'s' * (users != 1)} at once, {capacity.rate_per_s:.2f} requests/s"


def _times(found: SimulatedPlan) -> str:
    rate, run = f"{found.rate_per_s:.2f} requests/s: ", found.run
    ttft, tpot = run["ttft_s"], run["tpot_s"]
    if not ttft or not tpot:
        return rate + "no request gets its answer"
    late = f", and {run['unfinished']} of {run['requests']} do not end" * bool(run["unfinished"])
    each = milliseconds(tpot["mean"])
    return f"{rate}first token after {ttft['mean']:.2f} s, then one every {each}{late}"


def forecast_json(
    model: str, found: SimulatedPlan, more: SimulatedPlan, bounds: Bounds
) -> dict[str, Any]:
    """All numbers of both sets of PCs, ready for `to_json`."""
    return {
        "bounds": asdict(bounds),
        "plan": _as_dict(model, found),
        "one_more_pc": _as_dict(model, more),
    }


def _as_dict(model: str, found: SimulatedPlan) -> dict[str, Any]:
    rings = found.plan.rings
    return {
        "split": [
            {
                "ring": number,
                "name": stage.name,
                "layers": stage.layers[1] - stage.layers[0],
                "kv_tokens": stage.kv_tokens,
            }
            for number, ring in enumerate(rings)
            for stage in ring.stages
        ],
        "rate_per_s_max": found.capacity.rate_per_s,
        "users_max": found.capacity.users,
        "users_memory": sum(ring.users_memory for ring in rings),
        "rate_per_s": found.rate_per_s,
        "summary": found.run,
        "bottleneck": rings[0].bottleneck,
        "forecast": plan_fields(found.plan, model),
    }
