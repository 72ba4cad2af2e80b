"""The links of one stage as its loop sees them: an inbox, and where to send.

A `LinkThread` acknowledges, paces and reassembles; whole messages land in the inbox, on which the
loop sleeps when it has nothing to compute. What the loop sends leaves in its own thread as far as
the pacer allows.
"""

import logging
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import zmq

from molink.errors import FrameError, StageError
from molink.stage_protocol.messages import (
    Fact,
    JoinRing,
    MovePath,
    OutgoingLink,
    PathMoved,
    SetAllowed,
    SetUploadCap,
    Steering,
)
from molink.transport.curve import CurveGuard, CurveKeys, peer_of
from molink.transport.link.inbound import InboundLink
from molink.transport.link.paced_link import PacedLink
from molink.transport.link.path_move import MoveOutcome
from molink.transport.link.thread import LinkThread
from molink.wire.frames import decode_message, encode_message
from molink.wire.messages import Message
from molink_scheduler.batch import BatchClass
from molink_scheduler.link.facts import LinkReport
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.silence import GiveUp, Reconnect, SilenceStep
from molink_scheduler.link.transmission import make_transmission
from molink_scheduler.link.upload_budget import UploadBudget

__all__ = ["StageLinks"]

OPEN_TIMEOUT_S = 60.0
"""A neighbour that has not answered by then is not there; the slowest home link answers in
seconds."""

log = logging.getLogger(__name__)

Frames = list[memoryview]


@dataclass(slots=True)
class StageLinks:
    """Inbound links are bound before the weights load, outbound ones when the ring is known."""

    name: str
    inbound: list[InboundLink]
    """The previous stage (for the head: the tail) first, on the head then the coordinator."""
    _context: "zmq.Context[zmq.Socket[bytes]]"
    _inbox: "queue.SimpleQueue[Frames]"
    _thread: LinkThread
    _guard: CurveGuard | None = None
    """None: the links are not encrypted."""
    _budget: UploadBudget = field(default_factory=lambda: UploadBudget(None))
    _tell: Callable[[Fact], None] = field(default=lambda fact: None)
    _epoch: int = 0
    _messages_refused: int = 0
    _next: PacedLink | None = None
    _coordinator: PacedLink | None = None
    _pending: list[Frames] = field(default_factory=list)
    _lost: str | None = None
    """Why this stage cannot go on, once a link is given up."""

    @classmethod
    def bind(
        cls, name: str, host: str, is_head: bool, keys: CurveKeys | None = None
    ) -> "StageLinks":
        """Listen for the neighbours that will connect; with `keys`, encrypted."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        guard = CurveGuard(context, keys) if keys is not None else None
        count = 2 if is_head else 1
        inbound = [InboundLink.bind(context, host, guard) for _ in range(count)]
        inbox: queue.SimpleQueue[Frames] = queue.SimpleQueue()
        thread = LinkThread(inbound, inbox.put)
        thread.start()
        return cls(name, inbound, context, inbox, thread, guard)

    def connect(self, command: JoinRing, tell: Callable[[Fact], None] = lambda fact: None) -> None:
        """Open the links that leave here; `tell` hears in the links' thread when one is silent and
        wants another way. Raises StageError when a neighbour does not answer."""
        self._epoch = command.epoch
        self._tell = tell
        budget = self._budget
        if command.upload_bytes_per_s is not None:
            budget.set_cap(command.upload_bytes_per_s)
        pacer = LinkPacer(command.next_memory, budget)
        self._next = self._open(
            "next", command.next_address, command.next_key, command.policy, pacer
        )
        if command.coordinator_address is not None:
            address, key = command.coordinator_address, command.coordinator_key
            pacer = LinkPacer(command.coordinator_memory, budget)
            self._coordinator = self._open("coordinator", address, key, command.policy, pacer)

    def obey(self, command: Steering, tell: Callable[[Fact], None]) -> None:
        """Take a command about the links at once, from any thread; `tell` hears how a move ended,
        in the links' thread."""
        match command:
            case SetAllowed(keys):
                if self._guard is not None:
                    self._guard.allow(keys)
                else:
                    log.warning("%s has links that are not encrypted: anybody may speak", self.name)
            case MovePath(name, address):
                self._move(name, address, tell)
            case SetUploadCap(bytes_per_s):
                self._budget.set_cap(bytes_per_s)
                self._thread.wake()

    def send_next(
        self, message: Message, batch_class: BatchClass = BatchClass.DECODE, tokens: int = 0
    ) -> None:
        """Send to the next stage (from the tail: to the head)."""
        assert self._next is not None, "the ring is joined before anything is sent"
        self._send(self._next, message, batch_class, tokens)

    def send_coordinator(self, message: Message) -> None:
        """Send to the coordinator; only the tail has this link."""
        assert self._coordinator is not None, "only the tail sends to the coordinator"
        self._send(self._coordinator, message, BatchClass.DECODE, 0)

    def set_next_decode_due(self, due_at: float | None) -> None:
        """When the link to the next stage is expected to carry decode again."""
        if self._next is not None:
            self._next.sender.set_next_decode_due(due_at)

    def set_decode_result_due(self, due_at: float) -> None:
        """When the result of the decode step that has begun is expected."""
        if self._next is not None:
            self._next.sender.set_decode_result_due(due_at)

    def wait(self, timeout_s: float) -> None:
        """Return when a message has arrived, or after `timeout_s`."""
        try:
            self._pending.append(self._inbox.get(timeout=timeout_s))
        except queue.Empty:
            return

    def receive(self) -> Iterator[Message]:
        """All messages that have arrived, of this epoch and well-formed. Raises StageError when a
        link that leaves here is lost."""
        if self._lost is not None:
            raise StageError(self._lost)
        while True:
            try:
                frames = self._pending.pop() if self._pending else self._inbox.get_nowait()
            except queue.Empty:
                return
            message = self._decode(frames)
            if message is not None:
                yield message

    def refuse(self, error: FrameError) -> None:
        """Drop a message that cannot be read or carried out: count it, and log the first."""
        if not self._messages_refused:
            log.warning("%s drops a message from a peer (%s)", self.name, error)
        self._messages_refused += 1

    @property
    def frames_refused(self) -> int:
        """Messages and pieces dropped: malformed, of another epoch, of a key that is no longer
        allowed, or not to be carried out."""
        thread = self._thread
        strangers = sum(link.messages_refused for link in self.inbound)
        return self._messages_refused + strangers + thread.frames_refused + thread.chunks_refused

    @property
    def next_rate_bytes_per_s(self) -> float:
        """Measured rate of the link to the next stage."""
        return self._next.rate_bytes_per_s if self._next is not None else 0.0

    def reports(self) -> tuple[LinkReport, ...]:
        """State of each link that leaves here."""
        links = (self._next, self._coordinator)
        return tuple(link.report() for link in links if link is not None)

    def _silent(self, link: PacedLink, step: SilenceStep) -> None:
        """In the links' thread: a way seems dead, and what the link does about it."""
        match step:
            case Reconnect(ask_others):
                log.warning("%s: nothing is acknowledged on the link %r", self.name, link.name)
                if ask_others:
                    name: OutgoingLink = "next" if link.name == "next" else "coordinator"
                    reason = "nothing that is sent there is acknowledged"
                    self._tell(PathMoved(name, link.address, False, reason))
            case GiveUp(silent_s):
                self._lost = (
                    f"{self.name} has lost its link {link.name!r}: for {silent_s:.0f} s nothing "
                    "was acknowledged over any way."
                )

    def _move(self, name: OutgoingLink, address: str, tell: Callable[[Fact], None]) -> None:
        def done(outcome: MoveOutcome) -> None:
            tell(PathMoved(name, outcome.address, outcome.moved, outcome.reason))

        link = self._next if name == "next" else self._coordinator
        if link is None or not link.is_open:
            done(MoveOutcome(address, False, "there is no such link here yet"))
            return
        link.move_to(address, done)
        self._thread.wake()

    def _open(
        self, name: str, address: str, key: str | None, policy: str, pacer: LinkPacer
    ) -> PacedLink:
        try:
            peer = peer_of(self._guard, key)
        except ValueError as error:
            raise StageError(f"{self.name} cannot encrypt its link: {error}.") from None
        queue_ = make_transmission(policy)
        link = PacedLink.connect(self._context, name, address, queue_, pacer, peer)
        link.on_silence = partial(self._silent, link)
        if not self._thread.open(link, OPEN_TIMEOUT_S):
            raise StageError(f"{self.name} got no answer from its neighbour: check the link.")
        return link

    def _send(
        self, link: PacedLink, message: Message, batch_class: BatchClass, tokens: int
    ) -> None:
        if not link.send(encode_message(message, self._epoch), batch_class, tokens):
            self._thread.wake()

    def _decode(self, frames: Frames) -> Message | None:
        try:
            message, epoch = decode_message(frames)
        except FrameError as error:
            self.refuse(error)
            return None
        if epoch != self._epoch:
            self.refuse(FrameError(f"it is of epoch {epoch}, this ring is of {self._epoch}"))
            return None
        return message
