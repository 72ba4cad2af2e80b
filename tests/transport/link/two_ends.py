"""A sender and a receiver on loopback, each with a thread and a context, plain or encrypted."""

import queue
import socket
import threading
from dataclasses import dataclass, field

import zmq

from molink.control.identity import KeyPair
from molink.transport.curve import CurveGuard, CurvePeer
from molink.transport.link.connections import MoveOutcome
from molink.transport.link.inbound import InboundLink
from molink.transport.link.paced_link import PacedLink
from molink.transport.link.thread import LinkThread
from molink.wire.curve_keys import CurveKeys
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.priority_queues import PriorityQueues

ARRIVES_WITHIN_S = 30.0
HEADER = b"header"


def keys(number: int, *allowed: str) -> CurveKeys:
    """The pair of this number, the same in every test."""
    pair = KeyPair.of_secret(number.to_bytes(16, "big") + bytes(16))
    return CurveKeys(pair.public_z85, pair.secret_z85, allowed)


def public(number: int) -> str:
    return keys(number).public


SENDER, RECEIVER, STRANGER = 1, 2, 3


class UnmeasuredLinks(LinkThread):
    """Opens links without filling them for a second."""

    def _measure(self, link: PacedLink) -> None:
        pass


@dataclass
class TwoEnds:
    """`with` it; the sender has the pair SENDER, the receiver RECEIVER unless it is plain."""

    receiver_keys: CurveKeys | None = None
    sender_keys: CurveKeys | None = None
    host: str = "127.0.0.1"
    contexts: list[zmq.Context] = field(default_factory=lambda: [zmq.Context(), zmq.Context()])
    inbox: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    outcomes: "queue.SimpleQueue[MoveOutcome]" = field(default_factory=queue.SimpleQueue)

    @classmethod
    def encrypted(cls, *allowed: str, host: str = "127.0.0.1") -> "TwoEnds":
        return cls(keys(RECEIVER, *allowed), keys(SENDER), host)

    def __enter__(self) -> "TwoEnds":
        both = zip(self.contexts, (self.sender_keys, self.receiver_keys), strict=True)
        self.guards = [CurveGuard(context, own) if own else None for context, own in both]
        self.inbound = InboundLink.bind(self.contexts[1], self.host, self.guards[1])
        self.receiver = LinkThread([self.inbound], self.inbox.put)
        self.sender = UnmeasuredLinks([], lambda frames: None)
        self.receiver.start()
        self.sender.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.sender.stop()
        self.receiver.stop()
        for guard in self.guards:
            if guard is not None:
                guard.close()
        for context in self.contexts:
            context.destroy(linger=0)

    @property
    def guard(self) -> CurveGuard:
        """The receiver's."""
        assert self.guards[1] is not None
        return self.guards[1]

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.inbound.port}"

    def link(self, key: str | None = None) -> PacedLink:
        """Connected and not opened, to the owner of `key`."""
        peer = CurvePeer(self.guards[0], key) if key is not None else None
        queue_, pacer = PriorityQueues(), LinkPacer()
        return PacedLink.connect(self.contexts[0], "next", self.address, queue_, pacer, peer)

    def opened(self, key: str | None = None) -> PacedLink:
        link = self.link(key)
        assert self.sender.open(link, ARRIVES_WITHIN_S)
        return link

    def send(self, link: PacedLink, batch_class, *buffer: bytes) -> None:
        if not link.send([HEADER, *buffer], batch_class):
            self.sender.wake()

    def move(self, link: PacedLink, address: str) -> None:
        link.move_to(address, self.outcomes.put)
        self.sender.wake()

    def moved(self) -> MoveOutcome:
        return self.outcomes.get(timeout=ARRIVES_WITHIN_S)

    def next_message(self) -> list[bytes]:
        arrived = self.inbox.get(timeout=ARRIVES_WITHIN_S)
        if arrived.link.taken(arrived):
            self.receiver.wake()
        return [bytes(frame) for frame in arrived.frames]


class Wiretap:
    """A TCP proxy for one connection that keeps all that passes."""

    def __init__(self, port: int) -> None:
        self.seen = bytearray()
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._target))
        threading.Thread(target=self._pump, args=(far, near), daemon=True).start()
        self._pump(near, far)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        while piece := source.recv(65536):
            self.seen += piece
            sink.sendall(piece)
        sink.close()
