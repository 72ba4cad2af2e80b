"""Figures of one end of a pair: what has moved or is lost, and how much memory waits how long."""

import threading
import time
from dataclasses import dataclass, field

from molink.stage_protocol.health import PairHealth
from molink.stage_protocol.pairing import Pairing


@dataclass(slots=True)
class PairFigures:
    """Figures of an end since it was paired; for any thread."""

    held_bytes: int = 0
    """Bytes that wait here."""
    _held_byte_s: float = 0.0
    _since: float = field(default_factory=time.monotonic)
    """Until when `_held_byte_s` counts."""
    _blocks: int = 0
    _bytes: int = 0
    _seconds: float = 0.0
    _used: int = 0
    _lost: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self, more_bytes: int) -> None:
        """So many bytes more wait here, or fewer."""
        with self._lock:
            self._count_time()
            self.held_bytes += more_bytes

    def moved(self, blocks: int, size_bytes: int, seconds: float = 0.0) -> None:
        """Blocks were sent, or have come."""
        with self._lock:
            self._blocks += blocks
            self._bytes += size_bytes
            self._seconds += seconds

    def taken(self, used: int, lost: int, waited_s: float) -> None:
        """So many blocks that were asked for had come, and so many had not."""
        with self._lock:
            self._used += used
            self._lost += lost
            self._seconds += waited_s

    def lost(self, blocks: int) -> None:
        """Blocks could not be sent."""
        with self._lock:
            self._lost += blocks

    def health(self, pairing: Pairing, *, linked: bool, port: int = 0, why: str = "") -> PairHealth:
        """All of it, as the stage reports it."""
        with self._lock:
            self._count_time()
            return PairHealth(
                number=pairing.link.number if pairing.link is not None else 0,
                sends=pairing.sends,
                port=port,
                linked=linked,
                blocks=self._blocks,
                size_bytes=self._bytes,
                seconds=round(self._seconds, 3),
                used=self._used,
                lost=self._lost,
                held_bytes=self.held_bytes,
                held_byte_s=round(self._held_byte_s, 3),
                why=why,
            )

    def _count_time(self) -> None:
        now = time.monotonic()
        self._held_byte_s += self.held_bytes * (now - self._since)
        self._since = now
