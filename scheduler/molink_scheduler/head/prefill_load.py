"""Which share of its time does a device spend on prompts? Smoothed over some seconds.

Pure: times are arguments.
"""

import math
from dataclasses import dataclass

__all__ = ["PrefillLoad"]

MEMORY_S = 5.0
"""A prompt counts for so long: users who send one every few seconds are a load, a first one is
not yet."""


@dataclass(slots=True)
class PrefillLoad:
    """An exponentially weighted share."""

    _share: float = 0.0
    _at: float = 0.0

    def computed(self, seconds: float, now: float) -> None:
        """A prefill step of so many seconds ended."""
        self._share = self.share(now) + seconds / MEMORY_S
        self._at = now

    def share(self, now: float) -> float:
        """About 0 to 1."""
        return self._share * math.exp(-max(0.0, now - self._at) / MEMORY_S)
