"""What has arrived and waits to be read."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator

import aiomqtt

from molink.control.messages.received import Received, UnreadableError, read_message

__all__ = ["WAITING_MAX", "Inbox"]

log = logging.getLogger(__name__)

WAITING_MAX = 20_000
"""Messages that wait to be read: twenty seconds of a thousand nodes' heartbeats. When it is full,
new ones are dropped, and the retained ones are asked for again once there is room."""


class Inbox:
    """Outlives connections; for one reader."""

    def __init__(self, waiting_max: int) -> None:
        self.waiting_max = waiting_max
        self.invalid_count = 0
        self.dropped_count = 0
        self._waiting: deque[aiomqtt.Message] = deque()
        self._arrived = asyncio.Event()
        self._missed = False

    def put(self, message: aiomqtt.Message) -> None:
        """Something has arrived."""
        if len(self._waiting) >= self.waiting_max:
            self.dropped_count += 1
            self._missed = True
            return
        self._waiting.append(message)
        self._arrived.set()

    def wake(self) -> None:
        """Whoever waits should look around."""
        self._arrived.set()

    async def changed(self) -> None:
        """Wait until something has arrived, or `wake`."""
        if not self._waiting:
            await self._arrived.wait()
        self._arrived.clear()

    def has_missed(self) -> bool:
        """Whether messages were dropped since this was last asked."""
        missed, self._missed = self._missed, False
        if missed:
            log.warning("%d control messages were dropped: too many waited", self.dropped_count)
        return missed

    def read(self) -> Iterator[Received]:
        """All that waits and can be read."""
        while self._waiting:
            received = self._read(self._waiting.popleft())
            if received is not None:
                yield received

    def _read(self, message: aiomqtt.Message) -> Received | None:
        payload = message.payload
        if not isinstance(payload, bytes) or not payload:
            return None
        try:
            return read_message(str(message.topic), payload, bool(message.retain))
        except UnreadableError as error:
            self.invalid_count += 1
            say = log.warning if self.invalid_count == 1 else log.debug
            say("a control message is dropped: %s", error)
            return None
