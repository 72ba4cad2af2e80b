"""The links of one stage: where messages come from, where they go, and the hello that opens
them."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import zmq

from molink.errors import FrameError, StageError
from molink.runtime.supervision import JoinRing, LinkHealth
from molink.transport.links import HELLO_PERIOD_S, InboundLink, OutboundLink
from molink.wire.frames import decode_message, encode_message
from molink.wire.messages import Hello, Message

__all__ = ["StageLinks"]

HELLO_TIMEOUT_S = 60.0
"""A neighbour that has not answered by then is not there; the slowest home link answers in
seconds."""


@dataclass(slots=True)
class StageLinks:
    """Inbound links are bound before the weights load, outbound ones when the ring is known."""

    name: str
    inbound: list[InboundLink]
    """The previous stage (for the head: the tail) first, on the head then the coordinator."""
    _context: "zmq.Context[zmq.Socket[bytes]]"
    _poller: zmq.Poller = field(default_factory=zmq.Poller)
    epoch: int = 0
    frames_refused: int = 0
    _next: OutboundLink | None = None
    _coordinator: OutboundLink | None = None

    @classmethod
    def bind(cls, name: str, host: str, is_head: bool) -> "StageLinks":
        """Listen for the neighbours that will connect."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        count = 2 if is_head else 1
        links = cls(name, [InboundLink.bind(context, host) for _ in range(count)], context)
        for link in links.inbound:
            links._poller.register(link.socket, zmq.POLLIN)
        return links

    def connect(self, command: JoinRing) -> None:
        """Open the links that leave here, and answer neighbours' hellos meanwhile.

        Raises StageError when a neighbour does not answer.
        """
        self.epoch = command.epoch
        self._next = OutboundLink.connect(self._context, "next", command.next_address)
        if command.coordinator_address is not None:
            self._coordinator = OutboundLink.connect(
                self._context, "coordinator", command.coordinator_address
            )
        deadline = time.monotonic() + HELLO_TIMEOUT_S
        while not all(link.open for link in self._outbound()):
            if time.monotonic() > deadline:
                raise StageError(f"{self.name} got no answer from its neighbour: check the link.")
            self._greet()

    def send_next(self, message: Message) -> None:
        """Send to the next stage (from the tail: to the head)."""
        assert self._next is not None, "the ring is joined before anything is sent"
        self._next.send(encode_message(message, self.epoch))

    def send_coordinator(self, message: Message) -> None:
        """Send to the coordinator; only the tail has this link."""
        assert self._coordinator is not None, "only the tail sends to the coordinator"
        self._coordinator.send(encode_message(message, self.epoch))

    def wait(self, timeout_s: float) -> None:
        """Return when a message may have arrived, or after `timeout_s`."""
        self._poller.poll(math.ceil(timeout_s * 1e3))

    def receive(self) -> Iterator[Message]:
        """All messages that have arrived, of this epoch and well-formed; hellos are answered
        here."""
        for link in self.inbound:
            while (frames := link.receive()) is not None:
                message = self._decode(frames)
                if isinstance(message, Hello):
                    link.answer(encode_message(Hello(self.name, answer=True), self.epoch))
                elif message is not None:
                    yield message

    def health(self) -> tuple[LinkHealth, ...]:
        """Counters of the links that leave here."""
        return tuple(
            LinkHealth(link.name, link.messages_sent, link.bytes_sent) for link in self._outbound()
        )

    def _outbound(self) -> list[OutboundLink]:
        return [link for link in (self._next, self._coordinator) if link is not None]

    def _greet(self) -> None:
        for link in self._outbound():
            if not link.open:
                link.send(encode_message(Hello(self.name), self.epoch))
        until = time.monotonic() + HELLO_PERIOD_S
        while (left_s := until - time.monotonic()) > 0 and not all(
            o.open for o in self._outbound()
        ):
            self._wait_any(left_s)
            for message in self.receive():
                raise StageError(f"{self.name} got {type(message).__name__} before the ring stood.")
            for link in self._outbound():
                link.open = link.open or link.receive() is not None

    def _wait_any(self, timeout_s: float) -> None:
        poller = zmq.Poller()
        for socket in [*(i.socket for i in self.inbound), *(o.socket for o in self._outbound())]:
            poller.register(socket, zmq.POLLIN)
        poller.poll(int(timeout_s * 1e3) + 1)

    def _decode(self, frames: list[bytes | memoryview]) -> Message | None:
        try:
            message, epoch = decode_message(frames)
        except FrameError:
            self.frames_refused += 1
            return None
        if epoch != self.epoch and not isinstance(message, Hello):
            self.frames_refused += 1
            return None
        return message
