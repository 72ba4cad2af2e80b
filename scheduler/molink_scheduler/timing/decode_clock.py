"""When will the next decode micro-batch want this stage's device?

Each place on the ring comes by once per round. So the next arrival is the last one plus the round's
usual length; a place that has missed two rounds is taken to be empty. The smoothed length follows a
ring that slows down within a few rounds, and one late round does not move it far. A visit that is
more than a round late may have come after a pause, and says nothing; a second one in a row says
that the ring has become so slow. Without that, the clock of a ring whose micro-batches were merged
into one stayed at a third of the new round, and the worst count was taken for the best.

Pure: times are arguments.
"""

from dataclasses import dataclass, field

__all__ = ["DecodeClock"]

WEIGHT_OF_NEWEST_STEP = 0.1
"""Of a decode step in their smoothed time: one slow step hardly moves the forecast."""

WEIGHT_OF_NEWEST = 0.25
"""A step change is 90 % absorbed after eight rounds (1 - 0.75**8 = 0.90), about a second."""

ROUNDS_UNTIL_EMPTY = 2.0
"""A place that has not been seen for so many rounds carries nothing any more."""

ROUNDS_UNTIL_PAUSE = 8.0
"""After so many rounds nobody was there: who asks for a word each minute is no slow ring..."""

PAUSE_S_MIN = 2.0
"""...but after no less: the first round may have been one of a millisecond, by accident."""


@dataclass(slots=True)
class DecodeClock:
    """Rhythm of the micro-batches that pass a stage, and how long it computes each."""

    step_s: float = field(init=False, default=0.0)
    """Smoothed time of a decode step."""
    _last_seen: dict[int, float] = field(default_factory=dict)
    """In order of time."""
    _round_s: float | None = None
    _late: set[int] = field(default_factory=set)
    """Places whose last visit came more than a round late."""

    @property
    def round_s(self) -> float | None:
        """Smoothed time between two visits of one micro-batch; None before any came twice."""
        return self._round_s

    def seen(self, place: int, now: float) -> None:
        """A micro-batch arrived; visits are told in order of time."""
        last, round_s = self._last_seen.pop(place, None), self._round_s
        self._last_seen[place] = now
        if last is None:
            return
        elapsed_s = now - last
        if round_s is None:
            self._round_s = elapsed_s
        elif elapsed_s <= ROUNDS_UNTIL_EMPTY * round_s:
            self._late.discard(place)
            self._round_s = round_s + WEIGHT_OF_NEWEST * (elapsed_s - round_s)
        elif not self._is_pause(place, elapsed_s, round_s):
            self._round_s = round_s + WEIGHT_OF_NEWEST * (elapsed_s - round_s)

    def due_at(self, now: float) -> float | None:
        """When the next one is expected, at the earliest `now`; None when none circles."""
        if self._round_s is None:
            return None
        full_s = ROUNDS_UNTIL_EMPTY * self._round_s
        for last in self._last_seen.values():
            if now - last <= full_s:
                return max(now, last + self._round_s)
        return None

    def computed(self, elapsed_s: float) -> None:
        """A decode step took so long."""
        self.step_s += WEIGHT_OF_NEWEST_STEP * (elapsed_s - self.step_s)

    def result_due_at(self, now: float) -> float | None:
        """When the result of the next decode step is expected; None when none circles."""
        due_at = self.due_at(now)
        return None if due_at is None else due_at + self.step_s

    def _is_pause(self, place: int, elapsed_s: float, round_s: float) -> bool:
        """Whether nobody was on the place for a part of the time since its last visit, which was
        late."""
        was_late = place in self._late
        self._late.add(place)
        return not was_late or elapsed_s > max(ROUNDS_UNTIL_PAUSE * round_s, PAUSE_S_MIN)
