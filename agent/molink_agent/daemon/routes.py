"""Routes of a stage's outgoing links, direct or through the relay, and the ports that others reach.

For each link a keeper finds a path, and a better one later; the stage is told, and moves the link
when nothing is in flight.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import assert_never

from molink.control.messages.assignment import Follow, GoOn, InRing, Join
from molink.control.messages.payloads import Services, StageLink
from molink.errors import LinkLostError
from molink.node.hosting import MoveLink
from molink.stage_protocol.messages import (
    EnterRing,
    FollowRing,
    JoinRing,
    MovePath,
    OutgoingLink,
    PathMoved,
    StageLoaded,
)
from molink.tasks import cancel, spawn
from molink.transport.paths.choose import Path
from molink.transport.paths.keeper import LinkEnd, PathKeeper
from molink.transport.paths.reach import Reach
from molink.transport.relay.client import Pauses, RelayCaller, RelayReceiver
from molink_agent.data_files import AgentOptions
from molink_agent.limits.limits import DEVICES_MAX
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.network.port_mapping import PortMapper
from molink_agent.network.shared_line import LocalPorts, SharedUplink

log = logging.getLogger(__name__)

PATH_WITHIN_S = 60.0
"""Seconds until the first path of a link is found: the neighbour may be restarting its router."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Address at which this PC listens for neighbours; loopback if none may connect."""

    options: AgentOptions
    limits: LimitsFile

    @property
    def host(self) -> str:
        """Address to listen at."""
        return self.options.listen if self.limits.limits.direct else "127.0.0.1"

    @property
    def first_link_port(self) -> int:
        """Least port at which links listen: behind those of measurements; 0: any free one."""
        first = self.options.data_port
        return first + DEVICES_MAX if first else 0

    @property
    def local_host(self) -> str:
        """Address at which this PC itself reaches what listens."""
        return "127.0.0.1" if self.host == "0.0.0.0" else self.host


@dataclass(slots=True)
class _Route:
    """Route of one outgoing link."""

    keeper: PathKeeper
    task: "asyncio.Task[None]"
    moving_to: str = ""
    """Address to which the stage was told to lead the link, until it has reported how that ended;
    empty: no move is under way."""


@dataclass(slots=True)
class RelayedRoutes:
    """Routes of all links of one node's stage; an agent's LinkRoutes."""

    node_id: str
    listen_address: ListenAddress
    ports: LocalPorts
    uplink: SharedUplink
    mapper: PortMapper
    """Port mapper, which lets neighbours in at the router."""
    find_reach: Callable[[], Reach]
    """Function that finds where others may send this PC; it looks names up."""
    pauses: Pauses = field(default_factory=Pauses)
    """Pauses between attempts to register."""
    caller: RelayCaller | None = None
    _retrying: "asyncio.Task[None] | None" = None
    """Task that runs until the relay is where one can be."""
    _receiver: RelayReceiver | None = None
    _receiving: "asyncio.Task[None] | None" = None
    _routes: dict[OutgoingLink, _Route] = field(default_factory=dict)
    _joined: bool = False

    def upload_bytes_per_s(self) -> float | None:
        """This stage's share of the owner's cap, as it is now; None: no cap."""
        return self.uplink.share_bytes_per_s(self.node_id)

    async def use(self, services: Services) -> None:
        """Register with the coordinator's relay, unless that is where no relay can be now: its name
        may not be found, or we are in another network later."""
        caller = RelayCaller(services.relay, self.node_id, services.relay_token)
        await cancel(self._retrying)
        if self._receiver is not None and caller == self.caller:
            self._receiver.retry()  # The coordinator is there again, perhaps its relay with it.
        if not services.relay or caller == self.caller:
            return
        if await self._permits(caller):
            await self._register(caller)
            return
        log.warning("the cluster's relay is named at %s, which is not tried yet", services.relay)
        self._retrying = spawn(self._register_later(caller))

    async def _register_later(self, caller: RelayCaller) -> None:
        for pause_s in self.pauses.draw(random.Random()):
            await asyncio.sleep(pause_s)
            if await self._permits(caller):
                await self._register(caller)
                return

    async def _permits(self, caller: RelayCaller) -> bool:
        reach = await self.reach()
        return await asyncio.to_thread(reach.permits_service, caller.address)

    async def _register(self, caller: RelayCaller) -> None:
        await cancel(self._receiving)
        self.caller, self._receiver = caller, RelayReceiver(caller, self.pauses)
        for name, address in self.ports.of_node(self.node_id).items():
            self._receiver.open(name, address)
        self._receiving = spawn(self._receiver.run())

    async def reach(self) -> Reach:
        """Addresses at which others may send to this PC now: its networks change."""
        return await asyncio.to_thread(self.find_reach)

    def open_port(self, name: str, port: int) -> None:
        """Lead nodes of this PC, and callers of the relay, to a port that listens here."""
        address = f"{self.listen_address.local_host}:{port}"
        self.ports.listens(self.node_id, name, address)
        if self._receiver is not None:
            self._receiver.open(name, address)

    def listen(self, loaded: StageLoaded) -> None:
        """Lead others to the ports at which the stage listens."""
        ports = {"ring": loaded.port, "requests": loaded.coordinator_port}
        listening = {name: port for name, port in ports.items() if port is not None}
        self.mapper.want(f"stage of {self.node_id}", listening.values())
        for name, port in listening.items():
            self.open_port(name, port)

    async def join_command(self, epoch: int, command: InRing, move: MoveLink) -> EnterRing:
        """Find the first path of each link; `move` is called for better paths later. Raises
        LinkLostError when a link has none."""
        await self._close_routes()
        outside = self.ports.leads_outside(command.links)
        self.uplink.set_sending(self.node_id, outside=outside)
        order: EnterRing
        match command:
            case Join() | GoOn():
                order = await self._join_command(epoch, command, move)
            case Follow(terms=terms):
                order = FollowRing(epoch, terms)
            case other:
                assert_never(other)
        self._joined = True
        return order

    async def _join_command(self, epoch: int, command: Join | GoOn, move: MoveLink) -> JoinRing:
        reach = await self.reach()
        next_link = self._permitted(command.next_link, reach)
        next_path = await self._path("next", self.ports.nearer_link(next_link), move)
        coordinator = None
        if (tail_link := command.coordinator_link) is not None:
            coordinator = await self._path("coordinator", self._permitted(tail_link, reach), move)
        return JoinRing(
            ring=command.terms,
            epoch=epoch,
            next_address=_url(next_path),
            coordinator_address=_url(coordinator) if coordinator else None,
            upload_bytes_per_s=self.upload_bytes_per_s(),
            next_key=next_link.public_key,
            coordinator_key=tail_link.public_key if tail_link else None,
            resume=command.resume if isinstance(command, GoOn) else None,
            next_relayed=next_path.kind == "relay",
        )

    async def shadow_address(self, link: StageLink, move: MoveLink) -> tuple[str, str | None]:
        """Find a path to the next stage's shadow. Raises LinkLostError when there is none."""
        if (old := self._routes.pop("shadow", None)) is not None:
            await cancel(old.task)
        permitted = self._permitted(link, await self.reach())
        path = await self._path("shadow", self.ports.nearer_link(permitted), move)
        return _url(path), link.public_key

    def _permitted(self, link: StageLink, reach: Reach) -> StageLink:
        """The link as it may be followed: only the cluster's own relay leads anywhere."""
        own = self.caller.address if self.caller is not None else ""
        relay = link.relay if link.relay == own else ""
        addresses = reach.permitted(link.addresses)
        return link.model_copy(update={"addresses": addresses, "relay": relay})

    @property
    def paths(self) -> dict[str, str]:
        """Path of each link that the ring needs: "direct" or "relay"."""
        routes = self._routes.items()
        return {name: route.keeper.path.kind for name, route in routes if name != "shadow"}

    def path_moved(self, moved: PathMoved) -> None:
        """The stage has moved a link, or could not, or nothing comes through any more: then the
        keeper looks for another path. Reports about a path that is being left change nothing."""
        route = self._routes.get(moved.link)
        if route is None or route.moving_to not in ("", moved.address):
            return
        route.moving_to = ""
        if not moved.moved:
            route.keeper.failed(route.keeper.path)

    async def leave(self) -> None:
        """End the routes: the stage is in no ring any more."""
        self._joined = False
        self.uplink.set_sending(self.node_id, outside=False)
        await self._close_routes()

    async def close(self) -> None:
        """End the routes and the registration with the relay."""
        await self.leave()
        await cancel(self._retrying, self._receiving)

    async def _path(self, name: OutgoingLink, link: StageLink, move: MoveLink) -> Path:
        found = asyncio.Event()

        async def moved(path: Path) -> None:
            if path.kind == "none":
                return
            if self._joined and found.is_set():
                self._routes[name].moving_to = address = _url(path)
                move(MovePath(name, address, path.kind == "relay"))
            found.set()

        keeper = keeper_of(link, self.caller, moved)
        self._routes[name] = _Route(keeper, spawn(keeper.run()))
        try:
            async with asyncio.timeout(PATH_WITHIN_S):
                await found.wait()
        except TimeoutError:
            raise LinkLostError(
                f"No way leads to {link.to}: {keeper.trouble or 'no answer'}.", name
            ) from None
        return keeper.path

    async def _close_routes(self) -> None:
        routes, self._routes = list(self._routes.values()), {}
        await cancel(*(route.task for route in routes))


def _url(path: Path) -> str:
    return f"tcp://{path.address}"


def keeper_of(
    link: StageLink, caller: RelayCaller | None, moved: Callable[[Path], Awaitable[None]]
) -> PathKeeper:
    """The path keeper of a link as the coordinator describes it.

    `caller`: this node at the cluster's relay. The link names the relay that its receiver is
    registered with; without one, or without `caller`, only direct paths are tried.
    """
    end = LinkEnd(link.to, link.port_name, link.addresses)
    if caller is None or not link.relay:
        return PathKeeper(end, None, moved)
    return PathKeeper(end, replace(caller, address=link.relay), moved)
