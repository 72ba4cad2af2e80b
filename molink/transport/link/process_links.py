"""The links of one process of a ring: where it listens, what leaves it, and the thread of both.

A stage and the coordinator differ in what they do with a message, not in how it comes and goes.
What they share is here: one ZeroMQ context, one guard of keys, one link thread, and the check that
a message is well-formed and of this ring's epoch.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from molink.errors import FrameError
from molink.transport.curve import CurveGuard, peer_of
from molink.transport.link.connections import MoveOutcome
from molink.transport.link.paced_link import OnSilence, PacedLink
from molink.transport.link.thread import InboundLink, LinkThread
from molink.wire.curve_keys import CurveKeys
from molink.wire.frames import Message, decode_message, encode_message
from molink_scheduler.batch import DECODE, BatchClass
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.transmission import TransmissionQueue

__all__ = ["MessageFrames", "ProcessLinks"]

OPEN_TIMEOUT_S = 60.0
"""A far end that has not answered by then is not there; the slowest home link answers in
seconds."""

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
