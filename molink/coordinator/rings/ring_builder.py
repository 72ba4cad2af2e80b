"""From a planned ring to one that has joined: all stages load, then all join.

Nothing is started here: nodes get assignments, and report when they have carried them out.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from molink.control.messages.payloads import Assignment, StageLink
from molink.coordinator.members.node_book import Node, NodeBook
from molink.coordinator.members.ring import AgentStage, JoinTerms, NodeCommands, Ring
from molink.coordinator.planning.cluster_plan import PlannedRing
from molink.errors import StageError
from molink.stage_protocol.messages import StageLoaded
from molink.tasks import gathered

__all__ = ["Assigner", "RingRoutes", "build_ring", "link_to"]

ADDRESSES_MAX = 16
"""Of a link, as messages allow."""


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
                assignment=Assignment(
                    revision=0,
                    ring=ring,
                    epoch=epoch,
                    stage=index,
                    stages=len(nodes),
                    work=stage.work,
                ),
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


@dataclass(frozen=True, slots=True)
class RingRoutes:
    """Every link of a ring: where its sender is to connect."""

    requests: StageLink
    """The coordinator to the head."""
    next_of: tuple[StageLink, ...]
    """Each stage to the one after it, the tail to the head."""
    sampled: StageLink
    """The tail to the coordinator."""


Reroute = Callable[[RingRoutes], Awaitable[RingRoutes]]
"""Leads links through something between, once it is known where they end."""


async def build_ring(
    stages: Sequence[AgentStage],
    terms: JoinTerms,
    progressed: Callable[[int, float], None],
    reroute: Reroute,
) -> Ring:
    """Load and join all stages. Raises StageError or UserError when one cannot."""

    def report(index: int) -> Callable[[float], None]:
        return lambda fraction: progressed(index, fraction)

    loaded = await gathered(stage.load(report(index)) for index, stage in enumerate(stages))
    capacity = min(stage.kv_tokens_capacity for stage in loaded)
    routes = await reroute(_routes(stages, loaded, terms.coordinator))
    ring = replace(
        terms.ring,
        kv_tokens_capacity=capacity,
        micro_batch_candidates=tuple(range(1, 2 * len(stages) + 1)),
    )
    await gathered(
        stage.join(ring, to_next, routes.sampled if stage is stages[-1] else None)
        for stage, to_next in zip(stages, routes.next_of, strict=True)
    )
    return Ring(stages, replace(terms, ring=ring), routes.requests)


def link_to(node: Node, port: int, port_name: str, relay: str) -> StageLink:
    """A link to a port of a node, at the hosts where it reports that it can be reached."""
    profile = node.profile
    assert profile is not None and node.public_key, "only measured members are in a ring"
    hosts = [address.rpartition(":")[0] for address in profile.addresses]
    addresses = tuple(dict.fromkeys(f"{host}:{port}" for host in hosts)) if profile.direct else ()
    return StageLink(
        to=node.node_id,
        public_key=node.public_key,
        addresses=addresses,
        port_name=port_name,
        relay=relay,
    )


def _routes(
    stages: Sequence[AgentStage], loaded: Sequence[StageLoaded], coordinator: StageLink
) -> RingRoutes:
    head_port, relay = loaded[0].coordinator_port, coordinator.relay
    if head_port is None:
        raise StageError(f"{stages[0].name} does not listen for the coordinator.")
    ports = [(stage.node, one.port) for stage, one in zip(stages, loaded, strict=True)]
    if len(stages) > 1:
        next_of = tuple(link_to(*port, "ring", relay) for port in (*ports[1:], ports[0]))
    else:
        next_of = (_link_to_itself(*ports[0]),)
    return RingRoutes(link_to(stages[0].node, head_port, "requests", relay), next_of, coordinator)


def _link_to_itself(node: Node, port: int) -> StageLink:
    """Of a ring of one PC."""
    link = link_to(node, port, "ring", "")
    addresses = (f"127.0.0.1:{port}", *link.addresses)[:ADDRESSES_MAX]
    return link.model_copy(update={"addresses": addresses})
