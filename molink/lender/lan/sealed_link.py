"""Stream of frames over a LAN that nobody else can read or alter (AES-GCM).

Text can be inferred from lent KV and from queries, so each message is sealed. Both directions have
a key of their own, drawn for this link alone (`handshake`), so a message is told by its place: its
nonce is the count of those before it. One that is altered, left out, sent again or in another order
does not open, and ends the link.

A record is 4 bytes that say how long what follows is, then the sealed bytes with their tag.
"""

import socket
import struct
import time
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from molink.errors import FrameError
from molink.lender.protocol import Buffer, Incoming

LENGTH = struct.Struct("<I")
"""Length of a record's sealed bytes."""

RECORD_BYTES_MAX = 40_000
"""Bytes of a record before it is sealed, at most: blocks are opened while further ones come."""

TAG_BYTES = 16
"""Bytes of AES-GCM's tag behind each record."""

NONCE_BYTES = 12
"""Bytes of AES-GCM's nonce."""

NOTHING = memoryview(b"")


class SealedLink:
    """Sealed link over a connected socket, as `protocol.LenderLink` has it; for one thread."""

    def __init__(self, link: socket.socket, own_key: bytes, their_key: bytes) -> None:
        self._link = link
        self._sealing, self._opening = AESGCM(own_key), AESGCM(their_key)
        self._sent = self._received = 0
        """Records in each direction."""
        self._incoming = Incoming(self._read)
        self._plain = NOTHING
        """Bytes that were opened and are not taken yet."""
        self._ends_at: float | None = None

    def sendmsg(self, buffers: Sequence[Buffer], /) -> int:
        """Send all of these bytes; how many there were."""
        plain = memoryview(b"".join(buffers))
        for first in range(0, len(plain), RECORD_BYTES_MAX):
            piece = plain[first : first + RECORD_BYTES_MAX]
            sealed = self._sealing.encrypt(_nonce(self._sent), piece, None)
            self._sent += 1
            self._link.sendall(LENGTH.pack(len(sealed)) + sealed)
        return len(plain)

    def sendall(self, data: Buffer, /) -> None:
        """Send all of these bytes."""
        self.sendmsg([data])

    def recv(self, bufsize: int, flags: int, /) -> bytes:
        """Sealed bytes that have come; for `MSG_PEEK` alone, to see whether the link has ended."""
        return self._link.recv(bufsize, flags)

    def recv_into(self, buffer: memoryview, /) -> int:
        """Take bytes that have come. Raises FrameError for a record that does not open."""
        if not self._plain:
            self._plain = self._opened()
        count = min(len(buffer), len(self._plain))
        buffer[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count

    def settimeout(self, value: float | None, /) -> None:
        """Wait so many seconds from now on, for all that is read until the next call: bytes that
        come one by one do not make the wait longer."""
        self._link.settimeout(value)
        self._ends_at = None if value is None else time.monotonic() + value

    def fileno(self) -> int:
        """The socket's descriptor; -1 where it is closed."""
        return self._link.fileno()

    def close(self) -> None:
        """Close the socket; the other end finds the link ended."""
        self._link.close()

    def _opened(self) -> memoryview:
        incoming = self._incoming
        start = incoming.taken(LENGTH.size)
        (size,) = LENGTH.unpack_from(incoming.view, start)
        if not TAG_BYTES < size <= RECORD_BYTES_MAX + TAG_BYTES:
            raise FrameError(f"a sealed record has no {size:,} bytes")
        start = incoming.taken(size)
        sealed = incoming.view[start : start + size]
        try:
            plain = self._opening.decrypt(_nonce(self._received), sealed, None)
        except InvalidTag:
            raise FrameError(
                f"record {self._received:,} does not open: it was altered, left out or sent again, "
                "or the key is another"
            ) from None
        self._received += 1
        return memoryview(plain)

    def _read(self, room: memoryview) -> int:
        if self._ends_at is not None:
            left_s = self._ends_at - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("a record has not come in time")
            self._link.settimeout(left_s)
        return self._link.recv_into(room)


def _nonce(count: int) -> bytes:
    return count.to_bytes(NONCE_BYTES, "little")
