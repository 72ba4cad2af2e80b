"""The coordinator's two links inside an event loop: requests go to the head, tokens come from
the tail."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from molink.errors import FrameError, RingError
from molink.transport.links import HELLO_PERIOD_S, InboundLink, OutboundLink
from molink.wire.frames import decode_message, encode_message
from molink.wire.messages import Cancel, Hello, Message, Sampled, Submit

__all__ = ["CoordinatorLinks"]

HELLO_TIMEOUT_S = 60.0
"""As between stages: a head that has not answered by then is not there."""

NAME = "coordinator"


@dataclass(slots=True)
class CoordinatorLinks:
    """Sends `Submit` and `Cancel`, hands each `Sampled` to a callback."""

    epoch: int
    inbound: InboundLink
    _context: "zmq.Context[zmq.Socket[bytes]]"
    sampled: Callable[[Sampled], None] = field(default=lambda message: None)
    """Called in the event loop for every batch that the tail finished."""
    frames_refused: int = 0
    outbound: OutboundLink | None = None

    @classmethod
    def bind(cls, host: str, epoch: int) -> "CoordinatorLinks":
        """Listen for the tail; needs a running event loop."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        links = cls(epoch, InboundLink.bind(context, host), context)
        _on_readable(links.inbound, links._drain)
        return links

    async def connect(self, head_address: str) -> None:
        """Open the link to the head. Raises RingError when it does not answer."""
        link = self.outbound = OutboundLink.connect(self._context, "head", head_address)
        answered = asyncio.Event()

        def take_answer() -> None:
            while link.receive() is not None:
                answered.set()

        _on_readable(link, take_answer)
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                while not answered.is_set():
                    link.send(encode_message(Hello(NAME), self.epoch))
                    take_answer()
                    await _wait_for(answered, HELLO_PERIOD_S)
        except TimeoutError:
            raise RingError("The head does not answer: check its link.") from None
        link.open = True

    def send(self, message: Submit | Cancel) -> None:
        """Send to the head."""
        assert self.outbound is not None, "connect comes first"
        self.outbound.send(encode_message(message, self.epoch))

    def close(self) -> None:
        """Close both links."""
        loop = asyncio.get_running_loop()
        for link in (self.inbound, self.outbound):
            if link is not None:
                loop.remove_reader(link.descriptor)
                link.socket.close()
        self._context.term()

    def _drain(self) -> None:
        """Take every message that has arrived: the socket's descriptor signals edges only."""
        while (frames := self.inbound.receive()) is not None:
            message = self._decode(frames)
            if isinstance(message, Hello):
                self.inbound.answer(encode_message(Hello(NAME, answer=True), self.epoch))
            elif isinstance(message, Sampled):
                self.sampled(message)

    def _decode(self, frames: list[bytes | memoryview]) -> Message | None:
        try:
            message, epoch = decode_message(frames)
        except FrameError:
            self.frames_refused += 1
            return None
        if epoch != self.epoch:
            self.frames_refused += 1
            return None
        return message


def _on_readable(link: InboundLink | OutboundLink, callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().add_reader(link.descriptor, callback)
    callback()


async def _wait_for(event: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return
