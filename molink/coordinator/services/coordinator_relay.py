"""The relay as its coordinator uses it: in this process, or on a rented server with a better line.

Of the first the coordinator forwards its ports itself; at the second it registers as any node does,
and its ports are reached through that registration. Nodes see no difference: they are told an
address and a token, which is made from the secret that the coordinator shares with its relay.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from molink.config.up_settings import UpSettings
from molink.transport.relay.caller import RelayCaller
from molink.transport.relay.protocol import COORDINATOR, relay_token
from molink.transport.relay.receiver import RelayReceiver
from molink.transport.relay.secret_file import read_secret
from molink.transport.relay.server import RelayServer

__all__ = ["CoordinatorRelay", "RelayElsewhere", "RelayHere", "start_relay"]


class CoordinatorRelay(Protocol):
    """One of the two."""

    @property
    def address(self) -> str:
        """host:port for nodes."""

    @property
    def caller(self) -> RelayCaller:
        """With which the coordinator dials nodes."""

    @property
    def trouble(self) -> str:
        """Why the coordinator cannot be reached through it; empty when it can."""

    def token(self, node_id: str) -> str:
        """With which a node proves itself."""

    def forward(self, port_name: str, address: str) -> None:
        """Who asks for this port of the coordinator reaches `host:port`."""

    def forward_no_more(self, port_name: str) -> None:
        """Undo it for connections to come."""

    def forbid(self, node_id: str) -> None:
        """A node was removed."""

    async def stop(self) -> None:
        """End every connection of ours."""


@dataclass(slots=True)
class RelayHere:
    """In this process; `server` has started."""

    server: RelayServer
    secret: bytes
    listen_host: str
    public_host: str

    @property
    def address(self) -> str:
        """See `CoordinatorRelay`."""
        return f"{self.public_host}:{self.server.port}"

    @property
    def caller(self) -> RelayCaller:
        """Over loopback where it listens there: a public name often leads nowhere from inside."""
        host = "127.0.0.1" if self.listen_host == "0.0.0.0" else self.listen_host
        return RelayCaller(f"{host}:{self.server.port}", COORDINATOR, self.token(COORDINATOR))

    @property
    def trouble(self) -> str:
        """Never any: it ends with us."""
        return ""

    def token(self, node_id: str) -> str:
        """See `CoordinatorRelay`."""
        return relay_token(self.secret, node_id)

    def forward(self, port_name: str, address: str) -> None:
        """See `CoordinatorRelay`."""
        self.server.forward(COORDINATOR, port_name, address)

    def forward_no_more(self, port_name: str) -> None:
        """See `CoordinatorRelay`."""
        self.server.forward_no_more(COORDINATOR, port_name)

    def forbid(self, node_id: str) -> None:
        """Its connections end at once, and it is not let in again."""
        self.server.forbid(node_id)

    async def stop(self) -> None:
        """See `CoordinatorRelay`."""
        await self.server.stop()


@dataclass(slots=True)
class RelayElsewhere:
    """`molink relay` on another machine; made by `start`."""

    address: str
    secret: bytes
    _receiver: RelayReceiver = field(init=False)
    _receiving: "asyncio.Task[None]" = field(init=False)

    def __post_init__(self) -> None:
        """Registers from now on, however long that takes: a relay may be started later."""
        self._receiver = RelayReceiver(self.caller)
        self._receiving = asyncio.create_task(self._receiver.run())

    @property
    def caller(self) -> RelayCaller:
        """See `CoordinatorRelay`."""
        return RelayCaller(self.address, COORDINATOR, self.token(COORDINATOR))

    @property
    def trouble(self) -> str:
        """Why we are not registered there; empty when we are."""
        return self._receiver.trouble

    def token(self, node_id: str) -> str:
        """See `CoordinatorRelay`."""
        return relay_token(self.secret, node_id)

    def forward(self, port_name: str, address: str) -> None:
        """See `CoordinatorRelay`."""
        self._receiver.open(port_name, address)

    def forward_no_more(self, port_name: str) -> None:
        """See `CoordinatorRelay`."""
        self._receiver.close(port_name)

    def forbid(self, node_id: str) -> None:
        """It cannot be told: the node may still dial there, but nobody it reaches lets it in."""

    async def stop(self) -> None:
        """See `CoordinatorRelay`."""
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)


async def start_relay(
    settings: UpSettings, own_secret: bytes, is_member: Callable[[str], bool]
) -> CoordinatorRelay:
    """As `--relay` says. Raises UserError when a port is taken or the secret cannot be read."""
    if settings.relay:
        return RelayElsewhere(settings.relay, read_secret(settings.relay_secret_file))
    server = RelayServer(
        own_secret,
        settings.host,
        settings.relay_port,
        lambda node_id: node_id == COORDINATOR or is_member(node_id),
    )
    await server.start()
    return RelayHere(server, own_secret, settings.host, settings.public_host)
