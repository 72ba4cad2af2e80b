"""The broker of the control plane: one in this process, or an external one by its URL.

docs/benchmarks/control.md shows how far the one in this process goes. The same tests hold it and a
Mosquitto, as one that an operator runs, to the same rules. Starting a Mosquitto ourselves was
rejected: it needed supervision, a user of its own and a reload for each node that joins, and an
operator who wants one can run it as any other service.
"""

from pathlib import Path
from typing import Protocol

from molink.control.addresses import BrokerAddress, Credentials, ServerTrust, TlsFiles
from molink.control.broker.embedded import EmbeddedBroker
from molink.control.broker.external import ExternalBroker
from molink.errors import UserError


class Broker(Protocol):
    """MQTT broker, as far as the coordinator needs it."""

    async def start(self) -> None:
        """Listen. Raises UserError when that cannot be."""

    async def stop(self) -> None:
        """End it; a second call does nothing."""

    @property
    def address(self) -> BrokerAddress:
        """Where it listens, and what our own client checks it by; the port is known once it has
        started."""

    @property
    def trust(self) -> ServerTrust | None:
        """What agents accept its certificate by; None: it speaks plain MQTT."""

    @property
    def coordinator(self) -> Credentials:
        """Credentials that may read and write everything."""

    async def allow(self, username: str, password: str) -> Credentials:
        """Let a node connect, now and until it is forbidden; return its credentials.

        When this returns it can connect. Before `start` it costs nothing: that is how a coordinator
        lets in all the nodes that it knows. `password` is a random token of at least 16 bytes.
        Raises UserError for a name that is no node id, ControlError when the list of users
        cannot be read, JoinRefusedError when somebody else decides and has not let the node in.
        """

    async def forbid(self, username: str) -> None:
        """Refuse a node from now on and end its connection, without its last will."""


def open_broker(
    choice: str,
    host: str,
    port: int,
    tls: TlsFiles | None = None,
    users: Path | None = None,
) -> Broker:
    """The broker that an operator has asked for, not yet started.

    `choice` is a URL or "embedded". Port 0 picks a free one. Without `tls` the embedded broker
    speaks plain MQTT, which is for loopback only; `users` is the file of the nodes' users at a
    broker by URL. Raises UserError when it cannot be had.
    """
    if "://" in choice:
        return ExternalBroker(choice, users)
    if choice != "embedded":
        raise UserError(
            f"{choice!r} is no broker: leave --broker out for the one in the coordinator's "
            "process, or run a broker yourself, such as Mosquitto, and give "
            "mqtts://USER:PASSWORD@HOST."
        )
    return EmbeddedBroker(host, port, tls)
