"""The paths of a stage's outgoing links, and the ports of it that others reach.

For each link a keeper finds a way, direct or through the relay, and a better one later; the stage
is told, and moves when nothing is in flight.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from molink.control.messages.payloads import Assignment, Services, StageLink
from molink.errors import StageError
from molink.node.link_routes import MovePath, join_terms
from molink.stage_protocol.messages import JoinRing, OutgoingLink, PathMoved, StageLoaded
from molink.transport.paths.choose import Path
from molink.transport.paths.keeper import PathKeeper
from molink.transport.relay.caller import RelayCaller
from molink.transport.relay.receiver import RelayReceiver
from molink_agent.daemon.household import Household
from molink_agent.paths.links import keeper_of

__all__ = ["RelayedRoutes"]

PATH_WITHIN_S = 60.0
"""Until the first path of a link is found: the neighbour may be restarting its router."""


@dataclass(slots=True)
class _Way:
    """One outgoing link."""

    keeper: PathKeeper
    task: "asyncio.Task[None]"
    found: asyncio.Event = field(default_factory=asyncio.Event)
    asked: str = ""
    """Where the stage was told to lead it, until it has said how that ended."""


@dataclass(slots=True)
class RelayedRoutes:
    """All links of one node's stage."""

    node_id: str
    household: Household
    stage_host: Callable[[], str] = field(default=lambda: "127.0.0.1")
    """Where this PC itself reaches its stage."""
    listening: Callable[[tuple[int, ...]], None] = field(default=lambda ports: None)
    """Hears at which ports the stage listens: a router may have to let neighbours in."""
    caller: RelayCaller | None = None
    receiver: RelayReceiver | None = None
    _receiving: "asyncio.Task[None] | None" = None
    _ways: dict[OutgoingLink, _Way] = field(default_factory=dict)
    _joined: bool = False

    def upload_bytes_per_s(self) -> float | None:
        """This stage's share of the owner's cap, as it is now; None: no cap."""
        return self.household.share_bytes_per_s(self.node_id)

    async def use(self, services: Services) -> None:
        """Register with the coordinator's relay."""
        caller = RelayCaller(services.relay, self.node_id, services.relay_token)
        if not services.relay or caller == self.caller:
            return
        await self._stop_receiving()
        self.caller, self.receiver = caller, RelayReceiver(caller)
        self._receiving = asyncio.create_task(self.receiver.run())

    def listen(self, loaded: StageLoaded) -> None:
        """The stage listens: whoever asks the relay for its ports is led there."""
        ports = [loaded.port, loaded.coordinator_port]
        self.listening(tuple(port for port in ports if port is not None))
        for name, port in zip(("ring", "requests"), ports, strict=True):
            if port is None:
                continue
            address = f"{self.stage_host()}:{port}"
            self.household.listens(self.node_id, name, address)
            if self.receiver is not None:
                self.receiver.open(name, address)

    async def join_command(self, assignment: Assignment, move: MovePath) -> JoinRing:
        """Find the first path of each link; `move` is called for better ones later. Raises
        StageError when one has none."""
        assert assignment.join is not None and assignment.next_link is not None
        await self._close_ways()
        self.household.joins(self.node_id, assignment)
        tail_link = assignment.coordinator_link
        next_address = await self._address(
            "next", self.household.nearer(assignment.next_link), move
        )
        coordinator = await self._address("coordinator", tail_link, move) if tail_link else None
        self._joined = True
        return JoinRing(
            epoch=assignment.epoch,
            next_address=next_address,
            coordinator_address=coordinator,
            upload_bytes_per_s=self.upload_bytes_per_s(),
            next_memory=None,
            next_key=assignment.next_link.public_key,
            coordinator_key=tail_link.public_key if tail_link else None,
            **join_terms(assignment.join),
        )

    @property
    def paths(self) -> dict[str, str]:
        """Of each outgoing link "direct" or "relay"."""
        return {name: way.keeper.path.kind for name, way in self._ways.items()}

    def path_moved(self, moved: PathMoved) -> None:
        """The stage has moved a link, or could not, or nothing comes through any more: then the
        keeper looks for another way. What is said of a way that is being left changes nothing."""
        way = self._ways.get(moved.link)
        if way is None or way.asked not in ("", moved.address):
            return
        way.asked = ""
        if not moved.moved:
            way.keeper.failed(way.keeper.path)

    async def leave(self) -> None:
        """The stage is in no ring any more."""
        self._joined = False
        self.household.leaves(self.node_id)
        await self._close_ways()

    async def close(self) -> None:
        """End everything."""
        await self.leave()
        await self._stop_receiving()

    async def _address(self, name: OutgoingLink, link: StageLink, move: MovePath) -> str:
        found = asyncio.Event()

        async def moved(path: Path) -> None:
            if path.kind == "none":
                return
            if self._joined and found.is_set():
                self._ways[name].asked = address = f"tcp://{path.address}"
                move(name, address)
            found.set()

        keeper = keeper_of(link, self.caller, moved)
        self._ways[name] = way = _Way(keeper, asyncio.create_task(keeper.run()), found)
        try:
            async with asyncio.timeout(PATH_WITHIN_S):
                await way.found.wait()
        except TimeoutError:
            raise StageError(
                f"No way leads to {link.to}: {keeper.trouble or 'no answer'}."
            ) from None
        return f"tcp://{keeper.path.address}"

    async def _close_ways(self) -> None:
        ways, self._ways = list(self._ways.values()), {}
        for way in ways:
            way.task.cancel()
        await asyncio.gather(*(way.task for way in ways), return_exceptions=True)

    async def _stop_receiving(self) -> None:
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
