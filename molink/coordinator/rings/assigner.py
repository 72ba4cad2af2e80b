"""From a planned ring to stages that can be told what to do, and the telling."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from molink.control.messages.payloads import Assignment, StageWork, WeightsSource
from molink.coordinator.members.node_book import Node, NodeBook
from molink.coordinator.planning.cluster_plan import PlannedRing
from molink.coordinator.rings.agent_stage import AgentStage

__all__ = ["Assigner"]


@dataclass(slots=True)
class Assigner:
    """Makes stages of a book's nodes, and numbers whatever they are told."""

    book: NodeBook
    weights: WeightsSource
    dtype: str
    publish: Callable[[Node, Assignment], Awaitable[None]]
    allow_links: Callable[[Node, tuple[str, ...]], Awaitable[None]]
    """Tells a node whose links (CURVE keys, Z85) it accepts."""
    coordinator_key: str
    next_number: Callable[[], int]
    """Rises over all starts of this coordinator: revisions and epochs."""
    preloading: list[AgentStage] = field(default_factory=list)
    """Stages that load for a ring that is still to come."""

    def stages(self, plan: PlannedRing, ring: int) -> list[AgentStage]:
        """The stages of a ring in a new epoch, none of them told yet."""
        nodes = [self.book.nodes[stage.node_id] for stage in plan.stages]
        works = [
            self._work(node, stage.layers, stage.kv_tokens)
            for node, stage in zip(nodes, plan.stages, strict=True)
        ]
        return self.stages_of(nodes, works, ring, self.next_number())

    def stages_of(
        self, nodes: Sequence[Node], works: Sequence[StageWork], ring: int, epoch: int
    ) -> list[AgentStage]:
        """The stages of a ring in which each node does this work, none of them told yet."""
        return [
            AgentStage(
                node=node,
                work=work,
                ring=ring,
                epoch=epoch,
                place=place,
                stages=len(nodes),
                neighbours=(nodes[place - 1].public_key, self.coordinator_key),
                tell=self.tell,
                allow_links=self.allow_links,
            )
            for place, (node, work) in enumerate(zip(nodes, works, strict=True))
        ]

    async def tell(self, node: Node, assignment: Assignment) -> None:
        """Tell a node what to do, under the next revision."""
        told = assignment.model_copy(update={"revision": self.next_number()})
        node.assignment = told
        await self.publish(node, told)

    async def stand_by(self, node: Node, epoch: int | None = None) -> None:
        """Tell a node to hold nothing; with an epoch only if that is its last assignment's."""
        assignment = node.assignment
        if epoch is not None and (assignment is None or assignment.epoch != epoch):
            return
        await self.tell(node, Assignment(revision=0, reason="No ring needs it now."))

    def strays(self, members: set[str]) -> list[Node]:
        """Nodes that hold layers for no ring: of a plan that was dropped, or of a coordinator that
        ran before."""
        wanted = members | {stage.node.node_id for stage in self.preloading}
        return [
            node
            for node in self.book
            if node.is_here and node.node_id not in wanted and _holds_something(node)
        ]

    def _work(self, node: Node, layers: tuple[int, int], kv_tokens: int) -> StageWork:
        assert node.profile is not None, "only measured nodes are planned for"
        device = node.profile.devices[0]
        return StageWork(
            layers=layers,
            device="cpu" if device.kind == "cpu" else f"cuda:{device.index}",
            dtype=self.dtype,
            kv_tokens=kv_tokens,
            threads=device.threads,
            weights=self.weights,
        )


def _holds_something(node: Node) -> bool:
    if node.assignment is not None:
        return node.is_assigned
    return node.fact is not None and node.fact.kind not in ("failed", "stopped")
