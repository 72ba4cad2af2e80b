"""When will the next decode micro-batch want this stage's device?

Each place on the ring comes by once per round. So the next arrival is the last one plus the round's
usual length; a place that has missed two rounds is taken to be empty. The smoothed length follows a
ring that slows down within a few rounds, and one late round does not move it far.

Pure: times are arguments.
"""

from dataclasses import dataclass, field

__all__ = ["DecodeClock"]

WEIGHT_OF_NEWEST = 0.25
"""A step change is 90 % absorbed after eight rounds (1 - 0.75**8 = 0.90), about a second."""

ROUNDS_UNTIL_EMPTY = 2.0
"""A place that has not been seen for so many rounds carries nothing any more."""


@dataclass(slots=True)
class DecodeClock:
    """The rhythm of the micro-batches that pass a stage."""

    _last_seen: dict[int, float] = field(default_factory=dict)
    _round_s: float | None = None

    @property
    def round_s(self) -> float | None:
        """Smoothed time between two visits of one micro-batch; None before any came twice."""
        return self._round_s

    def seen(self, place: int, now: float) -> None:
        """A micro-batch arrived."""
        last, round_s = self._last_seen.get(place), self._round_s
        self._last_seen[place] = now
        if last is None:
            return
        elapsed_s = now - last
        if round_s is None:
            self._round_s = elapsed_s
        elif elapsed_s <= ROUNDS_UNTIL_EMPTY * round_s:
            self._round_s = round_s + WEIGHT_OF_NEWEST * (elapsed_s - round_s)

    def due_at(self, now: float) -> float | None:
        """When the next one is expected, at the earliest `now`; None when none circles."""
        if self._round_s is None:
            return None
        full_s = ROUNDS_UNTIL_EMPTY * self._round_s
        live = [last for last in self._last_seen.values() if now - last <= full_s]
        return max(now, min(live) + self._round_s) if live else None
