"""Choose the number of micro-batches, and believe the measured round rather than the model.

The model says which count should be best. It is tried; if the rounds that follow are not shorter
than they were for as many users, the old count comes back, and the other is not tried again for a
while. While prompts take a share of the devices, rounds are no measure of a count; then the model
alone decides. A search by trying alone was rejected: every bad try slows all users for several
rounds.

Pure: times are arguments.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from molink_scheduler.round_model import (
    RoundModel,
    best_beside_prefill,
    best_micro_batch_count,
)

__all__ = ["MicroBatchChoice"]

TRIPS_TO_SETTLE = 8
"""Trips after a change that are not judged: the pipeline fills, links probe."""

TRIPS_TO_JUDGE = 24
"""Trips measured before a count is judged: about three seconds on home links."""

HOLD_S = 600.0
"""How long a count that disappointed is left alone: a try costs a second of slower rounds."""

PREFILL_SHARE_MIN = 0.02
"""Of a device's time; with less, rounds are as if there were no prompts."""


@dataclass(slots=True)
class _Measured:
    """Mean seconds per sequence and token under one count."""

    trips: int = 0
    seconds_per_token: float = 0.0

    def add(self, seconds_per_token: float) -> None:
        self.trips += 1
        self.seconds_per_token += (seconds_per_token - self.seconds_per_token) / self.trips


@dataclass(slots=True)
class MicroBatchChoice:
    """The count now, and what was measured under it."""

    candidates: Sequence[int]
    count: int
    _now: _Measured = field(default_factory=_Measured)
    _before: tuple[int, int, float] | None = None
    """The count before the last change, for how many users, and what it measured."""
    _beside: int | None = None
    """The count in use while there are prompts."""
    _held_until: dict[int, float] = field(default_factory=dict)
    _users: int = 0
    """Of the last trip; measurements are kept while its power of two is the same."""

    def trip_ended(
        self,
        trip_s: float,
        running_count: int,
        model: Callable[[], RoundModel | None],
        now: float,
        prefill_share: float = 0.0,
    ) -> int:
        """Take one micro-batch's trip into account; the count to use from now on.

        `model` makes the present model (None before there is one); most trips need none.
        """
        if prefill_share > PREFILL_SHARE_MIN and (present := model()) is not None:
            return self._ended_beside(present, running_count, prefill_share)
        self._beside = None
        if running_count.bit_length() != self._users.bit_length():
            self._now, self._before = _Measured(), None
        self._users = running_count
        self._now.add(trip_s / max(1, running_count))
        if self._now.trips >= TRIPS_TO_SETTLE + TRIPS_TO_JUDGE:
            self._judge(model(), now)
        return self.count

    def _ended_beside(self, model: RoundModel, running_count: int, prefill_share: float) -> int:
        self._now, self._before = _Measured(), None
        self._beside = best_beside_prefill(
            model, running_count, self.candidates, prefill_share, self._beside or self.count
        )
        return self._beside

    def _judge(self, model: RoundModel | None, now: float) -> None:
        measured = self._now.seconds_per_token
        if self._before is not None and measured > self._before[2]:
            self._held_until[self.count] = now + HOLD_S
            self._change(self._before[0], None)
        elif model is not None:
            best = best_micro_batch_count(model, self._users, self._open(now), self.count)
            if best != self.count:
                self._change(best, (self.count, self._users, measured))
            else:
                self._before, self._now = None, _Measured()

    def _change(self, count: int, before: tuple[int, int, float] | None) -> None:
        self.count, self._before, self._now = count, before, _Measured()

    def _open(self, now: float) -> list[int]:
        return [count for count in self.candidates if self._held_until.get(count, now) <= now]
