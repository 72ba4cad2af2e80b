"""The links of one stage as its loop sees them: an inbox, and where to send.

The link thread of `ProcessLinks` acknowledges, paces and reassembles; whole messages land in the
inbox, on which the loop sleeps when it has nothing to compute. What the loop sends leaves in its
own thread as far as the pacer allows.

Each inbound link has a sender of its own: at the head the tail and the coordinator, elsewhere the
stage before. What is not that sender's to say, or cannot be carried out, is dropped and counted
under its link: it never ends the stage, and whoever sent it can be named.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

from molink.errors import FrameError, LinkFullError, LinkLostError, StageError
from molink.stage.shadow_link import ShadowLink
from molink.stage_protocol.messages import (
    BetweenSteps,
    Borrow,
    EnterRing,
    Fact,
    FollowRing,
    HoldLinks,
    JoinRing,
    LinkSteering,
    LoadStage,
    MovePath,
    OutgoingLink,
    PathMoved,
    SetAllowed,
    SetRoom,
    SetShadow,
    SetUploadCap,
)
from molink.transport.link.connections import MoveOutcome
from molink.transport.link.inbound import ArrivedMessage, InboundLink
from molink.transport.link.paced_link import PacedLink
from molink.transport.link.process_links import STALE, ProcessLinks
from molink.wire.curve_keys import CurveKeys
from molink.wire.frames import (
    FROM_COORDINATOR,
    FROM_STAGE,
    FROM_TAIL,
    Message,
)
from molink_scheduler.batch import BatchClass
from molink_scheduler.link.facts import LinkReport
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.priority_queues import PriorityQueues
from molink_scheduler.link.silence import LOST_S, GiveUp, Reconnect, SilenceStep
from molink_scheduler.link.upload_budget import UploadBudget

log = logging.getLogger(__name__)

COORDINATOR_LOST_S = 60.0
"""A coordinator that is started anew takes its rings over within that. Its relay is away as long,
and with it the way to a neighbour. What the tail cannot send meanwhile is drawn again then."""


@dataclass(slots=True)
class StageLinks:
    """Inbox and outgoing links of one stage."""

    name: str
    _inbox: "queue.SimpleQueue[ArrivedMessage | None]"
    """Arrived messages; None: somebody has called `wake`."""
    _report: Callable[[Fact], None]
    """Called, in the links' thread too, with what becomes of a link."""
    fell_silent: threading.Event = field(default_factory=threading.Event)
    """Event that is set when a neighbour has fallen silent; the reader clears it."""
    shadow: ShadowLink = field(init=False)
    """Link to the next stage's shadow, where it has one."""
    _links: ProcessLinks = field(init=False)
    _budget: UploadBudget = field(default_factory=lambda: UploadBudget(None))
    _next: PacedLink | None = None
    _coordinator: PacedLink | None = None
    _pending: list[ArrivedMessage] = field(default_factory=list)
    _keys: dict[str, str | None] = field(default_factory=dict)
    """Key that each outgoing link was opened with."""
    _last_link: InboundLink | None = None
    """Link that brought the message which `receive` returned last."""
    _is_held: bool = False
    """Whether its ring has lost a stage and does not go on yet: no link is given up meanwhile."""
    _latest_epoch: int = 0
    """Epoch of the latest order to join that was read: it may wait until the one before is done."""
    _lost: StageError | None = None
    """Why this stage cannot go on, once a link is given up."""

    @classmethod
    def bind(
        cls,
        name: str,
        host: str,
        is_head: bool,
        report: Callable[[Fact], None],
        keys: CurveKeys | None = None,
        first_port: int = 0,
    ) -> "StageLinks":
        """Listen for the neighbours that will connect, before the ring is known; with `keys`,
        encrypted; with `first_port`, at the LINK_PORTS ports from there on."""
        inbox: queue.SimpleQueue[ArrivedMessage | None] = queue.SimpleQueue()
        roles = (FROM_TAIL, FROM_COORDINATOR) if is_head else (FROM_STAGE,)
        stage = cls(name, inbox, report)
        calls = inbox.put, stage._on_failure
        quiet = stage.fell_silent.set
        stage._links = ProcessLinks.bind(
            name, host, roles, *calls, keys, on_quiet=quiet, first_port=first_port
        )
        serving, silence = stage._serving_links, stage._on_shadow_silence
        stage.shadow = ShadowLink(stage._links, stage._budget, serving, silence)
        return stage

    @property
    def ports(self) -> tuple[int, ...]:
        """Ports for the previous stage (the tail, on the head), and on the head for the
        coordinator."""
        return tuple(link.port for link in self._links.inbound)

    def connect(self, command: EnterRing) -> bool:
        """Open the links that leave here, but for those that lead where they are to lead already;
        what comes of another epoch is dropped from now on. False where the ring has lost another
        stage meanwhile, and other orders follow. Raises StageError when a neighbour does not
        answer."""
        match command:
            case JoinRing():
                self._connect(command)
            case FollowRing(epoch=epoch):
                self.shadow.enter(epoch, None)
            case _:
                assert_never(command)
        return not self._is_superseded(command)

    def _connect(self, command: JoinRing) -> None:
        if command.resume is None:
            self._is_held = False
        if command.upload_bytes_per_s is not None:
            self._budget.set_cap(command.upload_bytes_per_s)
        following = (command.next_address, command.next_key)
        if (link := self.shadow.enter(command.epoch, following)) is not None:
            if self._next is not None:
                self._links.thread.close(self._next)
            self._next, self._keys["next"] = link, command.next_key
        self._next = self._opened("next", following, self._next, command)
        _set_patience(self._next, needs_coordinator=command.next_relayed)
        if command.coordinator_address is not None:
            coordinator = (command.coordinator_address, command.coordinator_key)
            self._coordinator = self._opened("coordinator", coordinator, self._coordinator, command)
            _set_patience(self._coordinator, needs_coordinator=True)

    def _is_superseded(self, command: EnterRing) -> bool:
        """Whether its ring has lost another stage since this order, perhaps the very neighbour."""
        return self._is_held or self._latest_epoch > command.epoch

    def _opened(
        self,
        name: OutgoingLink,
        far_end: tuple[str, str | None],
        present: PacedLink | None,
        command: JoinRing,
    ) -> PacedLink:
        """The present link where it leads there, else a new one in its place."""
        leads_to = present and (present.address, self._keys.get(name))
        if present is not None and present.is_open and leads_to == far_end:
            return present
        if present is not None:
            self._links.thread.close(present)
        link = self._open(name, *far_end, command)
        self._keys[name] = far_end[1]
        return link

    def handle(self, command: LinkSteering | BetweenSteps) -> None:
        """Carry out a command about the links at once, from any thread."""
        match command:
            case SetAllowed(keys):
                if self._links.guard is not None:
                    self._links.guard.allow(keys)
                else:
                    log.warning("%s has links that are not encrypted: anybody may speak", self.name)
            case MovePath():
                self._move(command)
            case SetUploadCap(bytes_per_s):
                self._budget.set_cap(bytes_per_s)
                self._links.thread.wake()
            case SetShadow():
                self._set_shadow(command)
            case HoldLinks():
                self._is_held = True
            case JoinRing(epoch=epoch) | FollowRing(epoch=epoch):
                self._is_held, self._latest_epoch = False, epoch
                self.wake()  # The loop carries it out.
            case LoadStage() | SetRoom() | Borrow():
                self.wake()  # The loop carries it out.
            case _:
                assert_never(command)

    @property
    def epoch(self) -> int:
        """Number of the ring that it is in."""
        return self._links.epoch

    @property
    def is_shadow(self) -> bool:
        """Whether nothing leaves here: this stage covers another one."""
        return self._next is None

    def send_next(self, message: Message, batch_class: BatchClass = BatchClass.DECODE) -> None:
        """Send to the next stage (from the tail: to the head)."""
        assert self._next is not None, "the ring is joined before anything is sent"
        self._send(self._next, message, batch_class)

    def send_coordinator(self, message: Message) -> None:
        """Send to the coordinator; only the tail has this link."""
        assert self._coordinator is not None, "only the tail sends to the coordinator"
        self._send(self._coordinator, message, BatchClass.DECODE)

    def set_next_decode_due(self, due_at: float | None) -> None:
        """Tell when the link to the next stage is expected to carry decode again."""
        if self._next is not None:
            self._next.sender.set_next_decode_due(due_at)

    def set_decode_result_due(self, due_at: float) -> None:
        """Tell when the result of the decode step that has begun is expected."""
        if self._next is not None:
            self._next.sender.set_decode_result_due(due_at)

    def wait(self, timeout_s: float) -> None:
        """Return when a message has arrived, after `wake`, or after `timeout_s`."""
        try:
            arrived = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return
        if arrived is not None:
            self._pending.append(arrived)

    def wake(self) -> None:
        """Have `wait` return, from any thread."""
        self._inbox.put(None)

    def receive(self) -> Iterator[Message]:
        """All messages that have arrived, of this epoch and well-formed. Raises StageError when a
        link that leaves here is lost."""
        if self._lost is not None:
            raise self._lost
        while True:
            try:
                arrived = self._pending.pop() if self._pending else self._inbox.get_nowait()
            except queue.Empty:
                return
            if arrived is None:
                continue
            message = self._links.decode(arrived)
            if message is not None and message is not STALE:
                self._last_link = arrived.link
                yield message

    def refuse(self, error: FrameError) -> None:
        """Drop the message received last, which cannot be carried out: count it under its link, and
        log the first."""
        assert self._last_link is not None, "only what was received is refused"
        self._last_link.refuse(error)

    @property
    def messages_dropped(self) -> int:
        """Messages of the previous stage that could not be read, or not be carried out."""
        return self._links.inbound[0].frames_refused

    def neighbours_silent_s(self) -> tuple[float, float]:
        """Seconds without anything from the previous stage, and from the next one; 0: not for too
        long. In any thread."""
        now, following = time.monotonic(), self._next
        previous_s = self._links.inbound[0].peer.silent_s(now)
        return previous_s, 0.0 if following is None else following.peer.silent_s(now)

    @property
    def frames_refused(self) -> int:
        """Messages and pieces of the previous stage that were dropped, for whatever reason. Not the
        coordinator's: what it sends is no neighbour's fault."""
        return self._links.inbound[0].refused_count

    @property
    def next_rate_bytes_per_s(self) -> float:
        """Measured rate of the link to the next stage."""
        return self._next.rate_bytes_per_s if self._next is not None else 0.0

    def reports(self) -> tuple[LinkReport, ...]:
        """State of each link that leaves here."""
        links = (self._next, self._coordinator, self.shadow.link)
        return tuple(link.report() for link in links if link is not None)

    def close(self) -> None:
        """Serve no link any more."""
        self._links.close()

    def _serving_links(self) -> list[PacedLink]:
        return [link for link in (self._next, self._coordinator) if link is not None]

    def _set_shadow(self, command: SetShadow) -> None:
        try:
            self.shadow.set(command)
        except ValueError as error:  # The ring does not depend on it.
            log.warning("%s has no link to the next stage's shadow: %s", self.name, error)

    def _send(self, link: PacedLink, message: Message, batch_class: BatchClass) -> None:
        try:
            self._links.send(link, message, batch_class)
        except LinkFullError as error:
            lost = f"{self.name} has lost its link {link.name!r}: {error}."
            raise LinkLostError(lost, link.name) from None

    def _on_failure(self, error: Exception) -> None:
        """Note a failure, in the links' thread, which ends."""
        self._lost = StageError(
            f"{self.name} can send and receive nothing any more: {error!r:.200}."
        )

    def _on_shadow_silence(self, link: PacedLink, step: SilenceStep) -> None:
        """Act in the links' thread: as for other links, once it is one of them."""
        if link.name != "shadow":
            self._on_silence(link, step)
        elif isinstance(step, GiveUp):
            self.shadow.give_up(link)

    def _on_silence(self, link: PacedLink, step: SilenceStep) -> None:
        """React to a path that seems dead, in the links' thread, as the link has decided."""
        match step:
            case Reconnect(ask_for_path):
                log.warning("%s: nothing is acknowledged on the link %r", self.name, link.name)
                if ask_for_path:
                    name: OutgoingLink = "next" if link.name == "next" else "coordinator"
                    reason = "nothing that is sent there is acknowledged"
                    self._report(PathMoved(name, link.address, False, reason))
            case GiveUp() if self._is_held:
                log.warning("%s holds its link %r: its ring will go on", self.name, link.name)
            case GiveUp(silent_s):
                self._lost = LinkLostError(
                    f"{self.name} has lost its link {link.name!r}: for {silent_s:.0f} s nothing "
                    "was acknowledged over any way.",
                    link.name,
                )
            case _:
                assert_never(step)

    def _move(self, command: MovePath) -> None:
        links = {"next": self._next, "coordinator": self._coordinator, "shadow": self.shadow.link}
        name, link = command.link, links[command.link]

        def done(outcome: MoveOutcome) -> None:
            if outcome.moved and link is not None and name == "next":
                _set_patience(link, needs_coordinator=command.relayed)
            self._report(PathMoved(name, outcome.address, outcome.moved, outcome.reason))

        if link is None or not link.is_open:
            done(MoveOutcome(command.address, False, "there is no such link here yet"))
        else:
            self._links.move(link, command.address, done)

    def _open(self, name: str, address: str, key: str | None, command: JoinRing) -> PacedLink:
        """Users wait while a ring goes on in another epoch: then the link is not measured first."""
        queue_ = PriorityQueues()
        pacer = LinkPacer(None, self._budget)
        try:
            link = self._links.connect(name, address, key, queue_, pacer, self._on_silence)
        except ValueError as error:
            raise StageError(f"{self.name} cannot encrypt its link: {error}.") from None
        measured = command.resume is None
        given_up = partial(self._is_superseded, command)
        is_open = self._links.open(link, measure=measured, given_up=given_up)
        if not is_open and not given_up():
            raise LinkLostError(
                f"{self.name} got no answer from its neighbour: check the link.", name
            )
        return link


def _set_patience(link: PacedLink, *, needs_coordinator: bool) -> None:
    """Give a link up sooner or later: while the coordinator is away, one leads nowhere that needs
    it or its relay."""
    link.sender.silence.lost_s = COORDINATOR_LOST_S if needs_coordinator else LOST_S
