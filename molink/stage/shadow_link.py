"""The link from a stage to the shadow of the next one: what all other links leave of the line.

It is opened while the ring serves, and nobody waits for it: rows go there once the far end has
answered, one message at a time. When the shadow takes the next stage's place the link becomes the
one to the next stage as it is, connection and measured rate. A shadow that is gone costs nothing
but its link; whether there is another is the coordinator's to say.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from molink.errors import LinkFullError
from molink.stage_protocol.messages import SetShadow
from molink.transport.link.paced_link import OnSilence, PacedLink
from molink.transport.link.process_links import ProcessLinks
from molink.wire.frames import Message
from molink_scheduler.batch import PREFILL
from molink_scheduler.link.facts import LinkMemory
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.priority_queues import PriorityQueues
from molink_scheduler.link.upload_budget import UploadBudget

FarEnd = tuple[str, str | None]
"""Address and public key with which a link is opened."""


@dataclass(slots=True)
class ShadowLink:
    """Link of one stage to the shadow of the next, while there is one."""

    links: ProcessLinks
    budget: UploadBudget
    serving: Callable[[], Sequence[PacedLink]]
    """The links that go before it; empty before the ring is joined."""
    on_silence: OnSilence
    _link: PacedLink | None = None
    _far_end: FarEnd | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Commands come in one thread, and the ring goes on in another."""

    @property
    def link(self) -> PacedLink | None:
        """The link now; another shadow has another one."""
        return self._link

    def set(self, command: SetShadow) -> None:
        """Lead to this shadow from now on; what is of another epoch is void. Raises ValueError when
        keys are given for one end only."""
        with self._lock:
            serving = self.serving()
            if command.epoch != self.links.epoch or not serving:
                return
            far_end = None if command.address is None else (command.address, command.key)
            if far_end == self._far_end:
                return
            self._drop()
            if far_end is not None:
                self._link, self._far_end = self._connected(far_end, serving), far_end

    def enter(self, epoch: int, following: FarEnd | None) -> PacedLink | None:
        """The ring goes on in another epoch: the link, if the shadow is the next stage now; else it
        is closed."""
        with self._lock:
            self.links.epoch = epoch
            link = self._link
            if link is None or self._far_end != following:
                self._drop()
                return None
            self._link = self._far_end = None
        link.name = "next"
        link.sender.give_way_to(())
        return link

    def room_bytes(self) -> int:
        """How much may be handed over now; 0: nothing."""
        link = self._link
        if link is None or not link.is_open or link.transfers_waiting:
            return 0
        return link.pacer.chunk_bytes

    def send(self, message: Message) -> None:
        """Send, in order, once the line has time for it."""
        if (link := self._link) is not None:
            try:
                self.links.send(link, message, PREFILL)
            except LinkFullError:
                self.give_up(link)

    def give_up(self, link: PacedLink) -> None:
        """The shadow does not answer any more."""
        with self._lock:
            if self._link is link:
                self._drop()

    def _connected(self, far_end: FarEnd, serving: Sequence[PacedLink]) -> PacedLink:
        """Link over the same line as that to the next stage, not measured: that would take a second
        of it."""
        known = serving[0].pacer.estimator
        memory = LinkMemory(known.rate_bytes_per_s, known.base_rtt_s)
        pacer = LinkPacer(memory, self.budget)
        link = self.links.connect("shadow", *far_end, PriorityQueues(), pacer, self.on_silence)
        link.sender.give_way_to([one.sender for one in serving])
        self.links.thread.serve(link)
        return link

    def _drop(self) -> None:
        link, self._link, self._far_end = self._link, None, None
        if link is not None:
            self.links.thread.close(link)
