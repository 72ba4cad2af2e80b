"""A directed link between two processes of a ring: one DEALER socket at each end.

Here what both ends share, and the receiving end; `paced_link` is the sending one.

Messages flow one way and the link lives as long as the ring, so that a round costs the sum of the
one-way delays and no window has to open again. DEALER to DEALER rather than PUSH to PULL, because
the far end answers on the same connection: the hello, and every chunk.
The receiver binds, the sender connects. A proxy may accept a connection before its target listens,
so a sender repeats its hello until it is answered.
"""

import socket as stdlib_socket
from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from molink.errors import UserError
from molink.wire.frames import BUFFER_BYTES_MAX

__all__ = ["HELLO_PERIOD_S", "InboundLink", "set_link_options"]

HELLO_PERIOD_S = 0.2
"""How often a sender repeats its hello; the first one usually gets through."""

SEND_QUEUE_MESSAGES_MAX = 4096
"""More than the head ever has under way; reaching it means that the far end is gone."""

Frames = Sequence[bytes | memoryview]


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
    messages_received: int = 0
    bytes_received: int = 0

    @classmethod
    def bind(cls, context: "zmq.Context[zmq.Socket[bytes]]", host: str) -> "InboundLink":
        """Listen on a free port of `host`, an IPv4 address or a name of this machine.

        Raises UserError when this machine has no such address.
        """
        socket = context.socket(zmq.DEALER)
        set_link_options(socket)
        try:
            return cls(socket, socket.bind_to_random_port(f"tcp://{_numeric(host)}"))
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
        """The frames of the next message that has arrived, or None."""
        try:
            parts = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        self.messages_received += 1
        frames = [part.buffer for part in parts]
        self.bytes_received += sum(map(len, frames))
        return list(frames)

    def answer(self, frames: Frames) -> None:
        """Send something back on the connection that the last message came from."""
        self.socket.send_multipart(list(frames))
