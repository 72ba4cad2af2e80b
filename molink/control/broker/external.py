"""A broker that somebody else runs, such as a cloud's.

Its users and rules are its operator's: we can neither make a user nor end one. The coordinator's
own user may do everything there, so it is given to nobody. Each node needs a user of its own whose
name is the node's id, which one static rule then holds to its own topics, as at our own brokers
(`permissions.py`); the passwords stand in a file, which is read anew for each node that asks. A
pool of users with names of their own was rejected: no rule could tell which node one belongs to.
"""

import logging
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from molink.control.addresses import BrokerAddress, Credentials, ServerTrust
from molink.control.broker.permissions import check_username
from molink.control.private_file import read_private
from molink.errors import ControlError, JoinRefusedError, UserError

log = logging.getLogger(__name__)

_DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883}
_FORM = "mqtt://USER:PASSWORD@HOST:PORT (mqtts:// for TLS)"

_USER = re.compile(r"([a-z2-7]{16}):(\S{1,100})")
"""One line of the file: a node's id, its password."""

_USERS_BYTES_MAX = 2**20
"""Largest file of users: 4,096 nodes at 120 bytes a line, and as much again for comments."""


class ExternalBroker:
    """A broker that we do not run, by URL: mqtt://USER:PASSWORD@HOST:PORT, or mqtts:// for TLS."""

    def __init__(self, url: str, users: Path | None = None) -> None:
        """`users`: the file of the nodes' users. Raises UserError when the URL or it cannot be
        read."""
        self._address, self._credentials = _parse(url)
        self._users = users
        if users is not None:
            _read_users(users)

    async def start(self) -> None:
        """Nothing to do: it runs, or the client fails to connect."""

    async def stop(self) -> None:
        """Nothing to do: its operator stops it."""

    @property
    def address(self) -> BrokerAddress:
        """Host and port of the URL."""
        return self._address

    @property
    def trust(self) -> ServerTrust | None:
        """Whom every operating system trusts, for the host of the URL; None: it speaks plain
        MQTT."""
        return self._address.tls

    @property
    def coordinator(self) -> Credentials:
        """User and password of the URL."""
        return self._credentials

    async def allow(self, username: str, password: str) -> Credentials:
        """What the file has for this node; `password` is not used. Raises JoinRefusedError when
        that is nothing, ControlError when the file cannot be read now."""
        check_username(username)
        try:
            users = {} if self._users is None else _read_users(self._users)
        except UserError as error:
            log.warning("%s", error)
            raise ControlError("The coordinator cannot read its list of users now.") from None
        if username not in users:
            raise JoinRefusedError(
                f"The broker of this cluster has no user for this PC yet: ask whoever runs it to "
                f"add {username} there and in the file of --broker-users, then join again."
            )
        return Credentials(username, users[username])

    async def forbid(self, username: str) -> None:
        """Nothing to do: its operator decides who may connect."""


def _read_users(path: Path) -> dict[str, str]:
    """Node id to password. Raises UserError when the file is not there, not private or no list of
    users."""
    text = read_private(path, _USERS_BYTES_MAX)
    if text is None:
        raise UserError(f"There is no file {path}: make it, or leave --broker-users out.")
    users = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _USER.fullmatch(line.strip())
        if found is None:
            raise UserError(f"Line {number} of {path} is no user: write NODE_ID:PASSWORD.")
        users[found[1]] = found[2]
    return users


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
    address = BrokerAddress(
        parts.hostname, port, ServerTrust() if parts.scheme == "mqtts" else None
    )
    return address, Credentials(unquote(parts.username), unquote(parts.password))


def _port(url: str) -> int | None:
    try:
        port = urlsplit(url).port
    except ValueError:
        raise UserError(f"The port of the broker's URL is not 1 to 65535: use {_FORM}.") from None
    if port == 0:
        raise UserError(f"The port of the broker's URL is not 1 to 65535: use {_FORM}.")
    return port
