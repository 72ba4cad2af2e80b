"""The receiving end of a link: whose messages it takes, and how many may wait for their reader.

Whatever has come is acknowledged by the link's thread, at once, because acknowledgements must not
wait for a step to end. So a neighbour that is faster than its reader could fill memory meanwhile.
Therefore what waits for the reader is counted, and beyond a bound nothing more is read from the
socket: it is not acknowledged, the sender's window stands still, and what it had sent waits in its
own memory. A reader takes everything that waits in one go, whatever it is, and never waits for its
own sending; so a link that stands still is soon read again, and decode behind a prompt waits no
longer than it would in the reader's queue. Each link is bounded by itself: requests in plenty do
not keep the ring's tokens back.

The two counters of what has come and of what was taken have one writer each, the link's thread and
the reader, so neither needs a lock.
"""

import errno
import logging
import socket as stdlib_socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import zmq

from molink.errors import FrameError, UserError
from molink.token_bucket import TokenBucket
from molink.transport.curve import CurveGuard
from molink.transport.link.connections import set_link_options
from molink.wire.chunks import Reassembly
from molink.wire.frames import ANYBODY, LinkRole
from molink_scheduler.link.peer_watch import PeerWatch

WAITING_MESSAGES_MAX = 1024
"""A ring has some hundred under way."""

WAITING_BYTES_MAX = 64 * 2**20
"""Bytes that may be under way of prompts, 2,048 rows, of a model that is 16,384 wide. A message is
taken whole, so there is one more at most."""

NOISE_PER_S, NOISE_BURST = 1_000.0, 5_000.0
"""Messages that bring nothing and are read at once and for long: beyond it the link is read no
more for a moment, so that what floods it costs this process a fiftieth of a core. A greeting is
sent twenty times a second until it is answered."""

RECEIVE_QUEUE_CHUNKS_MAX = 64
"""Chunks that ZeroMQ reads ahead on one connection: 4 MB of the largest chunks that are usual, 3 ms
of a link of 10 Gbps."""

CHUNK_BYTES_MAX = 4 * 2**20 + 1024
"""The largest chunk of any rule (`JUST_IN_TIME_BYTES_MAX`), and what encryption adds."""

LINK_PORTS = 48
"""Ports at which links listen where a firewall has to name them: a head has two, and a stage that
takes over from another one listens beside it."""

PORT_MAX = 65535

MessageFrames = list[memoryview]

log = logging.getLogger(__name__)


class ArrivedMessage(NamedTuple):
    """Message that has arrived whole and waits for its reader."""

    frames: MessageFrames
    link: "InboundLink"
    size_bytes: int


@dataclass(slots=True)
class InboundLink:
    """Receiving end of a directed link."""

    socket: "zmq.Socket[bytes]"
    port: int
    role: LinkRole
    """Role of the sender, which says what it may send."""
    guard: CurveGuard | None = None
    """Says whose messages are taken; None: the link is not encrypted and takes all."""
    place: int = 0
    """Place of the port among those of its process: whose key it takes."""
    clock: Callable[[], float] = time.monotonic
    messages_received: int = 0
    messages_refused: int = 0
    """Messages of a key that is not, or no longer, allowed."""
    frames_refused: int = 0
    """Malformed, of another epoch, not the sender's to send, or not to be carried out."""
    reassembly: Reassembly = field(init=False)
    peer: PeerWatch = field(default_factory=PeerWatch)
    """Watch over the sender."""
    noise: TokenBucket = field(default_factory=lambda: TokenBucket(NOISE_PER_S, NOISE_BURST))
    """Bucket for messages that bring nothing: greetings, and what is dropped."""
    _connection: bytes = field(init=False, default=b"")
    """Connection that the last message came from."""
    _delivered: list[int] = field(init=False, default_factory=lambda: [0, 0])
    """Messages and bytes that were handed to the reader."""
    _taken: list[int] = field(init=False, default_factory=lambda: [0, 0])
    """Messages and bytes that the reader has taken."""
    _is_paused: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.reassembly = Reassembly(self.role.message_bytes_max)

    @classmethod
    def bind(
        cls,
        context: "zmq.Context[zmq.Socket[bytes]]",
        host: str,
        guard: CurveGuard | None = None,
        role: LinkRole = ANYBODY,
        place: int = 0,
        first_port: int = 0,
    ) -> "InboundLink":
        """Listen on a free port of `host`, an IPv4 address or a name of this machine; with a
        `guard`, only to the one whose key is in this place; with `first_port`, on one of the
        LINK_PORTS ports from there on, or on any where none of them is free.

        Raises UserError when this machine has no such address.
        """
        socket = context.socket(zmq.ROUTER)
        set_link_options(socket)
        socket.setsockopt(zmq.RCVHWM, RECEIVE_QUEUE_CHUNKS_MAX)
        socket.setsockopt(zmq.MAXMSGSIZE, CHUNK_BYTES_MAX)
        if guard is not None:
            guard.protect_listener(socket, place)
        try:
            port = _bound(socket, f"tcp://{_numeric(host)}", first_port)
        except (OSError, zmq.ZMQError) as error:
            socket.close()
            raise UserError(
                f"Cannot listen at {host} ({error.strerror}): give an address of the machine "
                "that listens."
            ) from None
        return cls(socket, port, role, guard, place)

    @property
    def descriptor(self) -> int:
        """Readable when something may have arrived; signals edges only, so drain it each time."""
        return int(self.socket.getsockopt(zmq.FD))

    @property
    def refused_count(self) -> int:
        """Messages and pieces of this link that were dropped, for whatever reason."""
        return self.messages_refused + self.frames_refused + self.reassembly.chunks_refused

    # -- in the link's thread -------------------------------------------------------------------

    def may_read(self) -> bool:
        """Whether another message may be read; else `taken` will say when."""
        if not self._is_full:
            return True
        self._is_paused = True
        if self._is_full:
            self.peer.excuse(self.clock())
            self.socket.get(zmq.EVENTS)  # Or its descriptor would be readable all the while.
            return False
        self._is_paused = False  # The reader has taken everything in this very moment.
        return True

    def pause_s(self) -> float:
        """How long nothing is read, as too much has come that brings nothing; 0: no pause."""
        return self.noise.wait_s(self.clock())

    def greeted(self) -> None:
        """Count a greeting; the first of a link are as many as its delay is long."""
        self.noise.spend(1, self.clock())

    def receive(self) -> list[bytes | memoryview] | None:
        """The frames of the next message that has arrived and is allowed, or None."""
        while not self.pause_s():
            try:
                connection, *parts = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            if parts and self._is_allowed(parts[0]):
                self.peer.arrived(self.clock())
                self.messages_received += 1
                self._connection = connection.bytes
                return [part.buffer for part in parts]
            self._refuse_key()
        return None

    def answer(self, frames: Sequence[bytes | memoryview]) -> None:
        """Send something back on the connection that the last message came from."""
        self.socket.send_multipart([self._connection, *frames])

    def counted(self, frames: MessageFrames) -> ArrivedMessage:
        """Count a whole message, which waits for its reader from now on."""
        size_bytes = sum(map(len, frames))
        self._delivered[0] += 1
        self._delivered[1] += size_bytes
        return ArrivedMessage(frames, self, size_bytes)

    # -- in any thread --------------------------------------------------------------------------

    def taken(self, message: ArrivedMessage) -> bool:
        """Count a message that its reader has now; True: the link's thread waits for that and must
        be woken."""
        self._taken[0] += 1
        self._taken[1] += message.size_bytes
        if not self._is_paused or not self._is_half_empty:
            return False
        self._is_paused = False
        return True

    def refuse(self, error: FrameError) -> None:
        """Count what is dropped, and log the first."""
        if not self.frames_refused:
            log.warning("what %s sent is dropped: %s", self.role.sender, error)
        self.frames_refused += 1
        self.noise.spend(1, self.clock())

    @property
    def _is_full(self) -> bool:
        return (
            self._delivered[0] - self._taken[0] >= WAITING_MESSAGES_MAX
            or self._delivered[1] - self._taken[1] >= WAITING_BYTES_MAX
        )

    @property
    def _is_half_empty(self) -> bool:
        return (
            self._delivered[0] - self._taken[0] <= WAITING_MESSAGES_MAX // 2
            and self._delivered[1] - self._taken[1] <= WAITING_BYTES_MAX // 2
        )

    def _is_allowed(self, part: zmq.Frame) -> bool:
        """The key of the connection was checked when it opened; since then it may have changed."""
        return self.guard is None or part.get("User-Id") == self.guard.key_of(self.place)

    def _refuse_key(self) -> None:
        if not self.messages_refused:
            log.warning(
                "a peer whose key is no longer allowed still sends; its messages are dropped"
            )
        self.messages_refused += 1
        self.noise.spend(1, self.clock())


def _bound(socket: "zmq.Socket[bytes]", address: str, first_port: int) -> int:
    """The port of `address` at which it listens now. Raises OSError or ZMQError."""
    for port in range(first_port, min(first_port + LINK_PORTS, PORT_MAX + 1) if first_port else 0):
        try:
            socket.bind(f"{address}:{port}")
        except zmq.ZMQError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
        else:
            return port
    return socket.bind_to_random_port(address)


def _numeric(host: str) -> str:
    """ZeroMQ listens at addresses and interfaces only. Raises OSError for an unknown name."""
    return stdlib_socket.gethostbyname(host)
