"""The sending end of a link: messages in, chunks out, as the core decides.

`send` is called with a message, `pump` when an acknowledgement may have come or time has passed,
each from a thread of its own, so a lock guards the connection and the core's state; it is held for
the tens of microseconds that one decision and one send take, and nothing blocks under it.

A link may take another connection while it is in use: on request (`move_to`), or because nothing is
acknowledged any more (the core's `LinkSilence`). Connections are opened and closed in
`pump`, which only the link's thread calls.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import zmq

from molink.transport.curve import CurvePeer
from molink.transport.link.chunk_stream import ChunkStream, Frame
from molink.transport.link.connections import Connections, MoveOutcome, PathMove
from molink_scheduler.batch import BatchClass
from molink_scheduler.link.facts import LinkReport
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.peer_watch import PeerWatch
from molink_scheduler.link.sender import LinkSender
from molink_scheduler.link.silence import Reconnect, SilenceStep
from molink_scheduler.link.transmission import TransmissionQueue

FILLER_BYTES = 32 * 1024
"""Bytes of one filler: little enough to end soon after the measurement does."""


@dataclass(slots=True)
class PacedLink:
    """Sending end of a directed link."""

    name: str
    connections: Connections
    sender: LinkSender
    clock: Callable[[], float] = time.monotonic
    on_silence: "OnSilence" = field(default=lambda link, step: None)
    """Called in the link's thread with what the link does about a path that seems dead."""
    _stream: ChunkStream = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._stream = ChunkStream(self.connections, self.sender, self.clock)

    @classmethod
    def connect(
        cls,
        context: "zmq.Context[zmq.Socket[bytes]]",
        name: str,
        address: str,
        queue: TransmissionQueue,
        pacer: LinkPacer,
        peer: CurvePeer | None = None,
        on_silence: "OnSilence" = lambda link, step: None,
    ) -> "PacedLink":
        """Connect to `tcp://host:port`; returns at once, `is_open` turns True with the answer.

        With a `peer` the link is encrypted and speaks to the owner of its key only.
        """
        connections = Connections.open(context, address, peer)
        return cls(name, connections, LinkSender(queue, pacer), on_silence=on_silence)

    @property
    def is_open(self) -> bool:
        """Whether the far end has answered."""
        return self._stream.is_answered

    @property
    def peer(self) -> PeerWatch:
        """Watch over the far end."""
        return self._stream.peer

    @property
    def address(self) -> str:
        """Address to which the link leads now."""
        return self.connections.address

    def move_to(self, address: str, done: Callable[[MoveOutcome], None]) -> None:
        """Move to another address of the same far end, once that answers and nothing is in flight.

        Returns at once. The caller wakes the link's thread, in which `done` is called; a move that
        is still under way is given up for this one.
        """
        with self._lock:
            self.connections.request_move(address, done)

    def close(self) -> None:
        """Close its connections; the link's thread must have ended."""
        self.connections.close()

    def send_hello(self) -> None:
        """Ask whether the far end listens."""
        with self._lock:
            self._stream.greet()
            self._stream.drain()

    def send(self, frames: Sequence[Frame], batch_class: BatchClass) -> bool:
        """Let a message wait, and send what may go now; False when something is left waiting.
        Raises LinkFullError when too many wait already."""
        stream = self._stream
        with self._lock:
            stream.offer(frames, batch_class)
            stream.exchange()
            return not stream.transfers_waiting

    def fill(self) -> None:
        """Send bytes that mean nothing, to learn what the link carries; the far end drops them."""
        self.send((b"", bytes(FILLER_BYTES)), BatchClass.PREFILL)

    @property
    def transfers_waiting(self) -> int:
        """Messages of which something has not left."""
        return self._stream.transfers_waiting

    def pump(self) -> float:
        """Take acknowledgements, send what may go, or a hello when that is due; when to call again
        if nothing arrives."""
        stream = self._stream
        with self._lock:
            stream.drain()
            ended = self._advance_move()
            asked_at = stream.exchange()
            if asked_at >= stream.beat_at:
                stream.greet()
            step = self._check_silence(asked_at)
            wake_at = self._wake_at(asked_at)
        for ended_move in ended:
            ended_move.report()
        if step is not None:
            self.on_silence(self, step)
            return asked_at
        return wake_at

    def report(self) -> LinkReport:
        """The state of this link now."""
        stream = self._stream
        with self._lock:
            return self.sender.report(self.name, stream.messages_sent, stream.bytes_sent)

    @property
    def rate_bytes_per_s(self) -> float:
        """The rate as acknowledgements show it."""
        return self.sender.rate_bytes_per_s

    @property
    def pacer(self) -> LinkPacer:
        """Pacer that limits the bytes in flight."""
        return self.sender.pacer

    def _wake_at(self, now: float) -> float:
        move, stream = self.connections.move, self._stream
        wakes = [stream.beat_at]
        if move is not None:
            wakes.append(move.wake_at)
        if not self.connections.is_draining and (next_at := self.sender.next_wake(now)) is not None:
            wakes.append(next_at)
        return min(wakes)

    def _check_silence(self, now: float) -> SilenceStep | None:
        """Notice a path that is dead, and begin to do something about it."""
        sender = self.sender
        if now < sender.silence.check_at:
            return None
        hello_at = self._stream.hello_at
        step = sender.silence.check(sender.oldest, sender.pacer, now, hello_at)
        if isinstance(step, Reconnect):
            self.connections.reconnect()
        return step

    def _advance_move(self) -> list[PathMove]:
        """Take the next step of a move; those that have ended are to be reported."""
        connections = self.connections
        if connections.is_idle:
            return []
        now, before = self.clock(), self.address
        silent = self.sender.silence.is_silent
        ended = connections.advance(self.pacer.in_flight_bytes, now, silent=silent)
        for move in ended:
            if move.phase == "drained":
                path_changed = move.address != before
                self._stream.connection_changed(move.first, now, path_changed=path_changed)
        return ended


OnSilence = Callable[[PacedLink, SilenceStep], None]
