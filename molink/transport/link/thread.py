"""The thread that serves a process's links: acknowledges what comes in, paces what goes out.

A directed link is a DEALER socket that sends and a ROUTER that receives. Messages flow one way and
the link lives as long as the ring, so that a round costs the sum of the one-way delays and no
window has to open again. Not PUSH to PULL, because the far end answers on the same connection: the
hello, and every chunk. Not DEALER at both ends, because a link that takes another path has two
connections for a while, and a DEALER would give every second answer to the wrong one. The receiver
binds, the sender connects. A proxy may accept a connection before its target listens, so a sender
repeats its hello until it is answered.

Acknowledgements must not wait for a step to end, or the sender takes compute for distance; and a
prompt's next chunk must leave while the device computes. So a thread of its own sleeps on all
descriptors. The decode path does not wait for it: a stage hands its result to `PacedLink.send`,
which sends at once what may go, in the caller's thread; only what must wait is left to this one.
Messages that are complete are handed to `deliver`, in this thread.

The links of one process of a ring: where it listens, what leaves it, and the thread of both.

A stage and the coordinator differ in what they do with a message, not in how it comes and goes.
What they share is here: one ZeroMQ context, one guard of keys, one link thread, and the check that
a message is well-formed and of this ring's epoch.
"""

import logging
import os
import select
import socket as stdlib_socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import zmq

from molink.errors import FrameError, UserError
from molink.transport.curve import CurveGuard, peer_of
from molink.transport.link.connections import HELLO_PERIOD_S, MoveOutcome, set_link_options
from molink.transport.link.paced_link import OnSilence, PacedLink
from molink.wire.chunks import (
    ChunkHeader,
    Reassembly,
    decode_link_frame,
    encode_ack,
    encode_missing,
    encode_welcome,
)
from molink.wire.curve_keys import CurveKeys
from molink.wire.frames import Message, decode_message, encode_message
from molink_scheduler.batch import DECODE, BatchClass
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.transmission import TransmissionQueue

__all__ = ["InboundLink", "LinkThread", "MessageFrames", "ProcessLinks"]

SLEEP_MAX_S = 1.0
"""Nothing is due later than this without a descriptor becoming readable first."""

SLEEP_MIN_S = 0.001
"""poll() counts whole milliseconds; where a link asks to be looked at in less, no core spins."""

MEASURE_S = 1.0
"""A ramp from 8 to 200 Mbps takes less; every link of a ring is measured at the same time."""

FILLERS_WAITING = 8
"""Enough that a fast link does not run dry between two looks."""

MEASURE_STEP_S = 0.001
"""How often to look whether the link wants more filler."""

log = logging.getLogger(__name__)


def _numeric(host: str) -> str:
    """ZeroMQ listens at addresses and interfaces only. Raises OSError for an unknown name."""
    return stdlib_socket.gethostbyname(host)


@dataclass(slots=True)
class InboundLink:
    """Receiving end of a directed link."""

    socket: "zmq.Socket[bytes]"
    port: int
    guard: CurveGuard | None = None
    """Says whose messages are taken; None: the link is not encrypted and takes all."""
    messages_received: int = 0
    messages_refused: int = 0
    """Of keys that are not, or no longer, allowed."""
    reassembly: Reassembly = field(default_factory=Reassembly)
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
                return [part.buffer for part in parts]
            self._refuse()

    def answer(self, frames: Sequence[bytes | memoryview]) -> None:
        """Send something back on the connection that the last message came from."""
        self.socket.send_multipart([self._connection, *frames])

    def _is_allowed(self, part: zmq.Frame) -> bool:
        """The key of the connection was checked when it opened; since then the list may have
        changed."""
        return self.guard is None or part.get("User-Id") in self.guard.allowed

    def _refuse(self) -> None:
        if not self.messages_refused:
            log.warning(
                "a peer whose key is no longer allowed still sends; its messages are dropped"
            )
        self.messages_refused += 1


@dataclass(slots=True)
class LinkThread:
    """Thread that serves a process's links, from `start` to `stop`."""

    inbound: Sequence[InboundLink]
    deliver: Callable[[list[memoryview]], None]
    """Called with the frames of each complete message."""
    on_failure: Callable[[Exception], None] = field(default=lambda error: None)
    """Called when the thread ends by an error of ours: no link works any more."""
    outbound: list[PacedLink] = field(default_factory=list)
    frames_refused: int = 0
    _wake: tuple[int, int] = field(default_factory=os.pipe)
    _stopped: bool = False
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to serve the inbound links."""
        self._thread = threading.Thread(target=self._run, name="links", daemon=True)
        self._thread.start()

    def open(self, link: PacedLink, timeout_s: float) -> bool:
        """Serve an outbound link too; False when its far end does not answer in time."""
        self.outbound = [*self.outbound, link]
        self.wake()
        deadline = time.monotonic() + timeout_s
        while not link.is_open:
            if time.monotonic() > deadline:
                return False
            link.send_hello()
            time.sleep(HELLO_PERIOD_S)
        self._measure(link)
        return True

    def _measure(self, link: PacedLink) -> None:
        """Fill the link for a moment, so that its first prompt need not find out its rate."""
        until = time.monotonic() + MEASURE_S
        while time.monotonic() < until:
            if link.transfers_waiting < FILLERS_WAITING:
                link.fill()
                self.wake()
            time.sleep(MEASURE_STEP_S)

    def wake(self) -> None:
        """Look at all links now."""
        os.write(self._wake[1], b"\0")

    def stop(self) -> None:
        """End the thread; sockets may be closed afterwards."""
        self._stopped = True
        self.wake()
        if self._thread is not None:
            self._thread.join()

    @property
    def chunks_refused(self) -> int:
        """Pieces that did not fit, on all inbound links."""
        return sum(link.reassembly.chunks_refused for link in self.inbound)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            log.exception("the link thread has failed")
            self.on_failure(error)

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._wake[0], select.POLLIN)
        for link in self.inbound:
            poller.register(link.descriptor, select.POLLIN)
        registered: set[int] = set()
        while not self._stopped:
            outbound = self.outbound
            wakes = [link.pump() for link in outbound]
            registered = _register_anew(poller, outbound, registered)
            for inbound in self.inbound:
                self._drain(inbound)
            events = poller.poll(_milliseconds_until(wakes))
            if any(descriptor == self._wake[0] for descriptor, _ in events):
                os.read(self._wake[0], 4096)

    def _drain(self, link: InboundLink) -> None:
        """Take all chunks that have arrived, acknowledge them, deliver what is complete."""
        reassembly = link.reassembly
        while (frames := link.receive()) is not None:
            try:
                header = decode_link_frame(frames[0])
            except FrameError as error:
                self._refuse(error)
                continue
            if not isinstance(header, ChunkHeader):
                link.answer([encode_welcome(reassembly.next_sequence)])
                continue
            if header.sequence <= reassembly.next_sequence:
                link.answer([encode_ack((header.sequence,))])
            else:
                link.answer([encode_missing(reassembly.next_sequence)])
            message = reassembly.take(header, frames[1] if len(frames) == 2 else b"")
            if message is not None and len(message[0]):  # Fillers have no header.
                self.deliver(message)

    def _refuse(self, error: FrameError) -> None:
        if not self.frames_refused:
            log.warning("a peer sent something else than a chunk (%s); it is dropped", error)
        self.frames_refused += 1


def _register_anew(
    poller: "select.poll", links: Sequence[PacedLink], registered: set[int]
) -> set[int]:
    """The descriptors of these links, polled from now on; those that were closed no longer."""
    present = {descriptor for link in links for descriptor in link.connections.descriptors}
    for descriptor in registered - present:
        poller.unregister(descriptor)
    for descriptor in present - registered:
        poller.register(descriptor, select.POLLIN)
    return present


def _milliseconds_until(wakes: Sequence[float | None]) -> float:
    """Time to sleep; fractions are kept, poll() rounds them up."""
    due = [wake for wake in wakes if wake is not None]
    if not due:
        return SLEEP_MAX_S * 1e3
    return max(SLEEP_MIN_S, min(SLEEP_MAX_S, min(due) - time.monotonic())) * 1e3


OPEN_TIMEOUT_S = 15.0
"""A far end that has not answered by then is not there: it has listened since it loaded, and behind
a relay and a slow handshake it answers in three or four seconds."""

MessageFrames = list[memoryview]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ProcessLinks:
    """Inbound ports, outgoing links and link thread of one process."""

    name: str
    """Of the process, in its log."""
    inbound: list[InboundLink]
    epoch: int
    """Of the ring; messages of another one are refused."""
    guard: CurveGuard | None
    """Whose keys may speak here; None: the links are not encrypted."""
    thread: LinkThread
    _context: "zmq.Context[zmq.Socket[bytes]]"
    _messages_refused: int = 0

    @classmethod
    def bind(
        cls,
        name: str,
        host: str,
        ports: int,
        deliver: Callable[[MessageFrames], None],
        on_failure: Callable[[Exception], None],
        keys: CurveKeys | None = None,
        epoch: int = 0,
    ) -> "ProcessLinks":
        """Listen at so many free ports of `host`; with `keys`, encrypted.

        In the link thread `deliver` is called with the frames of each message that has arrived
        whole, and `on_failure` when that thread ends by an error, so that no link works any more.
        """
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        guard = CurveGuard(context, keys) if keys is not None else None
        inbound = [InboundLink.bind(context, host, guard) for _ in range(ports)]
        thread = LinkThread(inbound, deliver, on_failure)
        thread.start()
        return cls(name, inbound, epoch, guard, thread, context)

    def connect(
        self,
        name: str,
        address: str,
        key: str | None,
        queue: TransmissionQueue,
        pacer: LinkPacer,
        on_silence: OnSilence,
    ) -> PacedLink:
        """A link to `tcp://host:port`, to be opened; `key` is the far end's public key in Z85 where
        links are encrypted. Raises ValueError when keys are given for one end only."""
        peer = peer_of(self.guard, key)
        return PacedLink.connect(self._context, name, address, queue, pacer, peer, on_silence)

    def open(self, link: PacedLink) -> bool:
        """Serve a link from now on and wait until its far end answers; False when it does not."""
        return self.thread.open(link, OPEN_TIMEOUT_S)

    def send(
        self,
        link: PacedLink,
        message: Message,
        batch_class: BatchClass = DECODE,
    ) -> None:
        """Send a message; what may not leave at once leaves from the link thread."""
        if not link.send(encode_message(message, self.epoch), batch_class):
            self.thread.wake()

    def move(self, link: PacedLink, address: str, done: Callable[[MoveOutcome], None]) -> None:
        """Lead a link to another address of its far end; `done` is called in the link thread."""
        link.move_to(address, done)
        self.thread.wake()

    def decode(self, frames: MessageFrames) -> Message | None:
        """The message in `frames`; None, and counted, when it is malformed or of another epoch."""
        try:
            message, epoch = decode_message(frames)
            if epoch != self.epoch:
                raise FrameError(f"it is of epoch {epoch}, this ring is of {self.epoch}")
        except FrameError as error:
            self.refuse(error)
            return None
        return message

    def refuse(self, error: FrameError) -> None:
        """Drop a message that cannot be read or carried out: count it, and log the first."""
        if not self._messages_refused:
            log.warning("%s drops a message from a peer (%s)", self.name, error)
        self._messages_refused += 1

    @property
    def messages_dropped(self) -> int:
        """Whole messages that could not be read, or not be carried out."""
        return self._messages_refused

    @property
    def frames_refused(self) -> int:
        """Messages and pieces dropped: malformed, of another epoch, of a key that is no longer
        allowed, or not to be carried out."""
        thread = self.thread
        not_allowed = sum(link.messages_refused for link in self.inbound)
        return self._messages_refused + not_allowed + thread.frames_refused + thread.chunks_refused

    def close(self) -> None:
        """End the link thread and close every link."""
        self.thread.stop()
        for inbound in self.inbound:
            inbound.socket.close()
        for outbound in self.thread.outbound:
            outbound.close()
        if self.guard is not None:
            self.guard.close()
        self._context.term()
