"""Forecast of a stage's next decode result, by which its link sizes prefill: the paper's T_a.

MoLink (Jin et al., Findings of EMNLP 2025, 4.2.2.2) asks at t_c for how long prefill may have the
link, and knows three cases:

    1   a decode step begins, t_c = t_s            T_a = T_d(x)
    2   one is under way, t_c > t_s                T_a = t_s + T_d(x) - t_c
    3   none is                                    T_a = t_p + T_o + T_m - t_c

with T_d(x) from the rows of the step, t_p when the micro-batch last came by here, and T_o + T_m the
time of a round. So the due time of a result, less the present, is T_a in all of them, and
`DecodeForecast.due_at` is that time. Live stages and simulated ones ask the same object, that of
their core; what they tell their links at the beginning of a step and at its end is its answer.

Two things are measured where the paper adds up profiles made offline. T_d(x) is a line through this
stage's recent steps (`StepProfile`, as the head's model of the round has one of each stage). T_o +
T_m is the smoothed time between two visits (`DecodeClock`), and t_p the arrival, to which the steps
that are due, and what arrivals lately waited for the device, are added: so a micro-batch that has
grown is expected later at once.

Pure: times are arguments.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from molink_scheduler.timing.steps import (
    PAUSE_S_MIN,
    ROUNDS_UNTIL_PAUSE,
    DecodeClock,
    StepProfile,
)

ERRORS_KEPT_MAX = 256
"""Errors of each kind that are kept: the last half minute of a busy stage."""

WEIGHT_OF_NEWEST_WAIT = 0.25
"""Weight of what the newest micro-batch waited for the device, as of a round (`DecodeClock`)."""


class Foretold(NamedTuple):
    """A due time, and when it was said."""

    made_at: float
    due_at: float

    def error(self, came_at: float) -> tuple[float, float] | None:
        """Seconds between the due time and `came_at`, and their share of T_a, at most 1 where T_a
        was 0; None where nobody was there in between."""
        allowed_s, elapsed_s = self.due_at - self.made_at, came_at - self.made_at
        if elapsed_s > max(ROUNDS_UNTIL_PAUSE * allowed_s, PAUSE_S_MIN):
            return None
        error_s = abs(came_at - self.due_at)
        return error_s, error_s / allowed_s if allowed_s > 0 else 1.0


class ErrorSummary(NamedTuple):
    """Summary of how far T_a was off in the newest forecasts of one kind."""

    judged: int
    p50_s: float
    p95_s: float
    p50_share: float
    """Error as a share of the T_a that was forecast."""
    p95_share: float

    @property
    def shares_text(self) -> str:
        """Both shares for a person, as in `8 / 22 % of T_a in 120 forecasts`."""
        p50, p95 = 100 * self.p50_share, 100 * self.p95_share
        return f"{p50:.0f} / {p95:.0f} % of T_a in {self.judged} forecasts"

    @classmethod
    def of(cls, errors: Sequence[tuple[float, float]]) -> "ErrorSummary":
        """A summary of (seconds, share) pairs; zeros where there are none."""
        seconds, shares = sorted(one[0] for one in errors), sorted(one[1] for one in errors)
        found = [_percentile(of, q) for of in (seconds, shares) for q in (0.5, 0.95)]
        return cls(len(errors), *found)


def _percentile(ordered: Sequence[float], share: float) -> float:
    """By nearest rank; 0 of nothing."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


NO_ERRORS = ErrorSummary.of(())


@dataclass(slots=True)
class ForecastErrors:
    """Errors of what was foretold, against what came.

    A step's due time is judged by when its result had left, a round's by the same moment of the
    step that it foretold: the first one said after a result counts, when T_a was longest.
    """

    steps: list[tuple[float, float]] = field(default_factory=list)
    """(seconds, share of T_a) of cases 1 and 2."""
    rounds: list[tuple[float, float]] = field(default_factory=list)
    """The same of case 3."""
    _step: Foretold | None = None
    _round: Foretold | None = None
    _following: Foretold | None = None
    """Case 3, said when a step had ended whose result has not left yet."""

    def step_begins(self, foretold: Foretold) -> None:
        """Cases 1 and 2 are said."""
        self._step = foretold

    def round_foretold(self, foretold: Foretold | None) -> None:
        """Case 3 is said; None: no decode is expected."""
        if self._step is not None:
            self._following = foretold
        elif self._round is None:
            self._round = foretold

    def result_left(self, now: float) -> None:
        """The result of a decode step has left."""
        if self._step is not None:
            _judge(self._step, now, self.steps)
        if self._round is not None:
            _judge(self._round, now, self.rounds)
        self._step, self._round, self._following = None, self._following, None


def _judge(foretold: Foretold, came_at: float, errors: list[tuple[float, float]]) -> None:
    """Keep the error of what was foretold, if somebody was there."""
    if (error := foretold.error(came_at)) is not None:
        errors.append(error)
        if len(errors) > ERRORS_KEPT_MAX:
            del errors[0]


@dataclass(slots=True)
class DecodeForecast:
    """Forecast of when the next decode result of one stage will want its link."""

    profile: StepProfile = field(default_factory=StepProfile)
    """T_d(x) of this stage."""
    errors: ForecastErrors = field(default_factory=ForecastErrors)
    _begun: tuple[float, int] | None = None
    """t_s and x of the step under way."""
    _rows: dict[int, int] = field(default_factory=dict)
    """Rows of each micro-batch when it was computed last."""
    _wait_s: float = 0.0
    """Smoothed time from a micro-batch's arrival to its step."""

    def due_at(self, clock: DecodeClock, now: float, waiting_rows: int = 0) -> float | None:
        """t_c + T_a at t_c = `now`; before it, the result is late. None: no decode is expected.
        `waiting_rows`: of a step that has only to begin."""
        if self._begun is not None:
            began_at, rows = self._begun
            return began_at + self.profile.step_s(rows)
        if waiting_rows:
            return now + self.profile.step_s(waiting_rows)
        if (due := clock.next_due(now)) is None:
            return None
        slot, arrives_at = due
        step_s = self.profile.step_s(self._rows.get(slot, 1))
        return max(now, arrives_at + self._wait_s) + step_s

    def begins(self, clock: DecodeClock, slot: int, rows: int, now: float) -> float:
        """The step of a micro-batch begins: when its result is due."""
        waited_s = clock.seen_before_s(slot, now)
        if waited_s is not None:
            self._wait_s += WEIGHT_OF_NEWEST_WAIT * (waited_s - self._wait_s)
        self._begun, self._rows[slot] = (now, rows), rows
        due_at = now + self.profile.step_s(rows)
        self.errors.step_begins(Foretold(now, due_at))
        return due_at

    def ends(self) -> None:
        """The step under way has ended."""
        self._begun = None

    def result_left(self, rows: int, elapsed_s: float, now: float) -> None:
        """The result of a step of so many rows has left, `elapsed_s` after it began."""
        self.profile.observe(rows, elapsed_s)
        self.errors.result_left(now)
