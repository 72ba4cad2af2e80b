"""Both ends of a real link in virtual time, and a network between them that misbehaves.

frozen   what is sent arrives when it is over, in order
hole     what is sent vanishes, and so does all that is sent later on a connection that was used
         meanwhile: a router has forgotten it
cut      in the moment when it begins, what is under way is lost; the connection is made anew by
         itself, and carries what is sent from then on
"""

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import zmq

from molink.transport.link.connections import Connections
from molink.transport.link.paced_link import PacedLink
from molink.transport.link.thread import SLEEP_MAX_S, SLEEP_MIN_S, LinkThread
from molink.wire.chunks import Reassembly
from molink_scheduler.batch import BatchClass
from molink_scheduler.link.facts import LinkMemory
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.priority_queues import PriorityQueues
from molink_scheduler.link.sender import LinkSender
from molink_scheduler.link.silence import SilenceStep

ADDRESS = "tcp://far:1"
PORT = 1
RATE_BYTES_PER_S = 2e6

Trouble = tuple[float, float, str]
"""(from, to, what), ascending and apart."""


@dataclass(eq=False)
class FakeConnection:
    """What the link takes for a socket."""

    network: "FakeNetwork"
    address: str = ADDRESS
    dead: bool = False
    closed: bool = False
    inbox: "deque[bytes]" = field(default_factory=deque)
    arrives_at: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Of what was sent last, there and back."""

    def connect(self, address: str) -> None:
        self.address = address

    def close(self) -> None:
        self.closed = True

    def getsockopt(self, option: int) -> int:
        return 0

    def get(self, option: int) -> int:
        assert option == zmq.EVENTS
        return zmq.POLLIN if self.inbox else 0

    def send(self, frame: bytes, flags: int) -> None:
        self.send_multipart([frame], flags)

    def send_multipart(self, frames: Sequence[bytes], flags: int) -> None:
        assert flags == zmq.NOBLOCK and not self.closed
        self.network.carry(self, [bytes(frame) for frame in frames], back=False)

    def recv(self, flags: int) -> bytes:
        if not self.inbox:
            raise zmq.Again
        return self.inbox.popleft()


@dataclass
class FakeNetwork:
    """A sender, its network, and a receiver that acknowledges."""

    troubles: list[Trouble]
    one_way_s: float = 0.03
    blocked: set[str] = field(default_factory=set)
    """Addresses that lead nowhere."""
    now: float = 0.0
    steps: list[tuple[float, SilenceStep]] = field(default_factory=list)
    arrived: list[tuple[float, list[bytes]]] = field(default_factory=list)
    connections: list[FakeConnection] = field(default_factory=list)
    bytes_sent: int = 0
    frames_refused: int = 0
    reassembly: Reassembly = field(default_factory=Reassembly)

    def __post_init__(self) -> None:
        self.events: list = []
        self.ids = itertools.count()
        self.greetings = 0
        self.pumped_at = -1.0
        self.received: deque = deque()
        self.thread = LinkThread([], self.arrived.append)
        sender = LinkSender(PriorityQueues(), LinkPacer(LinkMemory(RATE_BYTES_PER_S, 0.06)))
        connections = Connections(self.connected, ADDRESS)
        self.link = PacedLink(
            "next",
            connections,
            sender,
            lambda: self.now,
            lambda link, step: self.steps.append((self.now, step)),
        )
        for start, _, what in self.troubles:
            if what == "cut":
                self.at(start, self._cut)

    def connected(self) -> FakeConnection:
        self.connections.append(FakeConnection(self))
        return self.connections[-1]

    def at(self, when: float, action) -> None:
        heapq.heappush(self.events, (when, next(self.ids), action))

    def send_at(self, when: float, batch_class: BatchClass, buffer: bytes) -> None:
        header = b"%d" % batch_class
        self.at(when, lambda: self.link.send([header, buffer], batch_class))

    def run(self, until: float) -> None:
        """As a link's thread would: it pumps after each event, and when it was told to."""
        self.at(self.now, lambda: None)
        while self.events and self.events[0][0] <= until:
            self.now, _, action = heapq.heappop(self.events)
            action()
            if self.now > self.pumped_at or action != self._nothing:
                self._pump()
        self.now = until

    def carry(self, connection: FakeConnection, frames: list[bytes], *, back: bool) -> None:
        """A message on its way there, or `back`."""
        self.bytes_sent += 0 if back else sum(map(len, frames))
        if self._vanishes(connection):
            return
        arrives_at = max(connection.arrives_at[back], self._thaws_at(self.now) + self.one_way_s)
        connection.arrives_at[back] = arrives_at
        self.at(arrives_at, lambda: self._arrive(connection, frames, back, self._last_cut))

    # What LinkThread wants of an inbound link.

    def may_read(self) -> bool:
        return True

    def receive(self) -> list[bytes] | None:
        if not self.received:
            return None
        self.heard, frames = self.received.popleft()
        return frames

    def greeted(self) -> None:
        self.greetings += 1

    def refuse(self, error: Exception) -> None:
        self.frames_refused += 1

    def answer(self, frames: list[bytes]) -> None:
        self.carry(self.heard, frames, back=True)

    _last_cut: float = -1.0

    def _cut(self) -> None:
        self._last_cut = self.now

    def _nothing(self) -> None:
        pass

    def _pump(self) -> None:
        wake_at = self.link.pump()
        self.pumped_at = self.now
        latest = self.now + SLEEP_MAX_S
        self.at(max(self.now + SLEEP_MIN_S, min(wake_at or latest, latest)), self._nothing)

    def _arrive(
        self, connection: FakeConnection, frames: list[bytes], back: bool, sent_after_cut: float
    ) -> None:
        thaws_at = self._thaws_at(self.now)
        if thaws_at > self.now:
            connection.arrives_at[back] = max(connection.arrives_at[back], thaws_at)
            self.at(thaws_at, lambda: self._arrive(connection, frames, back, sent_after_cut))
        elif self._vanishes(connection) or sent_after_cut < self._last_cut:
            return
        elif back:
            connection.inbox.append(frames[0])
        else:
            self.received.append((connection, frames))
            self.thread._drain(self)

    def _vanishes(self, connection: FakeConnection) -> bool:
        connection.dead |= connection.address in self.blocked or self._trouble() == "hole"
        return connection.dead

    def _trouble(self) -> str:
        return next((what for a, b, what in self.troubles if a <= self.now < b), "")

    def _thaws_at(self, when: float) -> float:
        return next((b for a, b, what in self.troubles if what == "frozen" and a <= when < b), when)

    def counted(self, frames: list[memoryview]) -> tuple[float, list[bytes]]:
        return self.now, [bytes(frame) for frame in frames]
