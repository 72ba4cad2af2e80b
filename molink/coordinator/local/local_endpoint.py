"""The coordinator's ends of the links to a ring of local nodes, whose hops may be emulated.

Nothing is encrypted and no path is looked for, as between the processes of one machine or within a
trusted network (`--hosts`). What is added here is what only one machine can do: an emulator between
the processes, and their ids.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from molink.coordinator.local.fixed_plan import RingPlan
from molink.coordinator.local.link_emulator import LinkEmulator
from molink.coordinator.local.local_node import LocalNode
from molink.coordinator.requests.link_memory import KnownLink, LinkMemoryFile, keep_up_to_date
from molink.coordinator.requests.ring import COORDINATOR
from molink.coordinator.requests.ring_client import RingClient
from molink.coordinator.requests.ring_client_links import RingClientLinks
from molink.coordinator.requests.ring_links import known_links
from molink.coordinator.rings.agent_ring import AgentRing, JoinTerms, RingRoutes
from molink.coordinator.rings.agent_stage import AgentStage
from molink.serving.service import ModelCard
from molink.tasks import gathered

__all__ = ["LocalEndpoint"]


@dataclass(slots=True)
class LocalEndpoint:
    """The ends of both links to one ring of local nodes, in one epoch."""

    card: ModelCard
    plan: RingPlan
    terms: JoinTerms
    """But for the coordinator's address, which differs from ring to ring."""
    nodes: Sequence[LocalNode]
    memory: LinkMemoryFile | None
    """Where what is seen of links is kept; None: they are never met again."""
    epoch: int
    _links: RingClientLinks | None = None
    _client: RingClient | None = None
    _emulator: LinkEmulator | None = None

    async def open(self, stages: Sequence[AgentStage]) -> JoinTerms:
        """Listen for the tail."""
        host = self.plan.hosts.coordinator_address
        self._links = RingClientLinks.bind(host, self.epoch)
        address = f"{host}:{self._links.port}"
        return replace(self.terms, coordinator_addresses=(address,))

    async def reroute(self, routes: RingRoutes) -> RingRoutes:
        """The links through an emulator, if they are to be emulated."""
        if self.plan.link is None:
            return routes
        self._emulator = await LinkEmulator.start(self.plan.link, routes)
        return self._emulator.routes

    async def connect(self, ring: AgentRing) -> RingClient:
        """Open the link to the head. Raises RingError."""
        assert self._links is not None, "the tail is awaited first"
        for stage, node in zip(ring.stages, self.nodes, strict=True):
            stage.pid = node.pid
        address = f"tcp://{ring.requests_link.addresses[-1]}"
        await self._links.connect(address, self.plan.memory(COORDINATOR, 0))
        card = self.card.fitting(ring.kv_tokens_capacity)
        self._client = RingClient(card, ring, self._links, head_silent=lambda: None)
        return self._client

    async def watch(self) -> None:
        """Keep what is seen of links between hosts. Raises StageError when the emulator ends."""
        watches = [self._emulator.watch()] if self._emulator is not None else []
        if self.memory is not None:
            watches.append(keep_up_to_date(self.memory, self._links_seen))
        await gathered(watches)

    async def close(self) -> None:
        """Close both links; a second call does nothing."""
        links, self._links = self._links, None
        if links is not None:
            await asyncio.to_thread(links.close)
        emulator, self._emulator = self._emulator, None
        if emulator is not None:
            await emulator.child.stop()

    def _links_seen(self) -> Iterator[tuple[str, str, KnownLink]]:
        client = self._client
        assert client is not None, "links are kept of a ring that serves"
        return known_links(client.ring, client.links, self.plan.address, time.time())
