"""One run: build the world, let its time pass, say what came of it.

    outcome = simulate(Scenario(rings=(ring,), arrivals=arrivals, system=system("molink")))

Deterministic: all that is random comes from the scenario's seed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from molink_scheduler.events import SampledToken
from molink_sim.clock import Clock
from molink_sim.faults import NodeLosses, cut_links, disturb, silence
from molink_sim.outcome import Activity, LinkOutcome, Outcome, StageOutcome, Usage
from molink_sim.ring.build import Ring, RingMaker
from molink_sim.ring.coordinator import Coordinator, RingEndpoint
from molink_sim.scenario import NodeLoss, RingSpec, Scenario
from molink_sim.scenario_check import check_scenario

__all__ = ["Watch", "World", "simulate"]

CHECK_INTERVAL_S = 10.0
"""How often, while the world drains, to check whether everything has ended."""

PROGRESS_STEPS = 100
"""Of the time in which requests arrive, at whose ends progress is told."""


def simulate(
    scenario: Scenario, progress: Callable[[float], None] = lambda virtual_s: None
) -> Outcome:
    """Run a scenario to its end. Raises UserError when it is impossible.

    `progress` is told now and then how many virtual seconds have passed.
    """
    world = World(scenario)
    world.run(progress)
    return world.outcome()


class Watch(Protocol):
    """Observer of a world: `molink_sim.checkers`."""

    def ring_started(self, number: int, ring: Ring) -> None:
        """A ring was built, for the first time or anew; its parts may be wrapped."""

    def ring_lost(self, number: int) -> None:
        """A node is gone, and its ring."""

    def sampled(self, number: int, tokens: tuple[SampledToken, ...]) -> None:
        """The coordinator takes these tokens of a ring."""


@dataclass(slots=True)
class World:
    """Rings, their coordinator and their virtual time."""

    scenario: Scenario
    watch: Watch | None = None
    clock: Clock = field(default_factory=Clock)
    rings: list[Ring] = field(init=False, default_factory=list)
    coordinator: Coordinator = field(init=False)
    _specs: list[RingSpec] = field(init=False)
    _maker: RingMaker = field(init=False)
    _epochs: dict[int, "_Epoch"] = field(init=False, default_factory=dict)
    """The present one of each ring."""
    _usages: dict[str, Usage] = field(init=False, default_factory=dict)
    """By lane."""
    _timeline: list[Activity] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        scenario = self.scenario
        check_scenario(scenario)
        if scenario.record_timeline:
            self._timeline = []
        self._maker = RingMaker(self.clock, scenario.system, scenario.seed, self._usage)
        self._specs = cut_links(scenario.rings, scenario.faults)
        self.rings = [self._start(number) for number in range(len(self._specs))]
        losses = [fault for fault in scenario.faults if isinstance(fault, NodeLoss)]
        NodeLosses(self.clock, self._lose, self._restart).plan(losses)
        endpoints = [
            RingEndpoint(ring.stages[0].receive, spec.coordinator_one_way_s, ring.tokens_max)
            for ring, spec in zip(self.rings, scenario.rings, strict=True)
        ]
        arrivals = [arrival for arrival in scenario.arrivals if arrival.at_s < scenario.duration_s]
        self.coordinator = Coordinator(self.clock, endpoints, arrivals)

    def run(self, progress: Callable[[float], None] = lambda virtual_s: None) -> None:
        """Until all has ended, at most for `drain_s` after the last arrival may come."""
        now, until = self.scenario.duration_s, self.scenario.duration_s + self.scenario.drain_s
        for step in range(1, PROGRESS_STEPS):
            self.clock.run(now * step / PROGRESS_STEPS)
            progress(self.clock.now)
        self.clock.run(now)
        while now < until and not self.coordinator.is_done():
            now = min(until, now + CHECK_INTERVAL_S)
            self.clock.run(now)
        self.clock.run(now + CHECK_INTERVAL_S)  # What the stages are still to forget is on its way.

    def outcome(self) -> Outcome:
        """What came of it so far."""
        scenario = self.scenario
        counted = [r for r in self.coordinator.requests if r.arrived_s >= scenario.warmup_s]
        return Outcome(
            requests=tuple(counted),
            stages=tuple(self._stages()),
            links=tuple(self._links()),
            duration_s=scenario.duration_s - scenario.warmup_s,
            events=self.clock.events,
            timeline=tuple(self._timeline or ()),
        )

    def _start(self, number: int) -> Ring:
        epoch = self._epochs[number] = _Epoch(self, number)
        ring = self._maker.ring(number, self._specs[number], epoch)
        disturb(number, ring, self.scenario.faults, self.clock, self.scenario.seed)
        if self.watch is not None:
            self.watch.ring_started(number, ring)
        return ring

    def _lose(self, number: int) -> None:
        self._epochs[number].is_over = True
        silence(self.rings[number])
        self.coordinator.ring_lost(number)
        if self.watch is not None:
            self.watch.ring_lost(number)

    def _restart(self, number: int) -> None:
        ring = self.rings[number] = self._start(number)
        self.coordinator.ring_back(number, ring.stages[0].receive)

    def _usage(self, lane: str) -> Usage:
        """The same for a ring that was built anew."""
        counted = self.scenario.warmup_s, self.scenario.duration_s
        return self._usages.setdefault(lane, Usage(lane, *counted, self._timeline))

    def _stages(self) -> list[StageOutcome]:
        return [
            StageOutcome(number, index, stage.usage.busy_share, stage.usage.count)
            for number, ring in enumerate(self.rings)
            for index, stage in enumerate(ring.stages)
        ]

    def _links(self) -> list[LinkOutcome]:
        return [
            LinkOutcome(number, index, line.usage.busy_share, line.usage.size_bytes)
            for number, ring in enumerate(self.rings)
            for index, line in enumerate(ring.lines)
        ]


@dataclass(slots=True)
class _Epoch:
    """One epoch of a ring; tokens of an earlier one are dropped, as `RingClientLinks` does."""

    world: World
    number: int
    is_over: bool = False

    def __call__(self, tokens: tuple[SampledToken, ...]) -> None:
        if self.is_over:
            return
        if self.world.watch is not None:
            self.world.watch.sampled(self.number, tokens)
        self.world.coordinator.sampled(tokens)
