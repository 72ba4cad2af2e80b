"""Supervisor of one ring, from its plan to its end: load, join, serve, drain.

`run` is a task of its own; the manager drains or cancels it, and sees in `state` how far it is.
However it ends, its members stand by, unless they were assigned something else since.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from molink.coordinator.members.node_book import Node
from molink.coordinator.members.ring import AgentStage, JoinTerms, Ring
from molink.coordinator.planning.cluster_plan import PlannedRing
from molink.coordinator.requests.cluster_service import ClusterService, ServingRing
from molink.coordinator.requests.ring_client import RingClient
from molink.coordinator.rings.ring_builder import RingRoutes, build_ring
from molink.errors import ErrorGuard, MolinkError, StageError
from molink.tasks import background_tasks, unless

__all__ = ["RingEndpoint", "RingState", "RingSupervisor"]

log = logging.getLogger(__name__)

BUILD_TIMEOUT_S = 3600.0
"""Loading includes a download over a home line: 5 GB at 20 Mbps take 35 minutes."""

OPEN_TIMEOUT_S = 180.0
"""From joined to serving: a path to the head, and the check of a codec over slow links."""

DRAIN_S = 30.0
"""Running answers may end where they are; what is left then goes on in another ring."""


class RingState(StrEnum):
    """Progress of a ring, from loading to its end."""

    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"
    ENDED = "ended"


class RingEndpoint(Protocol):
    """The coordinator's ends of the links to one ring."""

    async def open(self, stages: Sequence[AgentStage]) -> JoinTerms:
        """Listen for the tail; what the stages are to join with."""

    async def reroute(self, routes: RingRoutes) -> RingRoutes:
        """The links as they shall be used, once it is known where they end."""

    async def watch(self, ring: Ring) -> None:
        """Keep both links of a ring that has joined going, until cancelled. Raises StageError when
        one cannot go on."""

    async def connect(self, ring: Ring) -> RingClient:
        """Open the link to the head, while `watch` runs. Raises RingError."""

    async def close(self) -> None:
        """Close both links; a second call does nothing."""


@dataclass(slots=True)
class RingSupervisor:
    """One ring: planned, loading, serving or ended."""

    number: int
    plan: PlannedRing
    stages: Sequence[AgentStage]
    endpoint: RingEndpoint
    codec: str
    """As `--wire`."""
    service: ClusterService
    stand_by: Callable[[Node, int], Awaitable[None]]
    """Has a node hold nothing, if its last assignment was for this epoch."""
    wake: asyncio.Event
    """Set for the manager when something has changed."""
    state: RingState = RingState.LOADING
    has_served: bool = False
    error: MolinkError | None = None
    """Why it has failed; None unless it has."""
    fractions: dict[int, float] = field(default_factory=dict)
    """Of each stage's loading."""
    _drain: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def epoch(self) -> int:
        """Number of this ring in all its messages."""
        return self.stages[0].epoch

    @property
    def loaded_share(self) -> float:
        """How far loading is, on average."""
        return sum(self.fractions.values()) / len(self.stages)

    def drain(self) -> None:
        """Take no more requests, let those that run end, then end."""
        if self.state in (RingState.LOADING, RingState.SERVING):
            self.state = RingState.DRAINING
            self._drain.set()

    async def run(self) -> None:
        """Until it is drained, lost or cancelled; a failure is kept in `error`."""
        try:
            ring = await self._build()
            if ring is not None:
                await self._serve(ring)
        except TimeoutError:
            self.error = StageError("It took too long to load or to answer.")
        except MolinkError as error:
            self.error = error
        except Exception as error:  # What a node reports may be impossible in new ways.
            log.exception("ring %d has failed", self.number)
            self.error = StageError(f"It stopped on {type(error).__name__}.")
        finally:
            self.state = RingState.ENDED
            await asyncio.shield(self._release())
            self.wake.set()

    async def _build(self) -> Ring | None:
        """The ring; None when it was to be drained before it stood."""
        async with asyncio.timeout(BUILD_TIMEOUT_S):
            terms = await self.endpoint.open(self.stages)
            building = build_ring(self.stages, terms, self._progressed, self.endpoint.reroute)
            return await unless(self._drain, building)

    def _progressed(self, index: int, fraction: float) -> None:
        self.fractions[index] = fraction
        self.wake.set()

    async def _serve(self, ring: Ring) -> None:
        """Until it is drained. Raises StageError or RingError when it is lost."""
        async with background_tasks() as tasks:
            tasks.create_task(ring.watch())
            tasks.create_task(self.endpoint.watch(ring))
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                client = await self.endpoint.connect(ring)
            tasks.create_task(client.run())
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await client.choose_codec(self.codec)
            await self._take_requests(client)

    async def _take_requests(self, client: RingClient) -> None:
        """Until drained, and those that run have ended."""
        serving = ServingRing(self.number, client, self.plan.tokens_per_s, self.plan.promised)
        if not self._drain.is_set():
            self.state = RingState.SERVING
        self.has_served = True
        self.service.add(serving)
        self.wake.set()
        try:
            await self._drain.wait()
            serving.draining = True
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    await client.until_idle()
        finally:
            self.service.remove(serving)

    async def _release(self) -> None:
        with ErrorGuard(f"Ending ring {self.number}"):
            await self.endpoint.close()
            await asyncio.gather(*(self.stand_by(one.node, self.epoch) for one in self.stages))
