"""One run: build the world, let its time pass, say what came of it.

    outcome = simulate(Scenario(rings=(ring,), arrivals=arrivals, system=system("molink")))

Deterministic: all that is random comes from the scenario's seed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Protocol

from molink_scheduler.batch import Admission
from molink_scheduler.events import SampledToken
from molink_scheduler.prompt_order import OWN_WORK_TIMES, PromptOrder
from molink_scheduler.resume import Positions, Resume
from molink_scheduler.routing.admission import RingAdmission
from molink_sim.clock import Clock
from molink_sim.faults import cut_links, disturb, disturb_link, disturb_stage, slowed
from molink_sim.network.link import Sent
from molink_sim.outcome import Activity, BusyTimes, LinkOutcome, Outcome, StageOutcome
from molink_sim.ring.build import Ring, RingMaker
from molink_sim.ring.coordinator import Coordinator, RingEndpoint
from molink_sim.ring.outlook import RingOutlook, outlook_of
from molink_sim.ring.recovery import RingLosses
from molink_sim.ring.session_replay import SessionReplay
from molink_sim.ring.taken_layers import RingNode, stage_of
from molink_sim.scenario import HostSuspended, NodeLoss, RingSpec, Scenario
from molink_sim.scenario_check import check_scenario

__all__ = ["World", "WorldWatch", "simulate"]

CHECK_INTERVAL_S = 10.0
"""How often, while the world drains, to check whether everything has ended."""

PROGRESS_STEPS = 100
"""Steps of the time in which requests arrive, at whose ends progress is told."""


def simulate(
    scenario: Scenario, progress: Callable[[float], None] = lambda virtual_s: None
) -> Outcome:
    """Run a scenario to its end. Raises UserError when it is impossible.

    `progress` is told now and then how many virtual seconds have passed.
    """
    world = World(scenario)
    world.run(progress)
    return world.outcome()


class WorldWatch(Protocol):
    """Observer of a world: `molink_sim.checkers`."""

    def ring_started(self, number: int, ring: Ring) -> None:
        """A ring was built, for the first time or anew; its parts may be wrapped."""

    def stage_lost(self, ring: Ring, place: int) -> None:
        """A stage is gone; the ring may go on."""

    def link_opened(self, ring: Ring, place: int) -> None:
        """Another link leaves a stage, since that or the next one was replaced, or is gone."""

    def stage_grew(self, ring: Ring, place: int, *, is_behind: bool) -> None:
        """A stage has taken lost layers, which are behind its own or before them."""

    def stage_joined(self, ring: Ring, place: int, resume: Resume) -> None:
        """A stage has entered the ring's next epoch, with what it keeps, and a new core."""

    def ring_went_on(self, ring: Ring) -> None:
        """All of its stages have."""

    def ring_lost(self, number: int) -> None:
        """A ring has ended."""

    def sampled(self, number: int, tokens: tuple[SampledToken, ...]) -> None:
        """The coordinator takes these tokens of a ring."""


@dataclass(slots=True)
class World:
    """Rings, their coordinator and their virtual time."""

    scenario: Scenario
    watch: WorldWatch | None = None
    clock: Clock = field(default_factory=Clock)
    rings: list[Ring] = field(init=False, default_factory=list)
    coordinator: Coordinator = field(init=False)
    _specs: list[RingSpec] = field(init=False)
    _maker: RingMaker = field(init=False)
    _usages: dict[str, BusyTimes] = field(init=False, default_factory=dict)
    """Busy times by lane."""
    _timeline: list[Activity] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        scenario = self.scenario
        check_scenario(scenario)
        if scenario.record_timeline:
            self._timeline = []
        losses = [one for one in scenario.faults if isinstance(one, NodeLoss | HostSuspended)]
        keeps_rows = bool(losses) and scenario.system.survivors_stay
        maker = RingMaker(
            self.clock, scenario.system, scenario.seed, self._usage, keeps_rows, self._admitted
        )
        self._maker, self._specs = maker, cut_links(scenario.rings, scenario.faults)
        self.rings = [self.start(number, 0) for number in range(len(self._specs))]
        endpoints = [self._endpoint(ring) for ring in self.rings]
        arrivals = [arrival for arrival in scenario.arrivals if arrival.at_s < scenario.duration_s]
        self.coordinator = Coordinator(
            self.clock,
            endpoints,
            arrivals,
            scenario.entry,
            SessionReplay(scenario.sessions, scenario.sessions_at_once),
            Random(f"{scenario.seed} routing"),
            scenario.requests_at_once_max,
        )
        of_rings = [self._losses(number) for number in range(len(self._specs))]
        for fault in losses:
            of_rings[fault.ring].plan(fault)

    def run(self, progress: Callable[[float], None] = lambda virtual_s: None) -> None:
        """Run until all has ended, at most for `drain_s` after the last arrival may come."""
        now, until = self.scenario.duration_s, self.scenario.duration_s + self.scenario.drain_s
        for step in range(1, PROGRESS_STEPS):
            self.clock.run(now * step / PROGRESS_STEPS)
            progress(self.clock.now)
        self.clock.run(now)
        while now < until and not self.coordinator.is_done():
            now = min(until, now + CHECK_INTERVAL_S)
            self.clock.run(now)
        calm_at = max([now, *(fault.until_s for fault in self.scenario.faults)])
        self.clock.run(calm_at + CHECK_INTERVAL_S)  # What stages are to forget is on its way.

    def outcome(self) -> Outcome:
        """The outcome of the run so far."""
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

    def start(self, number: int, epoch: int) -> Ring:
        """A ring at rest, of the scenario's description."""
        sampled = partial(self._sampled, number)
        ring = self._maker.ring(number, self._specs[number], epoch, sampled)
        disturb(ring, self.scenario, self.clock)
        if self.watch is not None:
            self.watch.ring_started(number, ring)
        return ring

    def enter(self, ring: Ring, place: int, resume: Resume) -> tuple[int, ...]:
        """Have a stage enter the ring's epoch; with what it cannot go on. One that was lost is
        replaced."""
        stage = ring.stages[place]
        missing: tuple[int, ...] = ()
        if stage.is_lost:
            self._maker.replace(ring, place, resume)
            disturb_stage(ring, place, self.scenario, self.clock)
            for relinked in {place, (place - 1) % len(ring.stages)}:
                self._opened(ring, relinked)
        else:
            self._take_layers(ring, place)
            missing = stage.enter(ring.epoch, resume, partial(self._maker.new_core, ring, place))
            if not ring.leads_to_next(place):
                self._maker.relink(ring, place)
                self._opened(ring, place)
        if self.watch is not None:
            self.watch.stage_joined(ring, place, resume.without(missing))
        return missing

    def _opened(self, ring: Ring, place: int) -> None:
        disturb_link(ring, place, self.scenario, self.clock)
        if self.watch is not None:
            self.watch.link_opened(ring, place)

    def _take_layers(self, ring: Ring, place: int) -> None:
        """Have a stage take what it is to have in the epoch and does not have yet."""
        stage, node = ring.stages[place], ring.nodes[place]
        behind = range(stage.parts.stop, node.parts.stop)
        before = range(node.parts.start, stage.parts.start)
        for lost in filter(None, (behind, before)):
            added = stage_of(ring.whole, lost.start, lost)
            cost = slowed(added.cost, ring, place, self.scenario, self.clock)
            stage.extend(lost, replace(added, cost=cost), is_behind=lost is behind)
            if self.watch is not None:
                self.watch.stage_grew(ring, place, is_behind=lost is behind)

    def _endpoint(self, ring: Ring) -> RingEndpoint:
        return RingEndpoint(
            submit=ring.to_head(),
            one_way_s=ring.spec.coordinator_one_way_s,
            tokens_max=ring.tokens_max,
            keeps_states=any(stage.state_slots is not None for stage in ring.spec.stages),
            survivors_stay=self.scenario.system.survivors_stay,
            outlook=self._outlook(ring),
            admission=RingAdmission(self.scenario.entry.admission),
        )

    def _outlook(self, ring: Ring) -> RingOutlook:
        """What the coordinator knows of a ring at rest."""
        system = self.scenario.system
        order = PromptOrder(0 if system.fifo_prompts else OWN_WORK_TIMES)
        return outlook_of(ring.spec, ring.tokens_max if system.prefix_cache else 0, order)

    def _admitted(self, admissions: tuple[Admission, ...]) -> None:
        self.coordinator.admitted(admissions)

    def _losses(self, number: int) -> RingLosses:
        scenario = self.scenario
        return RingLosses(
            self.clock,
            _RecoveringRing(self, number),
            scenario.rings[number],
            scenario.system.survivors_stay,
            scenario.detect_s,
        )

    def _sampled(self, number: int, sent: Sent) -> None:
        """Tokens of an epoch that is over are dropped, as `RingClientLinks` does."""
        if self.coordinator.takes(number, sent.epoch):
            if self.watch is not None:
                self.watch.sampled(number, sent.what)
            self.coordinator.sampled(sent.what)

    def _usage(self, lane: str) -> BusyTimes:
        """Busy time of a lane, the same for a ring that was built anew."""
        counted = self.scenario.warmup_s, self.scenario.duration_s
        return self._usages.setdefault(lane, BusyTimes(lane, *counted, self._timeline))

    def _stages(self) -> list[StageOutcome]:
        return [
            StageOutcome(number, node.origin, stage.usage.busy_share, stage.usage.count)
            for number, ring in enumerate(self.rings)
            for node, stage in zip(ring.nodes, ring.stages, strict=True)
        ]

    def _links(self) -> list[LinkOutcome]:
        return [
            LinkOutcome(number, node.origin, line.usage.busy_share, line.usage.size_bytes)
            for number, ring in enumerate(self.rings)
            for node, line in zip(ring.nodes, ring.lines, strict=True)
        ]


@dataclass(slots=True)
class _RecoveringRing:
    """`RingHost` of one ring of a world."""

    world: World
    number: int

    @property
    def ring(self) -> Ring:
        return self.world.rings[self.number]

    def lose(self, origin: int) -> None:
        place = self.ring.places[origin]
        self.ring.lose(place)
        if self.world.watch is not None:
            self.world.watch.stage_lost(self.ring, place)

    def suspend(self, origin: int, until: float) -> None:
        self.ring.suspend(self.ring.places[origin], until)

    def pause(self) -> None:
        self.world.coordinator.pause(self.number)

    def listed(self) -> Positions:
        return self.world.coordinator.to_resume(self.number)

    def join(
        self,
        nodes: tuple[RingNode, ...],
        resumes: tuple[Resume, ...],
        entered: Callable[[int, tuple[int, ...]], None],
    ) -> None:
        self.ring.epoch += 1
        self.ring.keep(nodes)
        for place, stage in enumerate(list(self.ring.stages)):
            enter = partial(self._enter, self.ring.epoch, place, resumes[place], entered)
            if stage.is_lost and resumes[place].fresh:
                enter()
            else:
                stage.when_free(enter)

    def _enter(
        self,
        epoch: int,
        place: int,
        resume: Resume,
        entered: Callable[[int, tuple[int, ...]], None],
    ) -> None:
        """Let one stage enter, unless there is another epoch by now."""
        if self.ring.epoch == epoch:
            entered(place, self.world.enter(self.ring, place, resume))

    def go_on(self, listed: Positions, missing: frozenset[int]) -> None:
        if self.world.watch is not None:
            self.world.watch.ring_went_on(self.ring)
        coordinator = self.world.coordinator
        coordinator.rings[self.number].submit = self.ring.to_head()
        coordinator.go_on(self.number, self.ring.epoch, listed, missing)

    def end(self) -> None:
        for place in range(len(self.ring.stages)):
            self.ring.lose(place)
        for line in self.ring.lines:
            line.usage = BusyTimes("lost", 0.0, 0.0)
        self.world.coordinator.ring_lost(self.number)
        if self.world.watch is not None:
            self.world.watch.ring_lost(self.number)

    def restart(self) -> None:
        ring = self.world.start(self.number, self.ring.epoch + 1)
        self.world.rings[self.number] = ring
        self.world.coordinator.ring_back(self.number, ring.epoch, ring.to_head())
