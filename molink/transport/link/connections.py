"""The connection that an outgoing link uses, and the one that may take its place.

A link takes another connection: to another address of its far end, or to the same one anew.

    handshake  the new connection says hello until it is answered; the old one carries on as if
               nothing were
    draining   nothing more leaves, until everything that has left on the old one is acknowledged
    over       the old connection is closed, and what waits leaves on the new one

So a new path that leads nowhere costs nothing, and a link that works repeats nothing. Where the old
path is dead nothing is waited for: the far end's answer says what it has, and the link repeats the
rest. Rejected: to close the old connection first, which stops the ring for as long as the new one
takes to open, and for good where it never does.

Connections are opened and closed in `advance` alone, which the link's thread calls, so that it
never polls a closed one. The clock is an argument.
"""

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import zmq

from molink.errors import FrameError
from molink.transport.curve import CurvePeer
from molink.transport.sockets import KEEPALIVE_IDLE_S, KEEPALIVE_PERIOD_S, KEEPALIVE_PROBES
from molink.wire.chunks import Welcome, decode_link_frame, encode_hello

HELLO_PERIOD_S = 0.2
"""How often a sender repeats its hello; the first one usually gets through."""

HANDSHAKE_S = 15.0
"""Seconds for a handshake: a far end behind a relay and a slow one answers in three or four."""

HANDSHAKE_SILENT_S = 8.0
"""Seconds for it where the present path is dead: there may be yet another one to try."""

DRAIN_S = 5.0
"""Seconds until what is in flight must be acknowledged: a round trip and the queue. A path that
takes longer is broken, and what is on it is repeated on the new one."""

STREAM_BITS = 62
"""Bits of a link's number: no two senders of one link ever draw the same."""

SEND_QUEUE_MESSAGES_MAX = 4096
"""Most messages, more than the head ever has under way: as many mean that the far end is gone."""

Socket = zmq.Socket[bytes]
Phase = Literal["handshake", "draining", "drained", "failed"]
Done = Callable[["MoveOutcome"], None]


ANSWER_BYTES_MAX = 1024
"""Bytes that come back on a link: acknowledgements of a few bytes, and ZeroMQ's own handshake."""


def set_link_options(socket: Socket) -> None:
    """Limits of the sending end of a link; the receiving one has others for what it receives."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, SEND_QUEUE_MESSAGES_MAX)
    socket.setsockopt(zmq.RCVHWM, SEND_QUEUE_MESSAGES_MAX)
    socket.setsockopt(zmq.MAXMSGSIZE, ANSWER_BYTES_MAX)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_PERIOD_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES)


@dataclass(frozen=True, slots=True)
class MoveOutcome:
    """End of a move."""

    address: str
    """Address to which the link was to lead."""
    moved: bool
    """Whether it does; else it leads where it did before."""
    reason: str = ""
    """Clause for a person, when the link was not moved."""


@dataclass(slots=True)
class PathMove:
    """Move of a link to another path, while it is under way."""

    address: str
    done: Done | None
    """Called once, in the link's thread; None: the link itself began the move."""
    socket: Socket
    began_at: float
    stream: int = 0
    """Number of the link, for its hello."""
    phase: Phase = field(init=False, default="handshake")
    reason: str = field(init=False, default="")
    first: int = field(init=False, default=0)
    """The far end has all chunks before this number, as its answer says."""
    wake_at: float = field(init=False)
    """Time to be asked again if nothing arrives."""
    _drains_until: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.wake_at = self.began_at
        try:
            self.socket.connect(self.address)
        except zmq.ZMQError:
            self.fail(f"{self.address!r:.80} is no address")

    @property
    def is_draining(self) -> bool:
        """Whether nothing more may leave on the old connection."""
        return self.phase in ("draining", "drained")

    def step(self, in_flight_bytes: int, now: float, *, silent: bool) -> Phase:
        """Say hello, take the answer, watch what is in flight on the old connection; `silent`: that
        one has not acknowledged anything for too long."""
        if self.phase == "handshake":
            self._handshake(now, HANDSHAKE_SILENT_S if silent else HANDSHAKE_S)
        if self.phase == "draining":
            self.wake_at = self._drains_until
            if silent or in_flight_bytes == 0 or now >= self._drains_until:
                self.phase = "drained"
        return self.phase

    def fail(self, reason: str) -> None:
        """Give up; the old connection carries on."""
        self.phase, self.reason = "failed", reason

    def report(self) -> None:
        """Report the end to the caller that asked for the move."""
        if self.done is not None:
            self.done(MoveOutcome(self.address, self.phase == "drained", self.reason))

    def _handshake(self, now: float, within_s: float) -> None:
        if self._is_answered():
            self.phase, self._drains_until = "draining", now + DRAIN_S
            return
        if now > self.began_at + within_s:
            self.fail(f"nobody answers at {self.address}")
        elif now >= self.wake_at:
            with suppress(zmq.Again):  # A connection that ZeroMQ has given up takes nothing more.
                self.socket.send(encode_hello(self.stream), zmq.NOBLOCK)
            self.wake_at = now + HELLO_PERIOD_S

    def _is_answered(self) -> bool:
        """Whether a welcome came: so far this connection has carried hellos only."""
        try:
            answer = decode_link_frame(self.socket.recv(zmq.NOBLOCK))
        except (zmq.Again, FrameError):
            return False
        if isinstance(answer, Welcome):
            self.first = answer.first
        return isinstance(answer, Welcome)


@dataclass(slots=True)
class Connections:
    """The connection of an outgoing link, the move under way, and those asked for since."""

    open_socket: Callable[[], Socket]
    """Makes one that is not connected yet."""
    address: str
    """Address to which the connection in use leads."""
    stream: int = 0
    """Number of this sender, by which the far end knows that it is another one than before."""
    socket: Socket = field(init=False)
    """Socket of the connection in use."""
    move: PathMove | None = field(init=False, default=None)
    descriptors: tuple[int, ...] = field(init=False)
    """Readable when something may have arrived; others after `advance`."""
    _requested: list[tuple[str, Done | None]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.socket = self.open_socket()
        self.socket.connect(self.address)
        self._note_descriptors()

    @classmethod
    def open(
        cls, context: "zmq.Context[Socket]", address: str, peer: CurvePeer | None
    ) -> "Connections":
        """Connect to `tcp://host:port`; with a `peer`, encrypted and to the owner of its key
        only."""

        def open_socket() -> Socket:
            socket = context.socket(zmq.DEALER)
            set_link_options(socket)
            if peer is not None:
                peer.protect(socket)
            return socket

        return cls(open_socket, address, secrets.randbits(STREAM_BITS))

    @property
    def is_idle(self) -> bool:
        """Whether no move is under way or asked for."""
        return self.move is None and not self._requested

    @property
    def is_draining(self) -> bool:
        """Whether nothing more may leave on the connection in use."""
        return self.move is not None and self.move.is_draining

    def request_move(self, address: str, done: Done) -> None:
        """Begin this move at the next `advance`, and give up the one that is under way."""
        self._requested.append((address, done))

    def reconnect(self) -> None:
        """Connect to the present address anew, unless somebody has asked for a move."""
        if not self._requested and (self.move is None or self.move.done is None):
            self._requested.append((self.address, None))

    def advance(self, in_flight_bytes: int, now: float, *, silent: bool = False) -> list[PathMove]:
        """Take the next step of a move; those that have ended are to be reported. `socket` is
        another one when one of them has drained the old one."""
        ended = []
        while self._requested:
            try:
                socket = self.open_socket()
            except zmq.ZMQError:  # No descriptors are left: at the next call, perhaps.
                break
            address, done = self._requested.pop(0)
            if self.move is not None:
                self.move.fail("another way was asked for meanwhile")
                ended.append(self.move)
            self.move = PathMove(address, done, socket, now, self.stream)
        if self.move is not None:
            self.move.step(in_flight_bytes, now, silent=silent)
            if self.move.phase in ("drained", "failed"):
                ended.append(self.move)
                self.move = None
        for move in ended:
            left = move.socket
            if move.phase == "drained":
                left, self.socket, self.address = self.socket, move.socket, move.address
            left.close()
        self._note_descriptors()
        return ended

    def close(self) -> None:
        """Close all; the link's thread must have ended."""
        for socket in self._sockets:
            socket.close()

    @property
    def _sockets(self) -> list[Socket]:
        return [self.socket] if self.move is None else [self.socket, self.move.socket]

    def _note_descriptors(self) -> None:
        self.descriptors = tuple(int(socket.getsockopt(zmq.FD)) for socket in self._sockets)
