"""One ring from its plan to its end: load, join, serve, drain.

A task of its own; the manager asks it to drain or cancels it, and sees in `state` how far it is.
However it ends, its members are told to stand by, unless they were told something else since.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from molink.coordinator.members.node_book import Node
from molink.coordinator.planning.cluster_plan import PlannedRing
from molink.coordinator.requests.cluster_service import ClusterService, ServingRing
from molink.coordinator.requests.ring_client import RingClient
from molink.coordinator.rings.agent_ring import AgentRing, JoinTerms, build_ring
from molink.coordinator.rings.agent_stage import AgentStage
from molink.errors import MolinkError, StageError

__all__ = ["RingEndpoint", "RingState", "RingSupervisor"]

log = logging.getLogger(__name__)

BUILD_TIMEOUT_S = 3600.0
"""Loading includes a download over a home line: 5 GB at 20 Mbps take 35 minutes."""

OPEN_TIMEOUT_S = 180.0
"""From joined to serving: a path to the head, and the check of a codec over slow links."""

DRAIN_S = 30.0
"""Running answers may end where they are; what is left then goes on in another ring."""


class RingState(StrEnum):
    """How far a ring is."""

    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"
    ENDED = "ended"


class RingEndpoint(Protocol):
    """The coordinator's ends of the links to one ring."""

    async def open(self, stages: Sequence[AgentStage]) -> JoinTerms:
        """Listen for the tail; what the stages are told then."""

    async def connect(self, ring: AgentRing) -> RingClient:
        """Open the link to the head of a ring that has joined. Raises RingError."""

    async def close(self) -> None:
        """Close both."""


@dataclass(slots=True)
class RingSupervisor:
    """A ring, planned, alive or ended."""

    number: int
    plan: PlannedRing
    stages: Sequence[AgentStage]
    door: RingEndpoint
    codec: str
    """As `--wire`."""
    service: ClusterService
    stand_by: Callable[[Node, int], Awaitable[None]]
    """Tells a node to hold nothing, if its last assignment was for this epoch."""
    changed: Callable[[], None]
    """The manager looks again."""
    state: RingState = RingState.LOADING
    failure: str = ""
    fractions: dict[int, float] = field(default_factory=dict)
    """Of each stage's loading."""
    _drain: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def epoch(self) -> int:
        """Of all its messages."""
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

    async def live(self) -> None:
        """Until it is drained, lost or cancelled; never raises what MoLink foresees."""
        try:
            async with asyncio.timeout(BUILD_TIMEOUT_S):
                ring = await self._built()
            if ring is not None:
                await self._serve(ring)
        except TimeoutError:
            self.failure = "It took too long to load or to answer."
        except MolinkError as error:
            self.failure = str(error)
        except Exception as error:  # What a node says may be impossible in new ways.
            log.exception("ring %d has failed", self.number)
            self.failure = f"It stopped on {type(error).__name__}."
        finally:
            self.state = RingState.ENDED
            await asyncio.shield(self._release())
            self.changed()

    async def _built(self) -> AgentRing | None:
        """The ring; None when it was told to drain before it stood."""
        terms = await self.door.open(self.stages)
        building = asyncio.ensure_future(build_ring(self.stages, terms, self._progressed))
        draining = asyncio.ensure_future(self._drain.wait())
        try:
            await asyncio.wait({building, draining}, return_when=asyncio.FIRST_COMPLETED)
            return building.result() if building.done() else None
        finally:
            building.cancel()
            draining.cancel()

    def _progressed(self, index: int, fraction: float) -> None:
        self.fractions[index] = fraction
        self.changed()

    async def _serve(self, ring: AgentRing) -> None:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            coordinator = await self.door.connect(ring)
        watching = asyncio.create_task(coordinator.watch())
        serving = ServingRing(self.number, coordinator, self.plan.tokens_per_s, self.plan.promised)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await coordinator.choose_codec(self.codec)
            if not self._drain.is_set():
                self.state = RingState.SERVING
            self._open(serving)
            await self._until_drained(coordinator)
        finally:
            watching.cancel()
            self._close(serving)

    def _open(self, serving: ServingRing) -> None:
        self.service.rings.append(serving)
        self.service.rings_changed()
        self.changed()

    def _close(self, serving: ServingRing) -> None:
        serving.coordinator.end("The ring has ended.")
        if serving in self.service.rings:
            self.service.rings.remove(serving)
        self.service.rings_changed()

    async def _until_drained(self, coordinator: RingClient) -> None:
        """Raises StageError when the ring is lost."""
        draining = asyncio.ensure_future(self._drain.wait())
        try:
            ends: set[asyncio.Future[Any]] = {draining, coordinator.lost}
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            draining.cancel()
        if coordinator.lost in done:
            raise StageError(str(coordinator.lost.result()))
        for ring in self.service.rings:
            ring.draining = ring.draining or ring.coordinator is coordinator
        idle = asyncio.ensure_future(coordinator.until_idle())
        ends = {idle, coordinator.lost}
        await asyncio.wait(ends, timeout=DRAIN_S, return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()

    async def _release(self) -> None:
        await self.door.close()
        await asyncio.gather(*(self.stand_by(stage.node, self.epoch) for stage in self.stages))
