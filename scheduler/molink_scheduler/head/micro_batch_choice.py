"""Choose the number of micro-batches, and believe the measured round rather than the model.

The model says which count should be best. It is tried; if the rounds that follow are not shorter
than the old count's would be, the old count comes back, and the other is not tried again for a
while. Users come and go in between: how much longer or shorter that makes a round the model says,
and only that. While prompts take a share of the devices, rounds are no measure of a count; then the
model alone decides, and goes on to decide afterwards if there are now other users than before. A
search by trying alone was rejected: every bad try slows all users for several rounds.

Pure: times are arguments.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from molink_scheduler.timing.round_model import (
    RoundModel,
    best_beside_prefill,
    best_micro_batch_count,
)

TRIPS_TO_SETTLE = 8
"""Trips after a change that are not judged, or one of each micro-batch if those are more: the
pipeline fills, links probe."""

TRIPS_TO_JUDGE, ROUNDS_TO_JUDGE = 24, 8
"""Trips measured before a count is judged, or those of so many rounds if they are fewer: a trip of
one micro-batch is a whole round, and eight users with drafts went for 32 of them, of a quarter of a
second each, before they went in eight."""

HOLD_S = 600.0
"""How long a count that disappointed is left alone: a try costs a second of slower rounds."""

PREFILL_SHARE_MIN = 0.02
"""Share of a device's time for prefill, below which rounds are as if there were no prompts."""


@dataclass(slots=True)
class _Measured:
    """Mean round under one count, and for how many users."""

    trips_to_settle: int = TRIPS_TO_SETTLE
    trips: int = 0
    """Trips that were measured, without those to settle."""
    round_s: float = 0.0
    users: float = 0.0

    def add(self, round_s: float, users: int) -> None:
        if self.trips_to_settle:
            self.trips_to_settle -= 1
            return
        self.trips += 1
        self.round_s += (round_s - self.round_s) / self.trips
        self.users += (users - self.users) / self.trips


@dataclass(frozen=True, slots=True)
class _Before:
    """A former count and its round."""

    count: int
    users: int
    round_s: float

    def round_for(self, users: int, model: RoundModel) -> float:
        """Forecast of the round with another number of users."""
        then_s = model.cycle_s(self.users, self.count)
        return self.round_s * model.cycle_s(users, self.count) / then_s if then_s else self.round_s


@dataclass(slots=True)
class MicroBatchChoice:
    """The count now, and what was measured under it."""

    candidates: Sequence[int]
    count: int
    _now: _Measured = field(default_factory=_Measured)
    _before: _Before | None = None
    """Count before the last change, and its measured round."""
    _beside: int | None = None
    """The count in use while there are prompts."""
    _trips_beside: int = 0
    """Trips since that count was chosen."""
    _held_until: dict[int, float] = field(default_factory=dict)
    _judged_for: int = 0
    """Users when the count was last judged; 0: never."""
    _users: int = 0
    """Users of the last trip; measurements are kept while the number's power of two is the same."""

    @property
    def is_judged(self) -> bool:
        """Whether rounds are compared with those before the count was changed."""
        return self._before is not None

    def round_completed(
        self,
        round_s: float,
        running_count: int,
        model: Callable[[], RoundModel | None],
        now: float,
        prefill_share: float = 0.0,
    ) -> int:
        """Take one micro-batch's trip into account; the count to use from now on.

        `model` makes the present model (None before there is one); most trips need none.
        """
        if prefill_share > PREFILL_SHARE_MIN:
            return self._ended_beside(running_count, model, prefill_share)
        if self._beside is not None:
            self._prompts_ended(model(), running_count, now)
        if running_count.bit_length() != self._users.bit_length():
            self._measure_anew(None)
        self._users = running_count
        self._now.add(round_s, max(1, running_count))
        if self._now.trips >= min(TRIPS_TO_JUDGE, ROUNDS_TO_JUDGE * self.count):
            self._judge(model(), now)
        return self.count

    def _ended_beside(
        self, running_count: int, model: Callable[[], RoundModel | None], prefill_share: float
    ) -> int:
        """Choose once a round: to ask the model after each of many trips takes longer than them."""
        present = self._beside or self.count
        self._trips_beside += 1
        if self._beside is None or self._trips_beside >= present:
            self._trips_beside = 0
            self._beside = present
            if (costs := model()) is not None:
                self._beside = best_beside_prefill(
                    costs, running_count, self.candidates, prefill_share, present
                )
            self._measure_anew(None)
        return self._beside

    def _prompts_ended(self, model: RoundModel | None, running_count: int, now: float) -> None:
        """Back to the count from before the prompts, if it was judged for about as many users."""
        present, self._beside = self._beside or self.count, None
        if model is not None and running_count.bit_length() != self._judged_for.bit_length():
            self.count = best_micro_batch_count(model, running_count, self._open(now), present)
        self._measure_anew(None)

    def _judge(self, model: RoundModel | None, now: float) -> None:
        if model is None:
            return
        self._judged_for, measured = self._users, self._now
        if self._before is not None and measured.round_s > self._before.round_for(
            round(measured.users), model
        ):
            self._held_until[self.count] = now + HOLD_S
            self.count = self._before.count
            self._measure_anew(None)
            return
        best = best_micro_batch_count(model, self._users, self._open(now), self.count)
        if best != self.count:
            before = _Before(self.count, round(measured.users), measured.round_s)
            self.count = best
            self._measure_anew(before)
        else:
            self._before, self._now = None, _Measured(trips_to_settle=0)

    def _measure_anew(self, before: _Before | None) -> None:
        self._before, self._now = before, _Measured(max(TRIPS_TO_SETTLE, self.count))

    def _open(self, now: float) -> list[int]:
        return [count for count in self.candidates if self._held_until.get(count, now) <= now]
