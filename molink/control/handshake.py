"""TLS of a connection to a server of ours, which is counted before it begins.

asyncio tells a server of an encrypted connection once its handshake is done: connections of
strangers who never finish one would be counted by nobody, and take every descriptor. So a
connection is accepted as it is, counted, and encrypted then.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from molink.tasks import spawn


class Strangers(Protocol):
    """Counter of a server's connections whose client is not known yet."""

    def add_stranger(self, stranger: object, address: str) -> bool:
        """Count one; whether there is room for it."""

    def remove_stranger(self, stranger: object) -> None:
        """Count it no more, if it was counted."""


class Handshake(asyncio.Protocol):
    """First protocol of an encrypted connection, until its session takes over.

    `strangers` count it meanwhile; `new_session` makes the protocol of what is encrypted, which
    counts it anew. A handshake that takes longer than `deadline_s` seconds fails.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        strangers: Strangers,
        new_session: Callable[[], asyncio.BaseProtocol],
        deadline_s: float,
    ) -> None:
        self._context, self._strangers, self._new_session = context, strangers, new_session
        self._deadline_s = deadline_s
        self._early = bytearray()
        """What came together with the end of the handshake."""
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it and begin, if there is room (`asyncio.Protocol`)."""
        plain = cast(asyncio.Transport, transport)
        address = str((plain.get_extra_info("peername") or ("",))[0])
        if not self._strangers.add_stranger(self, address):
            self._strangers.remove_stranger(self)
            plain.abort()
            return
        plain.pause_reading()
        self._task = spawn(self._encrypt(plain))

    def data_received(self, data: bytes) -> None:
        """Keep it for the session (`asyncio.Protocol`)."""
        self._early += data

    def connection_lost(self, error: Exception | None) -> None:
        """It ended before there was a session (`asyncio.Protocol`)."""
        self._is_lost = True

    def end(self) -> None:
        """Go no further; the connection is closed."""
        self._task.cancel()

    async def _encrypt(self, plain: asyncio.Transport) -> None:
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                plain,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._deadline_s,
            )
        except OSError:  # Timeouts and TLS's own errors are among them.
            return
        finally:
            self._strangers.remove_stranger(self)
        if encrypted is None or self._is_lost:
            return
        session = cast(asyncio.Protocol, self._new_session())
        encrypted.set_protocol(session)
        session.connection_made(encrypted)
        if self._early:
            session.data_received(bytes(self._early))
