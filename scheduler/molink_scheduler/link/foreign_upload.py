"""Does somebody else fill the uplink that our chunks leave by? Only evidence that lasts decides."""

import math
from dataclasses import dataclass, field

__all__ = ["ForeignUpload"]

FOREIGN_NOTICE_S = 0.025
"""Queueing that our few bytes in flight do not explain, from which on we blame somebody else."""

FOREIGN_CLEAR_S = 0.010
"""Queueing below which nobody else is to blame any more."""

FOREIGN_NOTICE_AFTER_S = 1.0
"""A Wi-Fi stall is over by then."""

FOREIGN_CLEAR_AFTER_S = 0.3
"""Short, because a foreign upload that yields leaves its queue for good."""

FOREIGN_ACKS_MIN = 6
"""Verdicts rest on as many chunks at least."""


@dataclass(slots=True)
class ForeignUpload:
    """Does somebody else fill the uplink? Noticed and cleared only by evidence that lasts."""

    noticed: bool = False
    noticed_at: float = 0.0
    _since: float = field(init=False, default=math.inf)
    _acks: int = field(init=False, default=0)

    def observe(self, queue_s: float, own_s: float, now: float, *, starved: bool) -> None:
        """Take in how long a chunk queued, and how much of that our own bytes explain."""
        if self.noticed:
            contrary, lasting_s = queue_s < FOREIGN_CLEAR_S, FOREIGN_CLEAR_AFTER_S
        else:
            contrary = starved and queue_s - own_s > FOREIGN_NOTICE_S
            lasting_s = FOREIGN_NOTICE_AFTER_S
        if not contrary:
            self._since, self._acks = math.inf, 0
            return
        self._since, self._acks = min(self._since, now), self._acks + 1
        if now - self._since >= lasting_s and self._acks >= FOREIGN_ACKS_MIN:
            self.noticed, self.noticed_at = not self.noticed, now
            self._since, self._acks = math.inf, 0
