"""The broker of the control plane: a Mosquitto of our own, one in this process, or an external one.

Mosquitto is preferred where it is installed (the container image and the installer bring it): it
has been hardened in public for a decade and runs in a process of its own. Where it is not, a small
broker of ours stands in (`embedded.py`); docs/benchmarks/control.md shows how far that goes. Both
are held to the same tests. A cloud service is used by its URL.
"""

import logging
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from molink.control.addresses import BrokerAddress, Credentials, TlsFiles
from molink.control.broker.embedded import EmbeddedBroker
from molink.control.broker.mosquitto import MosquittoBroker, find_mosquitto
from molink.errors import UserError

__all__ = ["Broker", "BrokerAddress", "Credentials", "ExternalBroker", "TlsFiles", "open_broker"]

log = logging.getLogger(__name__)

_DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883}
_FORM = "mqtt://USER:PASSWORD@HOST:PORT (mqtts:// for TLS)"


class Broker(Protocol):
    """MQTT broker, as far as the coordinator needs it."""

    async def start(self) -> None:
        """Listen. Raises UserError when that cannot be."""

    async def stop(self) -> None:
        """End it; a second call does nothing."""

    @property
    def address(self) -> BrokerAddress:
        """Where it listens; the port is known once it has started."""

    @property
    def coordinator(self) -> Credentials:
        """Credentials that may read and write everything."""

    async def allow(self, username: str, password: str) -> Credentials:
        """Let a node connect, now and until it is forbidden; return its credentials.

        When this returns it can connect. Before `start` it costs nothing: that is how a coordinator
        lets in all the nodes that it knows. `password` is a random token of at least 16 bytes.
        Raises UserError for a name that is no node id, ControlError when the broker does not
        answer.
        """

    async def forbid(self, username: str) -> None:
        """Refuse a node from now on and end its connection, without its last will."""


class ExternalBroker:
    """A broker that we do not run, by URL: mqtt://USER:PASSWORD@HOST:PORT, or mqtts:// for TLS.

    Its users and rules are its operator's. We have one user's credentials and hand them to every
    node, so any node can read and write what any other can: only for brokers within one circle of
    trust, or where the operator has set up a user for each node by hand. `allow` and `forbid`
    change nothing there.
    """

    def __init__(self, url: str) -> None:
        """Raises UserError when the URL cannot be read."""
        self._address, self._credentials = _parse(url)

    async def start(self) -> None:
        """Nothing to do: it runs, or the client fails to connect."""

    async def stop(self) -> None:
        """Nothing to do: its operator stops it."""

    @property
    def address(self) -> BrokerAddress:
        """Host and port of the URL."""
        return self._address

    @property
    def coordinator(self) -> Credentials:
        """User and password of the URL."""
        return self._credentials

    async def allow(self, username: str, password: str) -> Credentials:
        """The credentials that all nodes share; `username` becomes only the client id."""
        return self._credentials

    async def forbid(self, username: str) -> None:
        """Nothing to do: its operator decides who may connect."""


def open_broker(
    choice: str | None, host: str, port: int, data_dir: Path, tls: TlsFiles | None = None
) -> Broker:
    """The broker that an operator has asked for, not yet started.

    `choice` is a URL, "mosquitto", "embedded", or None for the best that is installed. Port 0 picks
    a free one. Raises UserError when it cannot be had.
    """
    if choice is not None and "://" in choice:
        return ExternalBroker(choice)
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


def _parse(url: str) -> tuple[BrokerAddress, Credentials]:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UserError(f"The host of the broker's URL cannot be read: use {_FORM}.") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise UserError(f"The broker's URL does not begin with mqtt:// or mqtts://: use {_FORM}.")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise UserError(f"The broker's URL has something behind its port: use {_FORM}.")
    if not parts.hostname:
        raise UserError(f"The broker's URL names no host: use {_FORM}.")
    if not parts.username or parts.password is None:
        raise UserError(f"The broker's URL has no user and password: use {_FORM}.")
    port = _port(url) or _DEFAULT_PORTS[parts.scheme]
    address = BrokerAddress(parts.hostname, port, tls=parts.scheme == "mqtts")
    return address, Credentials(unquote(parts.username), unquote(parts.password))


def _port(url: str) -> int | None:
    try:
        port = urlsplit(url).port
    except ValueError:
        raise UserError(f"The port of the broker's URL is not 1 to 65535: use {_FORM}.") from None
    if port == 0:
        raise UserError(f"The port of the broker's URL is not 1 to 65535: use {_FORM}.")
    return port
