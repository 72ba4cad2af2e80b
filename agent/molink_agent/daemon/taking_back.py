"""An owner who wants the PC gets it: when the ring lets go, or when it has had its time, or at once
when there is no coordinator to ask.
"""

from dataclasses import dataclass

__all__ = ["TAKE_BACK_S", "TakingBack"]

TAKE_BACK_S = 180.0
"""For a ring to find a replacement (a minute) and to let answers end (half of one), twice over."""


@dataclass(slots=True)
class TakingBack:
    """Of one device. Pure."""

    _wanted_at: float | None = None

    def is_due(self, now: float, *, wanted: bool, alone: bool) -> bool:
        """Whether a stage is ended by now without waiting for its ring. `wanted`: the device is not
        to be lent; `alone`: the coordinator is out of reach."""
        if not wanted:
            self._wanted_at = None
            return False
        if self._wanted_at is None:
            self._wanted_at = now
        return alone or now - self._wanted_at > TAKE_BACK_S
