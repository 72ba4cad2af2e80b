"""Sockets between paired stages: in one PC, in a folder of its user's, or sealed over a LAN.

Sealed links are those of lenders (`molink.lender.lan`): both ends prove that they have the pair's
key, and draw keys for this link from it. What a socket brings is read in the same way then.
"""

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from molink.errors import FrameError, LenderLostError
from molink.lender.lan.handshake import OPENING, Opening, connected, let_in, refusal
from molink.stage.cache.pair import ANSWER_S, PairSocket, read_exactly
from molink.stage_protocol.pairing import Pairing, PairLink
from molink.wire.protocol import PROTOCOL_VERSION

SEND_S = 10.0
"""Seconds until an end that reads nothing is given up."""

WAITING_MAX = 8
"""Links that wait to be taken in."""


class Door(Protocol):
    """Entrance at which the stage listens that takes."""

    @property
    def port(self) -> int:
        """Port, for the other end; 0: it has none."""

    def accept(self) -> socket.socket:
        """The next one who has connected. Raises OSError once it is closed."""

    def let_in(self, link: socket.socket) -> PairSocket:
        """The link of one who has connected, if it may be. Raises OSError or FrameError."""

    def close(self) -> None:
        """Close the socket: nobody else is let in."""


@dataclass(frozen=True, slots=True)
class PathDoor:
    """Socket in a folder that nobody but the PC's user may enter: who comes there is let in."""

    listener: socket.socket
    port: int = 0

    @classmethod
    def at(cls, path: str) -> "PathDoor":
        """Raises OSError where nobody can listen."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        Path(path).unlink(missing_ok=True)  # That of the process before.
        listener.bind(path)
        listener.listen(WAITING_MAX)
        return cls(listener)

    def accept(self) -> socket.socket:
        """The next one who has connected. Raises OSError once it is closed."""
        return self.listener.accept()[0]

    def let_in(self, link: socket.socket) -> PairSocket:
        """The link as it is."""
        return link

    def close(self) -> None:
        """Close the socket: nobody else is let in."""
        _close(self.listener)


@dataclass(frozen=True, slots=True)
class SealedDoor:
    """Port at which the other stage of one pair alone is let in, which has the pair's key."""

    listener: socket.socket
    link: PairLink
    incarnation: int = field(default_factory=lambda: secrets.randbits(63) or 1)

    @classmethod
    def at(cls, address: str, link: PairLink) -> "SealedDoor":
        """Raises OSError where nobody can listen."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=WAITING_MAX)
        return cls(listener, link)

    @property
    def port(self) -> int:
        """Port, for the other end."""
        return int(self.listener.getsockname()[1])

    def accept(self) -> socket.socket:
        """The next one who has connected. Raises OSError once it is closed."""
        return self.listener.accept()[0]

    def let_in(self, link: socket.socket) -> PairSocket:
        """The sealed link of one who has the pair's key. Raises OSError or FrameError."""
        packed = bytearray(OPENING.size)
        link.settimeout(ANSWER_S)
        read_exactly(link, memoryview(packed))
        opening, key = Opening.read(bytes(packed)), bytes.fromhex(self.link.key)
        if why := self._objection(opening, key):
            link.sendall(refusal(why, self.incarnation))
            raise FrameError(why)
        return let_in(link, opening, key, self.incarnation)

    def close(self) -> None:
        """Close the socket: nobody else is let in."""
        _close(self.listener)

    def _objection(self, opening: Opening, key: bytes) -> str:
        if opening.protocol != PROTOCOL_VERSION:
            return f"it speaks protocol {PROTOCOL_VERSION}, and was asked in {opening.protocol}"
        if opening.lease != self.link.number or not opening.is_by(key):
            return f"pair {opening.lease} is not here, or its key is another"
        return ""


Reach = Callable[[], PairSocket]
"""Connects to the stage that takes. Raises OSError where it is not to be reached."""


def door_of(pairing: Pairing, address: str) -> Door:
    """Where a stage listens that takes, whose links listen at this address. Raises OSError."""
    if pairing.link is None:
        return PathDoor.at(pairing.path)
    return SealedDoor.at(address, pairing.link)


def reach_of(pairing: Pairing) -> Reach:
    """How a stage that hands over reaches the other one."""
    link = pairing.link
    if link is None:
        return lambda: _at_path(pairing.path)
    return lambda: _sealed(link)


def _sealed(link: PairLink) -> PairSocket:
    try:
        sealed = connected(link.host, link.port, link.number, link.key)
    except LenderLostError as error:
        raise ConnectionError(str(error.__cause__ or error)) from error
    sealed.settimeout(SEND_S)
    return sealed


def _at_path(path: str) -> PairSocket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.settimeout(SEND_S)
        link.connect(path)
    except OSError:
        link.close()
        raise
    return link


def _close(listener: socket.socket) -> None:
    """Close a socket at which another thread waits."""
    with suppress(OSError):  # Not every system wakes who waits so.
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
