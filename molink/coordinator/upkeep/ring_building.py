"""From a planned ring to one that has joined: all stages load, then all join.

Nothing is started here: nodes get assignments, and report when they have carried them out.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from molink.control.messages.assignment import Join
from molink.control.messages.payloads import StageLink
from molink.coordinator.nodes.node import Node
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.client import RingClient
from molink.coordinator.ring.ring import JoinTerms, Ring
from molink.errors import StageError
from molink.serving.model_card import ModelCard
from molink.stage_protocol.messages import StageLoaded
from molink.tasks import gathered
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.recovery.members import Room

ADDRESSES_MAX = 16
"""Most addresses of a link, as messages allow."""


BUILD_TIMEOUT_S = 3600.0
"""Loading includes a download over a home line: 5 GB at 20 Mbps take 35 minutes."""

JOIN_S = 120.0
"""From loaded to joined: a node looks for a path to the next one for a minute at most, and waits
for an answer there for less; then it says so itself."""


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

    async with _deadline(BUILD_TIMEOUT_S, stages, _has_loaded, "has not loaded its layers"):
        loaded = await gathered(stage.load(report(index)) for index, stage in enumerate(stages))
    capacity = min(stage.kv_tokens_capacity for stage in loaded)
    slots = [stage.state_slots for stage in loaded if stage.state_slots is not None]
    most = [stage.requests_max for stage in loaded if stage.requests_max is not None]
    routes = await reroute(routes_of(stages, loaded, terms.coordinator))
    ring = replace(
        terms.ring,
        kv_tokens_capacity=capacity,
        state_slots=min(slots, default=None),
        requests_max=min(most, default=None),
        micro_batch_candidates=micro_batch_candidates(len(stages)),
    )
    ring = with_caches(ring, loaded)
    async with _deadline(JOIN_S, stages, _has_joined, "has not joined its ring"):
        await gathered(
            stage.enter(
                Join(
                    work=stage.work,
                    terms=ring,
                    next_link=to_next,
                    coordinator_link=routes.sampled if stage is stages[-1] else None,
                )
            )
            for stage, to_next in zip(stages, routes.next_of, strict=True)
        )
    return Ring(stages, replace(terms, ring=ring), routes.requests)


def with_caches(ring: RingTerms, loaded: Sequence[StageLoaded]) -> RingTerms:
    """The terms of a ring, with what all of its stages have room to cache beside their KV, how
    close they keep cut prompts, and whether its tail drafts."""
    keeping = [stage for stage in loaded if stage.state_slots is not None]
    snapshots = min((stage.state_snapshots for stage in keeping), default=0)
    tiers = CacheTiers.of_ring([stage.tiers or CacheTiers() for stage in loaded])
    can_go_back = all(stage.can_go_back for stage in keeping)
    return replace(
        ring,
        tiers=tiers,
        state_snapshots=snapshots,
        can_go_back=can_go_back,
        folds=min(stage.folds for stage in loaded),
        drafts_at_tail=loaded[-1].drafts,
    )


def room_of(loaded: StageLoaded) -> Room:
    """Room of a stage as its ring's recovery counts it."""
    return Room(loaded.kv_tokens_capacity, loaded.state_slots)


def micro_batch_candidates(stages: int) -> tuple[int, ...]:
    """How many micro-batches may circle on a ring of so many stages."""
    return tuple(range(1, 2 * stages + 1))


@asynccontextmanager
async def _deadline(
    within_s: float, stages: Sequence[AgentStage], is_done: Callable[[AgentStage], bool], what: str
) -> AsyncIterator[None]:
    """Bound on a block. Raises StageError when it is over, and blames all stages that are late."""
    try:
        async with asyncio.timeout(within_s):
            yield
    except TimeoutError:
        late = [stage for stage in stages if not is_done(stage)]
        errors = [stage.fail(f"{stage.name} {what} within {within_s:.0f} s.") for stage in late]
        raise (errors or [StageError("The ring was not built in time.")])[0] from None


def _has_loaded(stage: AgentStage) -> bool:
    return stage.loaded is not None


def _has_joined(stage: AgentStage) -> bool:
    return stage.has_joined


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


def routes_of(
    stages: Sequence[AgentStage], loaded: Sequence[StageLoaded], coordinator: StageLink
) -> RingRoutes:
    """Every link between stages that have loaded."""
    head_port, relay = loaded[0].coordinator_port, coordinator.relay
    assert head_port is not None, "what a head reports was checked"
    ports = [(stage.node, one.port) for stage, one in zip(stages, loaded, strict=True)]
    if len(stages) > 1:
        next_of = tuple(link_to(*port, "ring", relay) for port in (*ports[1:], ports[0]))
    else:
        next_of = (_link_to_itself(*ports[0]),)
    return RingRoutes(link_to(stages[0].node, head_port, "requests", relay), next_of, coordinator)


def _link_to_itself(node: Node, port: int) -> StageLink:
    """Link of a ring of one PC."""
    link = link_to(node, port, "ring", "")
    addresses = (f"127.0.0.1:{port}", *link.addresses)[:ADDRESSES_MAX]
    return link.model_copy(update={"addresses": addresses})


class RingEndpoint(Protocol):
    """The coordinator's ends of the links to one ring."""

    async def open(self, stages: Sequence[AgentStage]) -> JoinTerms:
        """Listen for the tail; what the stages are to join with."""

    def admit(self, stages: Sequence[AgentStage]) -> None:
        """Accept the link of the tail, which may be another one than before."""

    async def reroute(self, routes: RingRoutes) -> RingRoutes:
        """The links as they shall be used, once it is known where they end."""

    async def reroute_one(self, link: StageLink) -> StageLink:
        """The link to a shadow as it shall be used."""

    async def watch(self, ring: Ring) -> None:
        """Keep both links of a ring that has joined going, until cancelled. Raises StageError when
        one cannot go on."""

    def fitting(self, ring: Ring) -> ModelCard:
        """The card of the model as a ring has room for it."""

    def client(self, ring: Ring) -> RingClient:
        """A client of a ring to whose head no link is open yet."""

    async def connect(self, ring: Ring) -> RingClient:
        """Open the link to the head, while `watch` runs. Raises RingError."""

    async def begin_epoch(self, ring: Ring) -> None:
        """Take messages of the ring's next epoch, and lead to its head, while `watch` runs. Raises
        RingError."""

    async def close(self) -> None:
        """Close both links; a second call does nothing."""
