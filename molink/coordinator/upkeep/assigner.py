"""Assigner of work to nodes: from a plan's stages, or in the place of a lost one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from molink.control.messages.assignment import Assignment, Load, Stop
from molink.control.messages.payloads import AssignedWork
from molink.coordinator.nodes.node import Node
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.planning.cluster_plan import PlannedRing
from molink.coordinator.ring.agent_stage import AgentStage, NodeCommands
from molink.coordinator.ring.stage_watch import LoadLimits

TAKEN_OUT = "The operator has taken this PC out of its ring."


@dataclass(frozen=True, slots=True)
class Assigner:
    """Maker of stages on a book's nodes."""

    book: NodeBook
    commands: NodeCommands
    coordinator_key: str
    """CURVE public key, Z85."""
    next_epoch: Callable[[], int]
    """Rises over all starts of this coordinator."""
    limits: LoadLimits = field(default_factory=LoadLimits)

    def stages(self, plan: PlannedRing, ring: int) -> list[AgentStage]:
        """The stages of a ring in a new epoch, none of them assigned yet."""
        nodes = [self.book.nodes[stage.node_id] for stage in plan.stages]
        epoch, stages = self.next_epoch(), len(nodes)
        placed = partial(Assignment, revision=0, ring=ring, epoch=epoch, stages=stages)
        return [
            self._stage(
                node,
                placed(stage=index, command=Load(work=stage.work)),
                (nodes[index - 1].public_key, self.coordinator_key),
            )
            for index, (node, stage) in enumerate(zip(nodes, plan.stages, strict=True))
        ]

    def in_place_of(self, lost: AgentStage, node: Node, work: AssignedWork) -> AgentStage:
        """The stage that takes a lost one's place on another node; of no epoch of its own yet."""
        given = lost.assignment.model_copy(update={"command": Load(work=work)})
        return self._stage(node, given, lost.accepted_keys)

    def standby(self, place: AgentStage, node: Node, work: AssignedWork) -> AgentStage:
        """The stage of no ring that holds what another one does."""
        why = f"It holds the layers of {place.name}, whose place it takes should that go."
        update = {"command": Load(work=work), "epoch": self.next_epoch(), "reason": why}
        return self._stage(node, place.assignment.model_copy(update=update), place.accepted_keys)

    def _stage(
        self, node: Node, assignment: Assignment, accepted_keys: tuple[str, str]
    ) -> AgentStage:
        return AgentStage(
            node=node,
            assignment=assignment,
            accepted_keys=accepted_keys,
            commands=self.commands,
            limits=self.limits,
            pc_downloading_at=partial(self.book.last_download, node.pc),
            pc_made_wait_at=partial(self.book.last_wait, node.pc),
        )

    async def stand_by(self, node: Node, epoch: int | None = None) -> None:
        """Have a node hold nothing; with an epoch only if that is its last assignment's."""
        assignment = node.assignment
        if epoch is not None and (assignment is None or assignment.epoch != epoch):
            return
        # Of what its owner wants it knows more; and this is still true when it is resumed.
        why = TAKEN_OUT if node.drained else "No ring needs it now."
        await self.commands.assign(node, Assignment(revision=0, command=Stop(), reason=why))
