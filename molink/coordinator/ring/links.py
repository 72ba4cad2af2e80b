"""The coordinator's two links to one ring: requests go to the head, tokens come from the tail.

The same `ProcessLinks` as in a stage; what happens in its thread is queued for the event loop.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from molink.errors import (
    LinkFullError,
    RingError,
)
from molink.transport.link.connections import MoveOutcome
from molink.transport.link.inbound import ArrivedMessage
from molink.transport.link.paced_link import PacedLink
from molink.transport.link.process_links import STALE, ProcessLinks
from molink.wire.curve_keys import CurveKeys
from molink.wire.frames import (
    FROM_TAIL,
    Order,
    Sampled,
)
from molink_scheduler.link.facts import LinkReport
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.priority_queues import PriorityQueues
from molink_scheduler.link.silence import GiveUp, Reconnect, SilenceStep


@dataclass(frozen=True, slots=True)
class HeadSilent:
    """Event: the head acknowledges nothing, and another path to it is wanted."""


@dataclass(frozen=True, slots=True)
class HeadLost:
    """Event: the link to the head is given up; the reason is a sentence."""

    reason: str
    is_ours: bool = False
    """Whether the coordinator's own links have failed."""


@dataclass(frozen=True, slots=True)
class TailRefused:
    """Event: the tail has sent what no tail sends."""


LinkEvent = Sampled | HeadSilent | HeadLost | TailRefused


@dataclass(slots=True)
class RingClientLinks:
    """Both links, while their thread runs. Made by `bind`."""

    _loop: asyncio.AbstractEventLoop
    head: PacedLink | None = None
    _events: "asyncio.Queue[ArrivedMessage | HeadSilent | HeadLost]" = field(
        default_factory=asyncio.Queue
    )
    _links: ProcessLinks = field(init=False)
    _head_key: str | None = None
    """Public key with which the link to the head was opened."""

    @classmethod
    def bind(cls, host: str, epoch: int, keys: CurveKeys | None = None) -> "RingClientLinks":
        """Listen for the tail; with `keys`, encrypted. Needs a running event loop."""
        links = cls(asyncio.get_running_loop())
        links._links = ProcessLinks.bind(
            "coordinator", host, (FROM_TAIL,), links._queue, links._on_failure, keys, epoch
        )
        return links

    @property
    def port(self) -> int:
        """Port to which the tail connects."""
        return self._links.inbound[0].port

    @property
    def report(self) -> LinkReport | None:
        """What is known of the link to the head; None before it is connected."""
        return self.head.report() if self.head is not None else None

    def allow(self, keys: Sequence[str]) -> None:
        """Accept links of these public keys (Z85) only from now on, where they are encrypted."""
        if self._links.guard is not None:
            self._links.guard.allow(keys)

    async def connect(
        self,
        head_address: str,
        head_key: str | None = None,
        *,
        measure: bool = True,
    ) -> None:
        """Open the link to the head; `head_key` is the head's public key in Z85 where links are
        encrypted; `measure`: find its rate out first.

        Raises RingError when it does not answer, ValueError when keys are given for one end only.
        """
        queue, pacer = PriorityQueues(), LinkPacer()
        self.head = self._links.connect(
            "head", head_address, head_key, queue, pacer, self._on_silence
        )
        self._head_key = head_key
        if not await asyncio.to_thread(self._links.open, self.head, measure=measure):
            raise RingError("The head does not answer: check its link.")

    async def next_event(self) -> LinkEvent:
        """The next batch of tokens that the tail has finished, or what becomes of the head. Nothing
        more is read from the tail while much of what it sent waits for this call."""
        while True:
            event = await self._events.get()
            if not isinstance(event, ArrivedMessage):
                return event
            message = self._links.decode(event)
            if message is not STALE:
                return message if isinstance(message, Sampled) else TailRefused()

    async def begin_epoch(self, epoch: int, head_address: str, head_key: str | None = None) -> None:
        """Take messages of the ring's next epoch only, and lead to its head, which may be another
        one. Raises RingError when that does not answer."""
        self._links.epoch = epoch
        leads_to = (self.head.address, self._head_key) if self.head is not None else None
        if leads_to != (head_address, head_key):
            if self.head is not None:
                self._links.thread.close(self.head)
                self._drop_news_of_head()
            await self.connect(head_address, head_key, measure=False)

    def _drop_news_of_head(self) -> None:
        """What was found of a head that is gone is not of the next one."""
        for _ in range(self._events.qsize()):
            event = self._events.get_nowait()
            if isinstance(event, ArrivedMessage) or (isinstance(event, HeadLost) and event.is_ours):
                self._events.put_nowait(event)

    def send(self, message: Order) -> None:
        """Send to the head. When too much waits for it already, it counts as lost, and RingError is
        raised."""
        assert self.head is not None, "connect comes first"
        try:
            self._links.send(self.head, message)
        except LinkFullError as error:
            lost = HeadLost(f"The link to the head is lost: {error}.")
            self._events.put_nowait(lost)
            raise RingError(lost.reason) from None

    async def move_head(self, address: str) -> MoveOutcome:
        """Lead the link to the head to another address of it; requests go on meanwhile."""
        assert self.head is not None, "connect comes first"
        outcome: asyncio.Future[MoveOutcome] = self._loop.create_future()

        def done(how: MoveOutcome) -> None:
            self._loop.call_soon_threadsafe(_settle, outcome, how)

        self._links.move(self.head, address, done)
        return await outcome

    def close(self) -> None:
        """Close both links, and end their thread."""
        self._links.close()

    def _on_failure(self, error: Exception) -> None:
        """Called in the link thread, which ends."""
        self._queue(HeadLost(f"The coordinator's links have failed: {error!r:.200}.", is_ours=True))

    def _on_silence(self, link: PacedLink, step: SilenceStep) -> None:
        """Called in the link thread: the path to the head seems dead."""
        match step:
            case Reconnect(ask_for_path):
                if ask_for_path:
                    self._queue(HeadSilent())
            case GiveUp(silent_s):
                reason = f"For {silent_s:.0f} s the head has acknowledged nothing over any way."
                self._queue(HeadLost(reason))
            case other:
                assert_never(other)

    def _queue(self, event: ArrivedMessage | HeadSilent | HeadLost) -> None:
        """Called in the link thread."""
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)


def _settle(future: "asyncio.Future[MoveOutcome]", outcome: MoveOutcome) -> None:
    """The caller may have been cancelled meanwhile."""
    if not future.done():
        future.set_result(outcome)
