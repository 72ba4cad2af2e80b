"""The broker of the control plane: a Mosquitto of our own, one in this process, or an external one.

Mosquitto is preferred where it is installed (the container image and the installer bring it): it
has been hardened in public for a decade and runs in a process of its own. Where it is not, a small
broker of ours stands in (`embedded.py`); docs/benchmarks/control.md shows how far that goes. Both
are held to the same tests. A cloud service is used by its URL.
"""

import logging
from pathlib import Path
from typing import Protocol

from molink.control.addresses import BrokerAddress, Credentials, ServerTrust, TlsFiles
from molink.control.broker.embedded import EmbeddedBroker
from molink.control.broker.external import ExternalBroker
from molink.control.broker.mosquitto import MosquittoBroker, find_mosquitto
from molink.errors import UserError

__all__ = ["Broker", "BrokerAddress", "Credentials", "TlsFiles", "open_broker"]

log = logging.getLogger(__name__)


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
        Raises UserError for a name that is no node id, ControlError when the broker does not
        answer, JoinRefusedError when somebody else decides and has not let the node in.
        """

    async def forbid(self, username: str) -> None:
        """Refuse a node from now on and end its connection, without its last will."""


def open_broker(
    choice: str | None,
    host: str,
    port: int,
    data_dir: Path,
    tls: TlsFiles | None = None,
    users: Path | None = None,
) -> Broker:
    """The broker that an operator has asked for, not yet started.

    `choice` is a URL, "mosquitto", "embedded", or None for the best that is installed. Port 0 picks
    a free one. Without `tls` a broker of ours speaks plain MQTT, which is for loopback only;
    `users` is the file of the nodes' users at a broker by URL. Raises UserError when it cannot be
    had.
    """
    if choice is not None and "://" in choice:
        return ExternalBroker(choice, users)
    if choice not in (None, "mosquitto", "embedded"):
        raise UserError(
            f"{choice!r} is no broker: give mosquitto, embedded, or mqtt://USER:PASSWORD@HOST."
        )
    program = None if choice == "embedded" else find_mosquitto()
    if program is not None:
        return MosquittoBroker(program, host, port, data_dir, tls)
    if choice == "mosquitto":
        raise UserError(
            "Mosquitto is not installed: install the package mosquitto, or use embedded."
        )
    if choice is None:
        log.info("mosquitto is not installed: the broker runs inside this process")
    return EmbeddedBroker(host, port, tls)
