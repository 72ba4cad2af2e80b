"""The coordinator's end: what it hears of the swarm, how late, and whom it misses."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from molink.control.client import ControlClient
from molink.control.heartbeats import Heartbeats
from molink.control.messages.payloads import NodeHealth, Presence

__all__ = ["Watch"]

_LOOK_S = 0.1
"""How often the coordinator looks who has fallen silent."""


@dataclass(slots=True)
class Watch:
    """Filled while `listen` and `look` run."""

    present: set[str] = field(default_factory=set)
    delays_s: list[float] = field(default_factory=list)
    measuring: bool = False
    willed_s: dict[str, float] = field(default_factory=dict)
    """When a node's last will came."""
    silent_s: dict[str, float] = field(default_factory=dict)
    """When it was found silent."""
    beats: Heartbeats = field(default_factory=Heartbeats)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self, client: ControlClient) -> None:
        """Until cancelled."""
        async for received in client.messages():
            now_s = time.monotonic()
            self._changed.set()
            match received.message:
                case Presence(online=True):
                    self.present.add(received.node_id)
                case Presence():
                    self.willed_s[received.node_id] = now_s
                case NodeHealth(uptime_s=sent_s):
                    self.beats.beat(received.node_id, now_s)
                    if self.measuring:
                        self.delays_s.append(now_s - sent_s)
                case _:
                    pass

    async def look(self) -> None:
        """Until cancelled."""
        while True:
            now_s = time.monotonic()
            for name in self.beats.fallen_silent(now_s):
                self.silent_s[name] = now_s
                self._changed.set()
            await asyncio.sleep(_LOOK_S)

    def has_missed(self, name: str) -> bool:
        """Whether both its last will and its silence were noticed."""
        return name in self.willed_s and name in self.silent_s

    async def until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Whether that became true in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not done():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
