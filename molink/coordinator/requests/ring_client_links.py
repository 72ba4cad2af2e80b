"""The coordinator's two links to one ring: requests go to the head, tokens come from the tail.

The same `ProcessLinks` as in a stage; what happens in its thread is queued for the event loop.
"""

import asyncio
from dataclasses import dataclass, field
from typing import assert_never

from molink.errors import RingError
from molink.transport.link.connections import MoveOutcome
from molink.transport.link.paced_link import PacedLink
from molink.transport.link.process_links import MessageFrames, ProcessLinks
from molink.wire.curve_keys import CurveKeys
from molink.wire.frames import Cancel, Sampled, SetCodec, Submit
from molink_scheduler.link.facts import LinkMemory
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.silence import GiveUp, Reconnect, SilenceStep
from molink_scheduler.link.transmission import make_transmission

__all__ = ["HeadLost", "HeadSilent", "LinkEvent", "RingClientLinks"]


@dataclass(frozen=True, slots=True)
class HeadSilent:
    """Event: the head acknowledges nothing, and another path to it is wanted."""


@dataclass(frozen=True, slots=True)
class HeadLost:
    """Event: the link to the head is given up; the reason is a sentence."""

    reason: str


LinkEvent = Sampled | HeadSilent | HeadLost


@dataclass(slots=True)
class RingClientLinks:
    """Both links, while their thread runs. Made by `bind`."""

    _loop: asyncio.AbstractEventLoop
    events: "asyncio.Queue[LinkEvent]" = field(default_factory=asyncio.Queue)
    """Every batch of tokens that the tail has finished, and what becomes of the head."""
    head: PacedLink | None = None
    _links: ProcessLinks = field(init=False)

    @classmethod
    def bind(cls, host: str, epoch: int, keys: CurveKeys | None = None) -> "RingClientLinks":
        """Listen for the tail; with `keys`, encrypted. Needs a running event loop."""
        links = cls(asyncio.get_running_loop())
        links._links = ProcessLinks.bind(
            "coordinator", host, 1, links._deliver, links._on_failure, keys, epoch
        )
        return links

    @property
    def port(self) -> int:
        """Where the tail connects."""
        return self._links.inbound[0].port

    async def connect(
        self, head_address: str, memory: LinkMemory | None = None, head_key: str | None = None
    ) -> None:
        """Open the link to the head; `memory` is what was last known of it, `head_key` the head's
        public key in Z85 where links are encrypted.

        Raises RingError when it does not answer, ValueError when keys are given for one end only.
        """
        queue, pacer = make_transmission(), LinkPacer(memory)
        self.head = self._links.connect(
            "head", head_address, head_key, queue, pacer, self._on_silence
        )
        if not await asyncio.to_thread(self._links.open, self.head):
            raise RingError("The head does not answer: check its link.")

    def send(self, message: Submit | Cancel | SetCodec) -> None:
        """Send to the head."""
        assert self.head is not None, "connect comes first"
        self._links.send(self.head, message)

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
        """In the link thread, which ends."""
        self._queue(HeadLost(f"The coordinator's links have failed: {error!r:.200}."))

    def _on_silence(self, link: PacedLink, step: SilenceStep) -> None:
        """In the link thread: the path to the head seems dead."""
        match step:
            case Reconnect(ask_for_path):
                if ask_for_path:
                    self._queue(HeadSilent())
            case GiveUp(silent_s):
                reason = f"For {silent_s:.0f} s the head has acknowledged nothing over any way."
                self._queue(HeadLost(reason))
            case other:
                assert_never(other)

    def _deliver(self, frames: MessageFrames) -> None:
        """In the link thread."""
        message = self._links.decode(frames)
        if isinstance(message, Sampled):
            self._queue(message)

    def _queue(self, event: LinkEvent) -> None:
        self._loop.call_soon_threadsafe(self.events.put_nowait, event)


def _settle(future: "asyncio.Future[MoveOutcome]", outcome: MoveOutcome) -> None:
    """The caller may have been cancelled meanwhile."""
    if not future.done():
        future.set_result(outcome)
