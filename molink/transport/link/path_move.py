"""A link takes another connection: to another address of its far end, or to the same one anew.

    greeting   the new connection says hello until it is answered; the old one carries on as if
               nothing were
    draining   nothing more leaves, until everything that has left on the old one is acknowledged
    over       the old connection is closed, and what waits leaves on the new one

So a new way that leads nowhere costs nothing, and a link that works repeats nothing. Where the old
way is dead nothing is waited for: the far end's answer says what it has, and the link repeats the
rest. Rejected: to close the old connection first, which stops the ring for as long as the new one
takes to open, and for good where it never does.

The clock is an argument; `PacedLink.pump` asks under its lock, and swaps the connections.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import zmq

from molink.errors import FrameError
from molink.transport.link.inbound import HELLO_PERIOD_S
from molink.wire.chunks import Welcome, decode_link_frame, encode_hello

__all__ = ["MoveOutcome", "PathMove", "PathMoves"]

GREET_S = 15.0
"""A far end behind a relay and a slow handshake answers in three or four seconds."""

GREET_SILENT_S = 8.0
"""The same where the present way is dead: there may be yet another one to try."""

DRAIN_S = 5.0
"""What is in flight is acknowledged after a round trip and the queue; a way that takes longer is
broken, and what is on it is repeated on the new one."""

Phase = Literal["greeting", "draining", "drained", "failed"]
Done = Callable[["MoveOutcome"], None]


@dataclass(frozen=True, slots=True)
class MoveOutcome:
    """How a move ended."""

    address: str
    """Where the link was to lead."""
    moved: bool
    """Whether it does; else it leads where it did before."""
    reason: str = ""
    """One clause for a person, when it was not moved."""


@dataclass(slots=True)
class PathMove:
    """One move under way."""

    address: str
    done: Done | None
    """Called once, in the link's thread; None: nobody asked for it but the link itself."""
    socket: "zmq.Socket[bytes]"
    began_at: float
    phase: Phase = field(init=False, default="greeting")
    reason: str = field(init=False, default="")
    first: int = field(init=False, default=0)
    """The far end has all chunks before this number, as it said in its answer."""
    wake_at: float = field(init=False)
    """When to be asked again if nothing arrives."""
    _drains_until: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.wake_at = self.began_at
        try:
            self.socket.connect(self.address)
        except zmq.ZMQError:
            self.fail(f"{self.address!r:.80} is no address")

    @property
    def holds(self) -> bool:
        """Whether nothing more may leave on the old connection."""
        return self.phase in ("draining", "drained")

    def step(self, in_flight_bytes: int, now: float, *, silent: bool) -> Phase:
        """Say hello, look for the answer, watch what is in flight on the old connection; `silent`:
        that one has not acknowledged anything for too long."""
        if self.phase == "greeting":
            self._greet(now, GREET_SILENT_S if silent else GREET_S)
        if self.phase == "draining":
            self.wake_at = self._drains_until
            if silent or in_flight_bytes == 0 or now >= self._drains_until:
                self.phase = "drained"
        return self.phase

    def fail(self, reason: str) -> None:
        """Give up; the old connection carries on."""
        self.phase, self.reason = "failed", reason

    def tell(self) -> None:
        """Report the end to whoever asked for the move."""
        if self.done is not None:
            self.done(MoveOutcome(self.address, self.phase == "drained", self.reason))

    def _greet(self, now: float, within_s: float) -> None:
        if self._is_answered():
            self.phase, self._drains_until = "draining", now + DRAIN_S
            return
        if now > self.began_at + within_s:
            self.fail(f"nobody answers at {self.address}")
        elif now >= self.wake_at:
            with suppress(zmq.Again):  # A connection that ZeroMQ has given up takes nothing more.
                self.socket.send(encode_hello(), zmq.NOBLOCK)
            self.wake_at = now + HELLO_PERIOD_S

    def _is_answered(self) -> bool:
        """So far this connection has carried hellos only, so nothing but a welcome comes back."""
        try:
            answer = decode_link_frame(self.socket.recv(zmq.NOBLOCK))
        except (zmq.Again, FrameError):
            return False
        if isinstance(answer, Welcome):
            self.first = answer.first
        return isinstance(answer, Welcome)


@dataclass(slots=True)
class PathMoves:
    """The move under way, at most one, and those that were asked for since."""

    open_socket: Callable[[], "zmq.Socket[bytes]"]
    """Not connected yet."""
    current: PathMove | None = None
    _wanted: list[tuple[str, Done | None]] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return self.current is None and not self._wanted

    @property
    def holds(self) -> bool:
        """Whether nothing more may leave on the old connection."""
        return self.current is not None and self.current.holds

    def want(self, address: str, done: Done) -> None:
        """Begin this move at the next look, and give up the one that is under way."""
        self._wanted.append((address, done))

    def renew(self, address: str) -> None:
        """Connect to the present address anew, unless somebody has asked for a move."""
        if not self._wanted and (self.current is None or self.current.done is None):
            self._wanted.append((address, None))

    def advance(self, in_flight_bytes: int, now: float, *, silent: bool = False) -> list[PathMove]:
        """The moves that have ended by `now`, each to be told, with a connection to be closed: the
        one it leaves over."""
        ended = []
        for address, done in self._wanted:
            if self.current is not None:
                self.current.fail("another way was asked for meanwhile")
                ended.append(self.current)
            self.current = PathMove(address, done, self.open_socket(), now)
        self._wanted.clear()
        if self.current is not None:
            self.current.step(in_flight_bytes, now, silent=silent)
            if self.current.phase in ("drained", "failed"):
                ended.append(self.current)
                self.current = None
        return ended
