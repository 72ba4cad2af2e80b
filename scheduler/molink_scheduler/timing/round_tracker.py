"""Tracker of decode rounds: step times of all stages, and what the links cost, for the head.

Each stage stamps a decode batch with its step time and the rate of its outgoing link. When the
batch is back, what is left of its trip after compute and wire time is delay: propagation,
hand-over, waiting. From these the cost model predicts rounds with other numbers of
micro-batches. Where the micro-batches fill a device or a link, what is left is mostly waiting for
one another, which fewer of them would not have to: taken for delay it would call for more of them.

Pure: times are arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from molink_scheduler.timing.round_model import HopCost, RoundModel, StageCost
from molink_scheduler.timing.steps import FORGET, ROWS_SPREAD_MIN, StepProfile

WEIGHT_OF_NEWEST = 0.1
"""Weight of a trip's delay: prompts that pass now and then should not look like a slow ring."""

FULL_SHARE = 0.7
"""A device or link that the micro-batches out take for so much of a trip is full: what arrives
unevenly queues there."""

APART_MIN = 0.1
"""Share of the variance of passes that their rows do not explain, below which the two cannot be
told apart."""

STAMPS_MAX = 64
"""Most stamps, twice as many as the longest ring that we expect has stages."""

STEP_S_MAX = 3600.0
"""Longest decode step; nobody waits for a token so long."""


class StageStamp(NamedTuple):
    """Measurements of one stage for a decode step."""

    step_s: float
    wire_bytes_per_s: float
    """Measured rate of the link that leaves the stage; 0 where none is known."""


def stamps_objection(stamps: Sequence[StageStamp]) -> str | None:
    """Why no ring can have stamped a batch so; None: one can."""
    if len(stamps) > STAMPS_MAX:
        return f"{len(stamps)} stages have stamped it, {STAMPS_MAX} are the most"
    for step_s, wire_bytes_per_s in stamps:
        if not (0 <= step_s <= STEP_S_MAX and wire_bytes_per_s >= 0):
            return f"a stage has stamped it with {step_s} s and {wire_bytes_per_s} bytes/s"
    return None


@dataclass(slots=True)
class TailPasses:
    """Cost of a pass of the layer that drafts on the tail: the plane t = t0 + n t1 + k t2 through
    steps of n rows and k passes, each counting a little less with every newer one (`StepProfile`).
    Widths change all the time; while they do not, or only as rows do, the last cost stands. A stamp
    of its own would have a card wait for each pass."""

    pass_s: float = 0.0
    passes: float = 0.0
    """Smoothed passes of a step."""
    _weight: float = 0.0
    _sums: list[float] = field(default_factory=lambda: [0.0] * 8)
    """Weighted sums of n, k, t, nn, kk, nk, nt, kt."""

    def observe(self, passes: int, rows: int, step_s: float) -> float:
        """Take a step into account; its seconds without passes."""
        if not passes and not self.passes:
            return step_s
        self.passes += WEIGHT_OF_NEWEST * (passes - self.passes)
        n, k, t = rows, passes, step_s
        self._weight = self._weight * FORGET + 1.0
        news = (n, k, t, n * n, k * k, n * k, n * t, k * t)
        self._sums = [FORGET * old + new for old, new in zip(self._sums, news, strict=True)]
        self.pass_s = self._fitted()
        return max(0.0, step_s - passes * self.pass_s)

    def _fitted(self) -> float:
        """Seconds of a pass, never negative."""
        n, k, t, nn, kk, nk, nt, kt = (one / self._weight for one in self._sums)
        of_rows, of_passes, of_both = nn - n * n, kk - k * k, nk - n * k
        rows_t, passes_t = nt - n * t, kt - k * t
        if of_passes < ROWS_SPREAD_MIN:
            return self.pass_s
        if of_rows < ROWS_SPREAD_MIN:
            return max(0.0, passes_t / of_passes)
        apart = of_rows * of_passes - of_both * of_both
        if apart < APART_MIN * of_rows * of_passes:
            return self.pass_s
        return max(0.0, (of_rows * passes_t - of_both * rows_t) / apart)


@dataclass(slots=True)
class RoundTracker:
    """The ring as its head measures it."""

    row_bytes: int
    """Bytes of one row on a link between stages."""
    _departures: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    _profiles: list[StepProfile] = field(default_factory=list)
    _rates: list[float] = field(default_factory=list)
    _wire_row_s: list[float] = field(default_factory=list)
    """Seconds of wire per row and link between stages."""
    _delay_s: float | None = None
    """Smoothed part of a trip that neither compute nor wire explain."""
    _rows_each: float = 1.0
    """Smoothed rows of a request in a micro-batch: drafts are rows too."""
    _passes: TailPasses = field(default_factory=TailPasses)

    def departed(
        self, slot: int, rows: int, now: float, requests: int = 0, passes: int = 0
    ) -> None:
        """A micro-batch left the head's queue for its round; it has so many `requests`, unless
        each has one row, and a layer on the tail will draft so many tokens deep for them."""
        self._departures[slot] = (rows, passes, now)
        rows_each = rows / (requests or rows)
        self._rows_each += WEIGHT_OF_NEWEST * (rows_each - self._rows_each)

    def returned(self, slot: int, stamps: Sequence[StageStamp], now: float) -> float | None:
        """Note that a micro-batch came back; its trip in seconds, None if it left unknown."""
        departure = self._departures.pop(slot, None)
        if departure is None:
            return None
        rows, passes, departed_at = departure
        if len(stamps) != len(self._profiles):
            self._profiles = [StepProfile() for _ in stamps]
        steps_s = [step_s for step_s, _ in stamps]
        without_s = list(steps_s)
        if without_s:
            without_s[-1] = self._passes.observe(passes, rows, steps_s[-1])
        for profile, step_s in zip(self._profiles, without_s, strict=True):
            profile.observe(rows, step_s)
        self._learn_rates([rate for _, rate in stamps])
        trip_s = now - departed_at
        self._learn_delay(trip_s, steps_s, [rows * row_s for row_s in self._wire_row_s])
        return trip_s

    @property
    def oldest_departure(self) -> float | None:
        """Departure time of the micro-batch that has been under way for longest; None: none is."""
        return min((at for _, _, at in self._departures.values()), default=None)

    def model(self) -> RoundModel | None:
        """The present cost model; None before the first round."""
        if self._delay_s is None:
            return None
        stages = tuple(StageCost(p.fixed_s, p.row_s) for p in self._profiles)
        wires = self._wire_row_s
        share_s = self._delay_s / max(1, len(wires))
        hops = tuple(HopCost(share_s, row_s) for row_s in wires)
        passes = self._passes
        return RoundModel(stages, hops, self._rows_each, passes.pass_s, passes.passes)

    def _learn_rates(self, rates: list[float]) -> None:
        """The last link carries tokens, whose bytes do not count."""
        if rates != self._rates:
            self._rates = rates
            self._wire_row_s = [self.row_bytes / rate if rate > 0 else 0.0 for rate in rates[:-1]]

    def _learn_delay(self, trip_s: float, steps_s: list[float], wires_s: list[float]) -> None:
        """Learn the time of a trip that neither steps nor wires explain; none of it is waiting for
        others where nothing is full."""
        delay_s = max(0.0, trip_s - sum(steps_s) - sum(wires_s))
        circling = len(self._departures) + 1
        is_full = circling * max([*steps_s, *wires_s], default=0.0) > FULL_SHARE * trip_s
        if self._delay_s is None:
            self._delay_s = delay_s
        elif not is_full or delay_s < self._delay_s:
            self._delay_s += WEIGHT_OF_NEWEST * (delay_s - self._delay_s)
