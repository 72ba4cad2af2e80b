"""Search for the member that makes a ring far slower than forecast while no stage says why.

How long a step takes a stage tells itself, and who waits before it sends can tell anything. What
cannot be lied about is when tokens come. So a ring that for a minute takes three times as long for
a token as was forecast, and as its stages' own times and its links explain, has somebody in it who
lies. One ring does not tell who: it goes on without one of its members, where the others suffice.
Who was in each slow ring and in no fast one stays left out, and whoever was left out of a slow one
is cleared. Where nobody is in all of them the forecast is wrong, and rings stay for an hour.

Rejected: to have neighbours measure each stage by their clocks. They know when rows left and came,
not what the links between took, which the one in the middle may hold as long as it likes.

Times are arguments, in seconds on a clock that never jumps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from molink.coordinator.nodes.node import Node
from molink.coordinator.planning.cluster_plan import PlanCache
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.forecaster import RingForecaster
from molink.coordinator.upkeep.blame import Blame
from molink.coordinator.upkeep.ring_supervisor import RingState, RingSupervisor

SLOWER_MIN = 3.0
"""Times as long as forecast: contexts of thousands of tokens double a step, and so does an owner
who works at the PC, which its stage tells."""

FELT_S = 0.1
"""Least delay of a token that counts as slow: threads of a busy PC wait as long for each other."""

WINDOW_S, GAPS_MIN = 60.0, 10
"""For which a ring must be slow, and times between two tokens that must have been measured."""

QUIET_S = 3600.0
"""For which no ring is changed after nobody was found in all that are slow."""


@dataclass(slots=True)
class PaceWatch:
    """Watch over the time of a round on one ring, minute by minute."""

    _began: tuple[float, int, float] | None = None
    """When the present minute began, and the counts then."""
    _expected_s: float = 0.0
    """The longest that was to be expected since then."""

    def update(self, gaps: int, gaps_s: float, expected_s: float, now: float) -> float | None:
        """Take in how many rounds of sequences there were so far, and the sum of their times; once
        a minute how many times as long as expected they took. None: it is not over yet."""
        self._expected_s = max(self._expected_s, expected_s)
        if self._began is None:
            self._began = now, gaps, gaps_s
        since, gaps_before, before_s = self._began
        count = gaps - gaps_before
        if now - since < WINDOW_S or count < GAPS_MIN:
            return None
        mean_s, least_s = (gaps_s - before_s) / count, self._expected_s
        self._began, self._expected_s = (now, gaps, gaps_s), expected_s
        return mean_s / least_s if mean_s > least_s + FELT_S else 1.0


def expected_s(ring: RingSupervisor, running: int) -> float:
    """Time between two tokens of a ring with so many answers: as it was forecast, or as its stages'
    steps and the forecast of its links explain, whichever is longer; 0: nothing was forecast."""
    one = ring.plan.forecast
    if one is None:
        return 0.0
    each_s = max(0.0, one.tpot_s - one.tpot_alone_s) / max(1, one.users - 1)
    steps_s = (stage.health.decode_step_s for stage in ring.stages if stage.health is not None)
    return max(one.tpot_alone_s + each_s * max(0, running - 1), one.delay_s + sum(steps_s))


@dataclass(slots=True)
class SlowRings:
    """Watch over all rings that serve; has slow ones go on without a member that may be why."""

    plans: PlanCache
    blame: Blame
    service: ClusterService
    _watches: dict[int, PaceWatch] = field(default_factory=dict)
    """By the epoch of a ring."""
    _suspects: set[str] = field(default_factory=set)
    """Those in each slow ring so far and in no fast one; empty: no ring was slow."""
    _due: dict[int, str] = field(default_factory=dict)
    """Who is to be left out of a ring, by its epoch, if the others suffice."""
    _left_out: set[str] = field(default_factory=set)
    _quiet_until: float = 0.0

    def update(self, rings: Sequence[RingSupervisor], free: Sequence[Node], now: float) -> None:
        """Look at all rings, about once a second."""
        epochs = {ring.epoch for ring in rings}
        self._watches = {one: watch for one, watch in self._watches.items() if one in epochs}
        self._due = {one: node_id for one, node_id in self._due.items() if one in epochs}
        forecasters = {one.number: one.client.forecaster for one in self.service.rings}
        for ring in rings:
            is_serving = ring.state is RingState.SERVING and ring.number in forecasters
            if is_serving and not any(map(_is_known, ring.stages)):
                self._look(ring, forecasters[ring.number], now)
                self._leave_out(ring, free, now)

    def _look(self, ring: RingSupervisor, forecaster: RingForecaster, now: float) -> None:
        expected = expected_s(ring, forecaster.line.running)
        watch = self._watches.setdefault(ring.epoch, PaceWatch())
        counts = forecaster.gaps, forecaster.gaps_s
        times = watch.update(*counts, expected, now) if expected else None
        if times is not None and times <= SLOWER_MIN:
            self._suspects -= {stage.node.node_id for stage in ring.stages}
        elif times is not None and now >= self._quiet_until and ring.epoch not in self._due:
            self._is_slow(ring, times, now)

    def _is_slow(self, ring: RingSupervisor, times: float, now: float) -> None:
        slow = f"takes {times:.1f} times as long for a token as was forecast, and no PC says why"
        self.service.events.add("trouble", f"ring {ring.number} {slow}", ring=ring.number)
        members = {stage.node.node_id for stage in ring.stages}
        for node_id in self._left_out - members:
            self.blame.cleared(node_id, now)
        self._left_out &= members
        self._suspects = self._suspects & members if self._suspects else members
        if self._suspects:
            self._due[ring.epoch] = min(self._suspects)
        else:
            self._quiet_until = now + QUIET_S

    def _leave_out(self, ring: RingSupervisor, free: Sequence[Node], now: float) -> None:
        """Count the stage of the suspect as lost, once it is known that the others suffice."""
        due = [stage for stage in ring.stages if stage.node.node_id == self._due.get(ring.epoch)]
        if not due:
            return
        others = [stage.node for stage in ring.stages if stage not in due and stage.node.may_serve]
        plan = self.plans.take(("without who may be slow in", ring.epoch), [*others, *free])
        if plan is None:
            return
        del self._due[ring.epoch]
        if not plan.rings:
            self._quiet_until = now + QUIET_S
            return
        (stage,) = due
        self._left_out.add(stage.node.node_id)
        stage.is_given_up = True
        stage.stuck(f"Ring {ring.number} is far slower than forecast: tried without {stage.name}.")
        if stage.failure is not None:
            self.blame.failed(stage.failure, now)
        stage.node.changed.send()


def _is_known(stage: AgentStage) -> bool:
    """Whether a stage is known to have a slow line, or to be lost, or unknown: others see to it.
    Slow steps that it tells of are expected."""
    return stage.node.slowdown.link_mbps < math.inf or stage.is_lost or stage.health is None
