"""A ring of stages that nodes host: all load, then all join, then it serves.

Nothing is started here: nodes get assignments, and report when they have carried them out.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from molink.config.link_shape import LinkShape
from molink.control.messages.payloads import StageLink
from molink.coordinator.members.node_book import Node
from molink.coordinator.requests.ring import RingFacts
from molink.coordinator.rings.agent_stage import AgentStage
from molink.errors import StageError
from molink.stage_protocol.messages import StageLoaded
from molink.tasks import gathered
from molink_scheduler.head.settings import RingTerms

__all__ = ["AgentRing", "JoinTerms", "RingRoutes", "build_ring", "link_to"]

ADDRESSES_MAX = 16
"""Of a link, as messages allow."""


@dataclass(frozen=True, slots=True)
class JoinTerms:
    """Terms on which all stages of a ring join, and where the coordinator is."""

    ring: RingTerms
    """But for what is known only when all stages have loaded."""
    coordinator_key: str
    """CURVE public key, Z85."""
    coordinator_addresses: tuple[str, ...]
    """host:port where the tail connects."""
    coordinator_port_name: str
    """Of that port, at the relay."""
    relay: str
    """host:port, or empty."""
    upload_mbps: float | None = None
    """Cap of every node; None: none, or each its own."""
    emulated: LinkShape | None = None
    """Of each link as it begins; None: links are real."""


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


@dataclass(slots=True)
class AgentRing:
    """Ring that has joined."""

    facts: RingFacts
    stages: list[AgentStage]
    kv_tokens_capacity: int
    requests_link: StageLink
    """From the coordinator to the head."""

    async def watch(self) -> None:
        """Until a stage is gone, then raises StageError."""
        await gathered(stage.watch() for stage in self.stages)


async def build_ring(
    stages: Sequence[AgentStage],
    terms: JoinTerms,
    progressed: Callable[[int, float], None],
    reroute: Reroute,
) -> AgentRing:
    """Load and join all stages. Raises StageError or UserError when one cannot."""

    def report(index: int) -> Callable[[float], None]:
        return lambda fraction: progressed(index, fraction)

    loaded = await gathered(stage.load(report(index)) for index, stage in enumerate(stages))
    capacity = min(stage.kv_tokens_capacity for stage in loaded)
    routes = await reroute(_routes(stages, loaded, terms))
    ring = replace(
        terms.ring,
        kv_tokens_capacity=capacity,
        micro_batch_candidates=tuple(range(1, 2 * len(stages) + 1)),
    )
    await gathered(
        stage.join(ring, to_next, routes.sampled if stage is stages[-1] else None)
        for stage, to_next in zip(stages, routes.next_of, strict=True)
    )
    facts = RingFacts(stages[0].epoch, ring.policy, terms.upload_mbps, terms.emulated)
    return AgentRing(facts, list(stages), capacity, routes.requests)


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
    stages: Sequence[AgentStage], loaded: Sequence[StageLoaded], terms: JoinTerms
) -> RingRoutes:
    head_port = loaded[0].coordinator_port
    if head_port is None:
        raise StageError(f"{stages[0].name} does not listen for the coordinator.")
    return RingRoutes(
        requests=link_to(stages[0].node, head_port, "requests", terms.relay),
        next_of=tuple(_next_link(stages, index, loaded, terms) for index in range(len(stages))),
        sampled=_coordinator_link(terms),
    )


def _next_link(
    stages: Sequence[AgentStage], index: int, loaded: Sequence[StageLoaded], terms: JoinTerms
) -> StageLink:
    following = (index + 1) % len(stages)
    next_link = link_to(stages[following].node, loaded[following].port, "ring", terms.relay)
    if following != index:
        return next_link
    # A ring of one PC closes on itself.
    addresses = (f"127.0.0.1:{loaded[index].port}", *next_link.addresses)
    return next_link.model_copy(update={"addresses": addresses[:ADDRESSES_MAX], "relay": ""})


def _coordinator_link(terms: JoinTerms) -> StageLink:
    return StageLink(
        to="coordinator",
        public_key=terms.coordinator_key,
        addresses=terms.coordinator_addresses,
        port_name=terms.coordinator_port_name,
        relay=terms.relay,
    )
