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
Messages that are complete are handed to `deliver`, in this thread; their reader says when it has
taken them.
"""

import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from molink.errors import FrameError
from molink.transport.link.connections import HELLO_PERIOD_S
from molink.transport.link.inbound import ArrivedMessage, InboundLink
from molink.transport.link.paced_link import PacedLink
from molink.wire.chunks import (
    ChunkHeader,
    LinkHello,
    decode_link_frame,
    encode_ack,
    encode_missing,
    encode_welcome,
)

SLEEP_MAX_S = 0.5
"""Nothing is due later than this without a descriptor becoming readable first, and far ends are
watched (`PeerWatch`)."""

SLEEP_MIN_S = 0.001
"""poll() counts whole milliseconds; where a link asks to be looked at in less, no core spins."""

MEASURE_S = 1.0
"""A ramp from 8 to 200 Mbps takes less; every link of a ring is measured at the same time."""

FILLERS_WAITING = 8
"""Enough that a fast link does not run dry between two looks."""

FRAMES_MAX = 2
"""A chunk's header and its piece."""

MEASURE_STEP_S = 0.001
"""How often to look whether the link wants more filler."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LinkThread:
    """Thread that serves a process's links, from `start` to `stop`."""

    inbound: Sequence[InboundLink]
    deliver: Callable[[ArrivedMessage], None]
    """Called with each complete message."""
    on_failure: Callable[[Exception], None] = field(default=lambda error: None)
    """Called when the thread ends by an error of ours: no link works any more."""
    on_quiet: Callable[[], None] = field(default=lambda: None)
    """Called when the far end of some link has fallen silent."""
    outbound: list[PacedLink] = field(default_factory=list)
    _leaving: list[PacedLink] = field(default_factory=list)
    """Links that are to be closed, by this thread because it polls them."""
    _wake: tuple[int, int] = field(default_factory=os.pipe)
    _wake_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held to write to the pipe: its number may be another file's once it is closed."""
    _is_closed: bool = False
    _stopped: bool = False
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to serve the inbound links."""
        self._thread = threading.Thread(target=self._run, name="links", daemon=True)
        self._thread.start()

    def close(self, link: PacedLink) -> None:
        """Serve an outbound link no more and close it, soon."""
        self.outbound = [one for one in self.outbound if one is not link]
        self._leaving.append(link)
        self.wake()

    def serve(self, link: PacedLink) -> None:
        """Serve an outbound link too; its far end answers when it does."""
        self.outbound = [*self.outbound, link]
        self.wake()

    def open(
        self,
        link: PacedLink,
        timeout_s: float,
        *,
        measure: bool = True,
        given_up: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Serve an outbound link too; False when its far end does not answer in time, or before it
        is `given_up`. `measure`: find out its rate before it is used, which takes a second."""
        self.serve(link)
        deadline = time.monotonic() + timeout_s
        while not link.is_open:
            if time.monotonic() > deadline or given_up():
                return False
            link.send_hello()
            time.sleep(HELLO_PERIOD_S)
        if measure:
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
        """Look at all links now; does nothing once the thread has ended."""
        with self._wake_lock:
            if not self._is_closed:
                os.write(self._wake[1], b"\0")

    def stop(self) -> None:
        """End the thread; sockets may be closed afterwards. A second call does nothing."""
        if self._stopped:
            return
        self._stopped = True
        self.wake()
        if self._thread is not None:
            self._thread.join()
        while self._leaving:
            self._leaving.pop().close()
        with self._wake_lock:
            for descriptor in self._wake:
                os.close(descriptor)
            self._is_closed = True

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
            leaving, self._leaving = self._leaving, []
            outbound = self.outbound
            wakes = [link.pump() for link in outbound]
            registered = _register_anew(poller, outbound, registered)
            for left in leaving:
                left.close()
            for inbound in self.inbound:
                self._drain(inbound)
            wakes += [time.monotonic() + pause for one in self.inbound if (pause := one.pause_s())]
            self._look_at_peers()
            events = poller.poll(_milliseconds_until(wakes))
            if any(descriptor == self._wake[0] for descriptor, _ in events):
                os.read(self._wake[0], 4096)

    def _look_at_peers(self) -> None:
        now = time.monotonic()
        peers = [link.peer for link in self.inbound] + [link.peer for link in self.outbound]
        if any([peer.look(now) for peer in peers]):
            self.on_quiet()

    def _drain(self, link: InboundLink) -> None:
        """Take all chunks that have arrived, acknowledge them, deliver what is complete."""
        reassembly = link.reassembly
        may_read = link.may_read()
        while may_read and not self._stopped and (frames := link.receive()) is not None:
            try:
                header = decode_link_frame(frames[0])
                if len(frames) > FRAMES_MAX:
                    raise FrameError(f"{len(frames)} frames at once, {FRAMES_MAX} are the most")
            except FrameError as error:
                link.refuse(error)
                continue
            if not isinstance(header, ChunkHeader):
                link.greeted()
                if isinstance(header, LinkHello):
                    reassembly.greeted(header.stream)
                link.answer([encode_welcome(reassembly.next_sequence)])
                continue
            if header.sequence <= reassembly.next_sequence:
                link.answer([encode_ack((header.sequence,))])
            else:
                link.answer([encode_missing(reassembly.next_sequence)])
            message = reassembly.take(header, frames[1] if len(frames) == 2 else b"")
            if message is not None and len(message[0]):  # Fillers have no header.
                self.deliver(link.counted(message))
                may_read = link.may_read()


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


def _milliseconds_until(wakes: Sequence[float]) -> float:
    """Time to sleep; fractions are kept, poll() rounds them up."""
    due_s = min(wakes, default=math.inf) - time.monotonic()
    return max(SLEEP_MIN_S, min(SLEEP_MAX_S, due_s)) * 1e3
