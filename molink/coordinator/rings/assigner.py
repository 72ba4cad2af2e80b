"""From a planned ring to stages that can be loaded, and nodes that hold nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from molink.control.messages.payloads import Assignment
from molink.coordinator.members.node_book import Node, NodeBook
from molink.coordinator.planning.cluster_plan import PlannedRing
from molink.coordinator.rings.agent_stage import AgentStage, NodeCommands

__all__ = ["Assigner"]


@dataclass(frozen=True, slots=True)
class Assigner:
    """Maker of stages on a book's nodes."""

    book: NodeBook
    commands: NodeCommands
    coordinator_key: str
    """CURVE public key, Z85."""
    next_epoch: Callable[[], int]
    """Rises over all starts of this coordinator."""

    def stages(self, plan: PlannedRing, ring: int) -> list[AgentStage]:
        """The stages of a ring in a new epoch, none of them assigned yet."""
        nodes = [self.book.nodes[stage.node_id] for stage in plan.stages]
        epoch = self.next_epoch()
        return [
            AgentStage(
                node=node,
                work=stage.work,
                ring=ring,
                epoch=epoch,
                index=index,
                stages=len(nodes),
                neighbours=(nodes[index - 1].public_key, self.coordinator_key),
                commands=self.commands,
            )
            for index, (node, stage) in enumerate(zip(nodes, plan.stages, strict=True))
        ]

    async def stand_by(self, node: Node, epoch: int | None = None) -> None:
        """Have a node hold nothing; with an epoch only if that is its last assignment's."""
        assignment = node.assignment
        if epoch is not None and (assignment is None or assignment.epoch != epoch):
            return
        await self.commands.assign(node, Assignment(revision=0, reason="No ring needs it now."))
