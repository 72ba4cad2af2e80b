"""The coordinator's ends of the links to one ring of agents: tokens come from its tail, requests go
to its head.

The tail dials us: at our own port, or at our relay's, which forwards it. We dial the head like any
neighbour: directly where that works, through the relay where it does not, and we move to a better
path when one is found. All of it is CURVE; only this ring's tail is accepted.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from molink.control.identity import KeyPair
from molink.control.messages.payloads import StageLink
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.client import RingClient
from molink.coordinator.ring.links import RingClientLinks
from molink.coordinator.ring.ring import JoinTerms, Ring
from molink.coordinator.services import CoordinatorRelay, own_host
from molink.coordinator.upkeep.ring_building import RingRoutes
from molink.errors import RingError
from molink.serving.model_card import ModelCard
from molink.transport.paths.choose import Path
from molink.transport.paths.keeper import LinkEnd, PathKeeper
from molink.transport.paths.reach import Reach
from molink.wire.curve_keys import CurveKeys
from molink_scheduler.head.settings import RingTerms

PATH_WITHIN_S = 30.0
"""Until a path to the head is found: the relay answers at once, direct addresses within seconds."""


@dataclass(slots=True)
class CoordinatorEndpoint:
    """The ends of both links to one ring of agents, in one epoch."""

    keys: KeyPair
    card: ModelCard
    terms: RingTerms
    listen_host: str
    public_host: str
    relay: CoordinatorRelay
    epoch: int
    path: Path = field(default_factory=lambda: Path("none"))
    """To the head."""
    _links: RingClientLinks | None = None
    _keeper: PathKeeper | None = None
    _found: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def _port_name(self) -> str:
        return f"sampled-{self.epoch}"

    async def open(self, stages: Sequence[AgentStage]) -> JoinTerms:
        """Listen for the tail."""
        allowed = (stages[-1].node.public_key,)
        keys = CurveKeys(self.keys.public_z85, self.keys.secret_z85, allowed)
        self._links = RingClientLinks.bind(self.listen_host, self.epoch, keys)
        port = self._links.port
        self.relay.forward(self._port_name, f"{own_host(self.listen_host)}:{port}")
        link = StageLink(
            to="coordinator",
            public_key=self.keys.public_z85,
            addresses=(f"{self.public_host}:{port}",),
            port_name=self._port_name,
            relay=self.relay.address,
        )
        return JoinTerms(self.terms, link)

    def admit(self, stages: Sequence[AgentStage]) -> None:
        """Accept the link of the tail, which may be another one than before, and of nobody else."""
        assert self._links is not None, "the tail is awaited first"
        self._links.allow((stages[-1].node.public_key,))

    async def reroute(self, routes: RingRoutes) -> RingRoutes:
        """The links as they are: each node finds the best path by itself."""
        return routes

    async def reroute_one(self, link: StageLink) -> StageLink:
        """The link as it is."""
        return link

    async def watch(self, ring: Ring) -> None:
        """Find a path to the head, and a better one later, until cancelled. Then none is known:
        what the next epoch is to use is found by its own `watch`, which runs after who waits for
        it."""
        link = ring.requests_link
        caller = self.relay.caller if link.relay else None
        reach = await asyncio.to_thread(Reach.of, [self.public_host])
        end = LinkEnd(link.to, link.port_name, reach.permitted(link.addresses))
        self._keeper = PathKeeper(end, caller, self._moved)
        try:
            await self._keeper.run()
        finally:
            self._keeper, self.path = None, Path("none")
            self._found.clear()

    def fitting(self, ring: Ring) -> ModelCard:
        """The card of the model as a ring has room for it."""
        terms = ring.terms.ring
        return self.card.fitting(terms.tokens_most, borrows=terms.requests_max is not None)

    def client(self, ring: Ring) -> RingClient:
        """A client of a ring to whose head no link is open yet."""
        assert self._links is not None, "the tail is awaited first"
        return RingClient(self.fitting(ring), ring, self._links, lambda: self._failed(self.path))

    async def connect(self, ring: Ring) -> RingClient:
        """Open the link to the head once there is a path to it. Raises RingError."""
        assert self._links is not None, "the tail is awaited first"
        await self._path_found()
        key = ring.requests_link.public_key
        await self._links.connect(f"tcp://{self.path.address}", key)
        return self.client(ring)

    async def begin_epoch(self, ring: Ring) -> None:
        """Lead to the head of the ring's next epoch. Raises RingError."""
        assert self._links is not None, "a ring goes on that was connected"
        await self._path_found()
        key = ring.requests_link.public_key
        await self._links.begin_epoch(ring.epoch, f"tcp://{self.path.address}", key)

    async def _path_found(self) -> None:
        try:
            async with asyncio.timeout(PATH_WITHIN_S):
                await self._found.wait()
        except TimeoutError:
            raise RingError("The coordinator finds no way to the ring's head.") from None

    async def close(self) -> None:
        """Close both links; a second call does nothing."""
        links, self._links = self._links, None
        try:
            self.relay.forward_no_more(self._port_name)
        finally:
            if links is not None:
                await asyncio.to_thread(links.close)

    async def _moved(self, path: Path) -> None:
        if path.kind == "none":
            return
        is_first, self.path = self.path.kind == "none", path
        self._found.set()
        if not is_first and self._links is not None and self._links.head is not None:
            outcome = await self._links.move_head(f"tcp://{path.address}")
            if not outcome.moved:
                self._failed(path)

    def _failed(self, path: Path) -> None:
        """Nothing reaches the head over a path."""
        if self._keeper is not None:
            self._keeper.failed(path)
