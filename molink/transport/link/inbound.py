"""A directed link between two processes of a ring: a DEALER socket sends, a ROUTER receives.

Here what both ends share, and the receiving end; `paced_link` is the sending one.

Messages flow one way and the link lives as long as the ring, so that a round costs the sum of the
one-way delays and no window has to open again. Not PUSH to PULL, because the far end answers on the
same connection: the hello, and every chunk. Not DEALER at both ends, because a link that takes
another way has two connections for a while, and a DEALER would give every second answer to the
wrong one. The receiver binds, the sender connects. A proxy may accept a connection before its
target listens, so a sender repeats its hello until it is answered.
"""

import logging
import socket as stdlib_socket
from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from molink.errors import UserError
from molink.transport.curve import CurveGuard
from molink.wire.frames import BUFFER_BYTES_MAX

__all__ = ["HELLO_PERIOD_S", "InboundLink", "set_link_options"]

HELLO_PERIOD_S = 0.2
"""How often a sender repeats its hello; the first one usually gets through."""

SEND_QUEUE_MESSAGES_MAX = 4096
"""More than the head ever has under way; reaching it means that the far end is gone."""

Frames = Sequence[bytes | memoryview]

log = logging.getLogger(__name__)


def set_link_options(socket: "zmq.Socket[bytes]") -> None:
    """Limits of a link's socket, the same at both ends."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, SEND_QUEUE_MESSAGES_MAX)
    socket.setsockopt(zmq.RCVHWM, SEND_QUEUE_MESSAGES_MAX)
    socket.setsockopt(zmq.MAXMSGSIZE, BUFFER_BYTES_MAX)


def _numeric(host: str) -> str:
    """ZeroMQ listens at addresses and interfaces only. Raises OSError for an unknown name."""
    return stdlib_socket.gethostbyname(host)


@dataclass(slots=True)
class InboundLink:
    """The receiving end."""

    socket: "zmq.Socket[bytes]"
    port: int
    guard: CurveGuard | None = None
    """Says whose messages are taken; None: the link is not encrypted and takes all."""
    messages_received: int = 0
    bytes_received: int = 0
    messages_refused: int = 0
    """Of keys that are not, or no longer, allowed."""
    _connection: bytes = b""
    """That the last message came from."""

    @classmethod
    def bind(
        cls,
        context: "zmq.Context[zmq.Socket[bytes]]",
        host: str,
        guard: CurveGuard | None = None,
    ) -> "InboundLink":
        """Listen on a free port of `host`, an IPv4 address or a name of this machine; with a
        `guard`, only to those whom it allows.

        Raises UserError when this machine has no such address.
        """
        socket = context.socket(zmq.ROUTER)
        set_link_options(socket)
        if guard is not None:
            guard.protect_listener(socket)
        try:
            return cls(socket, socket.bind_to_random_port(f"tcp://{_numeric(host)}"), guard)
        except (OSError, zmq.ZMQError) as error:
            socket.close()
            raise UserError(
                f"Cannot listen at {host} ({error.strerror}): give an address of the machine "
                "that listens."
            ) from None

    @property
    def descriptor(self) -> int:
        """Readable when something may have arrived; signals edges only, so drain it each time."""
        return int(self.socket.getsockopt(zmq.FD))

    def receive(self) -> list[bytes | memoryview] | None:
        """The frames of the next message that has arrived and is allowed, or None."""
        while True:
            try:
                connection, *parts = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            if self._is_allowed(parts[0]):
                self.messages_received += 1
                self._connection = connection.bytes
                frames = [part.buffer for part in parts]
                self.bytes_received += sum(map(len, frames))
                return list(frames)
            self._refuse()

    def answer(self, frames: Frames) -> None:
        """Send something back on the connection that the last message came from."""
        self.socket.send_multipart([self._connection, *frames])

    def _is_allowed(self, part: zmq.Frame) -> bool:
        """The key of the connection was checked when it opened; since then the list may have
        changed."""
        return self.guard is None or part.get("User-Id") in self.guard.allowed

    def _refuse(self) -> None:
        if not self.messages_refused:
            log.warning("a peer whose key is no longer allowed still sends; it is not heard")
        self.messages_refused += 1
