"""The coordinator's two links: requests go to the head, tokens come from the tail.

The same link thread as in a stage; what arrives is handed into the event loop.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import zmq

from molink.errors import FrameError, RingError
from molink.transport.curve import CurveGuard, CurveKeys, peer_of
from molink.transport.link.inbound import InboundLink
from molink.transport.link.paced_link import PacedLink
from molink.transport.link.path_move import MoveOutcome
from molink.transport.link.thread import LinkThread
from molink.wire.frames import decode_message, encode_message
from molink.wire.messages import Cancel, Message, Sampled, SetCodec, Submit
from molink_scheduler.batch import BatchClass
from molink_scheduler.link.facts import LinkMemory
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.silence import GiveUp, Reconnect, SilenceStep
from molink_scheduler.link.transmission import make_transmission

__all__ = ["RingClientLinks"]

OPEN_TIMEOUT_S = 60.0
"""As between stages: a head that has not answered by then is not there."""


@dataclass(slots=True)
class RingClientLinks:
    """Sends `Submit` and `Cancel`, hands each `Sampled` to a callback."""

    epoch: int
    inbound: InboundLink
    _context: "zmq.Context[zmq.Socket[bytes]]"
    _loop: asyncio.AbstractEventLoop
    sampled: Callable[[Sampled], None] = field(default=lambda message: None)
    """Called in the event loop for every batch that the tail finished."""
    head_silent: Callable[[], None] = field(default=lambda: None)
    """Called there when nothing is acknowledged by the head, and another way is wanted."""
    head_lost: Callable[[str], None] = field(default=lambda reason: None)
    """Called there once when the link to the head is given up; `reason` is a sentence."""
    frames_refused: int = 0
    head: PacedLink | None = None
    _guard: CurveGuard | None = None
    """None: the links are not encrypted."""
    _thread: LinkThread | None = None

    @classmethod
    def bind(cls, host: str, epoch: int, keys: CurveKeys | None = None) -> "RingClientLinks":
        """Listen for the tail; with `keys`, encrypted. Needs a running event loop."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        guard = CurveGuard(context, keys) if keys is not None else None
        inbound = InboundLink.bind(context, host, guard)
        links = cls(epoch, inbound, context, asyncio.get_running_loop(), _guard=guard)
        links._thread = LinkThread([inbound], links._deliver)
        links._thread.start()
        return links

    async def connect(
        self, head_address: str, memory: LinkMemory | None = None, head_key: str | None = None
    ) -> None:
        """Open the link to the head; `memory` is what was last known of it, `head_key` the head's
        public key in Z85 where links are encrypted.

        Raises RingError when it does not answer, ValueError when keys are given for one end only.
        """
        assert self._thread is not None
        queue, pacer, peer = make_transmission(), LinkPacer(memory), peer_of(self._guard, head_key)
        self.head = PacedLink.connect(self._context, "head", head_address, queue, pacer, peer)
        self.head.on_silence = self._head_silent
        if not await asyncio.to_thread(self._thread.open, self.head, OPEN_TIMEOUT_S):
            raise RingError("The head does not answer: check its link.")

    def send(self, message: Submit | Cancel | SetCodec) -> None:
        """Send to the head."""
        assert self.head is not None and self._thread is not None, "connect comes first"
        if not self.head.send(encode_message(message, self.epoch), BatchClass.DECODE, 0):
            self._thread.wake()

    def allow(self, keys: Iterable[str]) -> None:
        """Hear these keys (Z85) from now on and nobody else; the links must be encrypted. Raises
        ValueError for what is no key."""
        assert self._guard is not None, "links that are not encrypted hear everybody"
        self._guard.allow(keys)

    async def move_head(self, address: str) -> MoveOutcome:
        """Lead the link to the head to another address of it; requests go on meanwhile."""
        assert self.head is not None and self._thread is not None, "connect comes first"
        outcome: asyncio.Future[MoveOutcome] = self._loop.create_future()

        def done(how: MoveOutcome) -> None:
            self._loop.call_soon_threadsafe(_settle, outcome, how)

        self.head.move_to(address, done)
        self._thread.wake()
        return await outcome

    def close(self) -> None:
        """Close both links."""
        assert self._thread is not None
        self._thread.stop()
        self.inbound.socket.close()
        if self.head is not None:
            self.head.close()
        if self._guard is not None:
            self._guard.close()
        self._context.term()

    def _head_silent(self, step: SilenceStep) -> None:
        """In the link thread: the way to the head seems dead."""
        match step:
            case Reconnect(ask_others=True):
                self._loop.call_soon_threadsafe(lambda: self.head_silent())
            case GiveUp(silent_s):
                reason = f"For {silent_s:.0f} s the head has acknowledged nothing over any way."
                self._loop.call_soon_threadsafe(lambda: self.head_lost(reason))

    def _deliver(self, frames: list[memoryview]) -> None:
        """In the link thread."""
        message = self._decode(frames)
        if isinstance(message, Sampled):
            self._loop.call_soon_threadsafe(self.sampled, message)

    def _decode(self, frames: list[memoryview]) -> Message | None:
        try:
            message, epoch = decode_message(frames)
        except FrameError:
            self.frames_refused += 1
            return None
        if epoch != self.epoch:
            self.frames_refused += 1
            return None
        return message


def _settle(future: "asyncio.Future[MoveOutcome]", outcome: MoveOutcome) -> None:
    """Nobody may wait any more."""
    if not future.done():
        future.set_result(outcome)
