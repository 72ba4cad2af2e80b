"""Replacement of members that have become slow, in place: slow is worse than dead.

All users of a ring wait for its slowest stage. So where another node would let them wait much
less, it loads the slow one's layers while the ring serves, and then takes its place as a standby
takes that of a stage which is lost: the others keep what they hold, and streams pause for a second.
Only where there is no such node all are planned for anew, with what is known of the slow one now.
Who was replaced rests like one that has failed, each time longer, and fills no place while it
counts as slow.

Who was slow already when its ring was planned does what was planned, and stays.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from molink.coordinator.nodes.node import Node
from molink.coordinator.planning.cluster_plan import Planner
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.upkeep.blame import Blame
from molink.coordinator.upkeep.ring_supervisor import RingState, RingSupervisor
from molink.coordinator.upkeep.slow.slow_rings import SlowRings
from molink.coordinator.upkeep.standbys import Standbys


@dataclass(slots=True)
class SlowReplacement:
    """Finder of who takes the places of slow members, and when."""

    planner: Planner
    standbys: Standbys
    blame: Blame
    slow_rings: SlowRings
    """Those whose slowness none of their members tells."""
    _planned_slow: dict[int, frozenset[str]] = field(default_factory=dict)
    """Nodes that were slow already when a ring was planned, by its number."""

    def update(self, rings: Sequence[RingSupervisor], slow: frozenset[str]) -> frozenset[str]:
        """Have the places of slow members filled; the ids of those for whom nobody can."""
        self.slow_rings.update(rings, self.standbys.free(), time.monotonic())
        numbers = {ring.number for ring in rings}
        self._planned_slow = {
            number: known for number, known in self._planned_slow.items() if number in numbers
        }
        left = set()
        for ring in rings:
            found = slow - self._planned_slow.setdefault(ring.number, slow)
            if ring.state is RingState.SERVING and not any(one.is_lost for one in ring.stages):
                left |= self._not_replaced(ring, found)
        return frozenset(left)

    def _not_replaced(self, ring: RingSupervisor, slow: Collection[str]) -> set[str]:
        """One at a time: while a ring goes on without one, others are for the next look."""
        left = set()
        for place, stage in enumerate(ring.stages):
            if stage.node.node_id in slow and not self._is_replaced(ring, place):
                left.add(stage.node.node_id)
            if stage.is_lost:
                break
        return left

    def _is_replaced(self, ring: RingSupervisor, place: int) -> bool:
        """Whether another node takes a place, or loads its layers to take it."""
        stage, stages = ring.stages[place], ring.stages
        if len(stages) == 1:
            return False
        standby = self.standbys.covers(stage, stages)
        if standby is None:
            return self.standbys.cover(stage, stages, lambda node: self._gains(ring, place, node))
        if not self._gains(ring, place, standby):
            return False
        if standby.covers:
            self._replace(stage, standby)
        return True

    def _gains(self, ring: RingSupervisor, place: int, node: Node) -> bool:
        members = [stage.node for stage in ring.stages]
        if not all(one.is_measured for one in (node, *members)):
            return False
        return self.planner.gains_by(ring.plan, place, node, members)

    def _replace(self, stage: AgentStage, standby: Node) -> None:
        """Count a stage as lost, and hold that against its node: the ring goes on with the
        standby."""
        clauses = " and ".join(stage.node.slowdown.clauses)
        stage.is_given_up = True
        stage.stuck(f"{stage.name} {clauses}: {standby.name} takes its place.")
        if stage.failure is not None:
            self.blame.failed(stage.failure, time.monotonic())
        stage.node.changed.send()
