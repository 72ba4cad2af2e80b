"""A home's upload as a queue of packets: one byte after the other at a rate, then a delay.

What does not fit into the queue is lost, as in a router, so that whatever sends packets learns of a
full link the way it does at home. (The emulator of `--link` carries bytes and holds back what does
not fit.) Pure: times come from the caller, in seconds of any one clock.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from molink.config.link_shape import LinkShape

__all__ = ["PacketLine"]


@dataclass(slots=True)
class PacketLine:
    """Rate, bounded drop-tail queue and delay of one direction."""

    shape: LinkShape
    dropped_count: int = 0
    """Packets that found the queue full."""
    _wire_free_s: float = 0.0
    _under_way: deque[tuple[float, bytes]] = field(default_factory=deque)
    """(when it arrives, packet), in order."""

    def offer(self, packet: bytes, now_s: float) -> bool:
        """Take a packet behind those that wait; False when it is lost.

        The packet on the wire counts as waiting with what is left of it.
        """
        begins_s = max(self._wire_free_s, now_s)
        rate = self.shape.bytes_per_s
        if (begins_s - now_s) * rate + len(packet) > self.shape.queue_bytes:
            self.dropped_count += 1
            return False
        self._wire_free_s = begins_s + len(packet) / rate
        self._under_way.append((self._wire_free_s + self.shape.one_way_s, packet))
        return True

    def arrived(self, now_s: float) -> Iterator[bytes]:
        """Packets that have come out by now, in order; each is handed out once."""
        under_way = self._under_way
        while under_way and under_way[0][0] <= now_s:
            yield under_way.popleft()[1]

    @property
    def next_arrival_s(self) -> float:
        """When the next packet comes out; infinite when none is under way."""
        return self._under_way[0][0] if self._under_way else math.inf
