"""Somebody else's broker, by URL: mqtt://USER:PASSWORD@HOST:PORT, or mqtts:// for TLS.

Its users and rules are its operator's. We have one user's credentials and hand them to every node,
so any node can read and write what any other can: only for brokers within one circle of trust, or
where the operator has set up a user for each node by hand. `allow` and `forbid` change nothing
there.
"""

from urllib.parse import unquote, urlsplit

from molink.control.addresses import BrokerAddress, Credentials
from molink.errors import UserError

__all__ = ["ExternalBroker"]

_DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883}
_FORM = "mqtt://USER:PASSWORD@HOST:PORT (mqtts:// for TLS)"


class ExternalBroker:
    """Nothing is started or stopped."""

    def __init__(self, url: str) -> None:
        """Raises UserError when the URL cannot be read."""
        self._address, self._credentials = _parse(url)

    async def start(self) -> None:
        """It runs already, or the client says that it does not."""

    async def stop(self) -> None:
        """It is not ours to stop."""

    @property
    def address(self) -> BrokerAddress:
        """From the URL."""
        return self._address

    @property
    def coordinator(self) -> Credentials:
        """From the URL."""
        return self._credentials

    async def allow(self, username: str, password: str) -> Credentials:
        """What every node connects with; `username` becomes only its client id."""
        return self._credentials

    async def forbid(self, username: str) -> None:
        """Left to the broker's operator."""


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
