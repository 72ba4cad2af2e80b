"""Many small worlds, each from its seed, with faults; what does not hold is replayed by a command.

    report = run_swarm(seeds=200, first_seed=0, kinds=("node-loss", "link-cut"))

As TigerBeetle's simulator does: safety is checked while faults go on, and that everything finishes
when they have stopped.

A world is small, because thousands of them must pass, and crowded: prompts that come at once, KV
for a few of them only, links that differ and change. Each part has random numbers of its own, so
that a seed replayed with fewer faults meets the same rings and the same requests.
"""

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from molink.errors import UserError
from molink_scheduler.batch import BatchClass
from molink_sim.checkers import CHECKERS, Checker, Watchers
from molink_sim.clock import Clock
from molink_sim.faults import FAULTS, draw_faults
from molink_sim.network.make import LINK_MODELS
from molink_sim.network.policies import POLICIES
from molink_sim.scenario import (
    LinkChange,
    LinkSpec,
    RequestArrival,
    RingSpec,
    Scenario,
    StageSpec,
    SystemSpec,
)
from molink_sim.simulate import World
from molink_sim.systems import SYSTEMS

EVENTS_MAX = 500_000
"""Events of one world; the largest drawn so far needs a tenth. More: it runs in circles."""

NO_EXCEPTION = "nothing raises"
"""The invariant that has no checker of its own."""

SWARM_DURATION_S = 20.0
"""Requests and faults come within it."""

SWARM_DRAIN_S = 3000.0
"""Seconds for what is drawn, more than the slowest ring takes; what lasts longer is stuck."""

STAGES_MAX = 5
REQUESTS_MAX = 24
INPUT_TOKENS_MAX = 200
OUTPUT_TOKENS_MAX = 100
KV_TOKENS_MIN = 200
KV_TOKENS_MAX = 800
"""KV for two requests of usual length, or for all: preemption is common, and some are refused."""

OURS_SHARE = 0.8
"""Share of the worlds that run what we ship; the rest are compared systems."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An invariant that did not hold in the world of one seed."""

    seed: int
    invariant: str
    mistake: str
    """Sentence on the first thing that was wrong."""
    command: str
    """Replays it."""


@dataclass(slots=True)
class SwarmReport:
    """Counts and failures of all worlds of a swarm."""

    first_seed: int
    seeds: int = 0
    """Worlds that were run."""
    faults: tuple[str, ...] = ()
    invariants: tuple[str, ...] = (*(checker.name for checker in CHECKERS), NO_EXCEPTION)
    failures: list[Failure] = field(default_factory=list)
    requests: int = 0
    failed_requests: int = 0
    """Requests that ended with an error, because a node was gone."""
    faults_met: int = 0
    events: int = 0


def fault_kinds(names: str) -> tuple[str, ...]:
    """Kinds from `all`, `none` or names with commas between them. Raises UserError."""
    if names == "all":
        return tuple(FAULTS)
    chosen = [name.strip() for name in names.split(",")] if names != "none" else []
    for name in chosen:
        if name not in FAULTS:
            raise UserError(
                f"There is no fault {name!r}: take all, none, or some of {', '.join(FAULTS)} with "
                "commas between them."
            )
    return tuple(kind for kind in FAULTS if kind in chosen)


def replay_command(seed: int, kinds: Sequence[str]) -> str:
    """Command to type to see one seed again."""
    names = "all" if set(kinds) == set(FAULTS) else ",".join(kinds) or "none"
    return f"molink sim swarm --seeds 1 --first-seed {seed} --faults {names}"


def run_swarm(
    seeds: int, first_seed: int, kinds: Sequence[str], done: Callable[[], None] = lambda: None
) -> SwarmReport:
    """Run so many seeds from `first_seed` on, with faults of these kinds; `done` after each."""
    report = SwarmReport(first_seed, faults=tuple(kinds))
    for seed in range(first_seed, first_seed + seeds):
        _run_seed(seed, kinds, report)
        done()
    return report


def check_world(
    scenario: Scenario, checkers: Sequence[type[Checker]] = CHECKERS
) -> tuple[World, list[tuple[str, str]]]:
    """Run a scenario; the world at its end, and (invariant, mistake) for each that does not
    hold."""
    watching = [checker(scenario) for checker in checkers]
    world = World(scenario, Watchers(scenario, watching), _BoundedClock())
    found: list[tuple[str, str]] = []
    try:
        world.run()
    except Exception as error:  # Whatever the core raises is what the swarm is to find.
        found.append((NO_EXCEPTION, f"{type(error).__name__}: {error}"))
    else:
        for checker in watching:
            checker.ended(world)
    return world, [*found, *((one.name, one.mistakes[0]) for one in watching if one.mistakes)]


def _run_seed(seed: int, kinds: Sequence[str], report: SwarmReport) -> None:
    scenario = swarm_scenario(seed, kinds)
    world, found = check_world(scenario)
    report.seeds += 1
    report.requests += len(world.coordinator.requests)
    report.failed_requests += sum(request.failed for request in world.coordinator.requests)
    report.faults_met += len(scenario.faults)
    report.events += world.clock.events
    command = replay_command(seed, kinds)
    report.failures += [Failure(seed, name, mistake, command) for name, mistake in found]


class _BoundedClock(Clock):
    """Time that stops when a world does not come to rest."""

    def at(self, when: float, action: Callable[[Any], None], argument: Any = None) -> None:
        """Plan an event, as `Clock.at` does; raises RuntimeError when there are too many."""
        if self._planned >= EVENTS_MAX:
            raise RuntimeError(f"the world has planned {EVENTS_MAX} events and goes on")
        super().at(when, action, argument)


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Step cost with a fixed time, one for each row and one for each key."""

    fixed_s: float
    row_s: float
    kv_token_s: float

    def step_s(self, batch_class: BatchClass, rows: int, kv_tokens: int, sequences: int) -> float:
        """Seconds of one step, see `StepCost`."""
        return self.fixed_s + rows * self.row_s + kv_tokens * self.kv_token_s


def swarm_scenario(seed: int, kinds: Collection[str]) -> Scenario:
    """The world of a seed, with faults of these kinds (names of `molink_sim.faults.FAULTS`)."""
    losing = random.Random(f"{seed} losses")
    rings = tuple(_losing(losing, ring) for ring in _rings(random.Random(f"{seed} rings")))
    return Scenario(
        rings=rings,
        arrivals=_arrivals(random.Random(f"{seed} arrivals")),
        system=_system(random.Random(f"{seed} system")),
        duration_s=SWARM_DURATION_S,
        drain_s=SWARM_DRAIN_S,
        detect_s=losing.choice([0.0, losing.uniform(0.0, 3.0)]),
        seed=seed,
        faults=draw_faults(seed, kinds, rings, SWARM_DURATION_S),
    )


def _rings(source: random.Random) -> tuple[RingSpec, ...]:
    count = source.choice([1, 1, 1, 2])
    return tuple(_ring(source) for _ in range(count))


def _ring(source: random.Random) -> RingSpec:
    stages = source.randint(1, STAGES_MAX)
    kv_tokens = round(_log_uniform(source, KV_TOKENS_MIN, KV_TOKENS_MAX))
    return RingSpec(
        stages=tuple(_stage(source, kv_tokens) for _ in range(stages)),
        links=tuple(_link(source) for _ in range(stages)),
        row_bytes=round(_log_uniform(source, 16, 4096)),
        coordinator_one_way_s=source.uniform(0.0, 0.05),
    )


def _losing(source: random.Random, ring: RingSpec) -> RingSpec:
    """The ring with what matters when it loses a stage: room for the rows that were sent, and how
    far the coordinator is behind."""
    log_bytes = ring.row_bytes * source.choice([INPUT_TOKENS_MAX, 1e6, 1e6])
    stages = tuple(replace(stage, replay_log_bytes=log_bytes) for stage in ring.stages)
    one_way_s = source.choice([ring.coordinator_one_way_s, ring.coordinator_one_way_s, 0.6])
    return replace(ring, stages=stages, coordinator_one_way_s=one_way_s)


def _stage(source: random.Random, kv_tokens: int) -> StageSpec:
    cost = LinearCost(
        _log_uniform(source, 0.002, 0.03),
        _log_uniform(source, 1e-5, 1e-3),
        _log_uniform(source, 1e-8, 1e-6),
    )
    upload_mbps = source.choice([None, None, _log_uniform(source, 10, 200)])
    return StageSpec(source.randint(1, 4), cost, kv_tokens + source.randint(0, 200), upload_mbps)


def _link(source: random.Random) -> LinkSpec:
    mbps, one_way_s = _log_uniform(source, 10, 1000), _log_uniform(source, 0.0005, 0.1)
    jitter_s = source.choice([0.0, 0.0, one_way_s / 4])
    loss = source.choice([0.0, 0.0, 0.02])
    link = LinkSpec(mbps, one_way_s, jitter_s, loss)
    if source.random() < 0.8:
        return link
    at_s = source.uniform(0.0, SWARM_DURATION_S)
    change = LinkChange(
        at_s, mbps * _log_uniform(source, 0.2, 5), one_way_s * source.uniform(0.5, 2)
    )
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


def _arrivals(source: random.Random) -> tuple[RequestArrival, ...]:
    """A crowd or a trickle, some at the same moment."""
    found: list[RequestArrival] = []
    at_s, gap_s = source.uniform(0.0, 1.0), _log_uniform(source, 0.03, 2.0)
    for _ in range(source.randint(2, REQUESTS_MAX)):
        input_tokens = round(_log_uniform(source, 1, INPUT_TOKENS_MAX))
        output_tokens = round(_log_uniform(source, 2, OUTPUT_TOKENS_MAX))
        found.append(RequestArrival(at_s, input_tokens, output_tokens))
        at_s += source.choice([0.0, source.expovariate(1 / gap_s)])
    return tuple(arrival for arrival in found if arrival.at_s < SWARM_DURATION_S)


def _log_uniform(source: random.Random, least: float, most: float) -> float:
    """A number whose logarithm is uniform."""
    return least * math.exp(source.random() * math.log(most / least))
