"""Estimator of a ring's real pace, learned from the answers that it gives.

A plan forecasts a ring's pace from what its PCs and links have measured; what came corrects it. Two
straight lines stand for the pace: seconds to the first token over prompt tokens, those ahead among
them, and seconds between two tokens over the others that decode. Each is fitted by least squares to
what came lately, newer samples counting more, and to the plan's line, which never quite goes away:
it holds the line where all prompts are of one length or nobody shares the ring.

A mean says nothing of single gaps between tokens: they are counted beside it (`gap_times`).

A sample weighs by the square of its forecast's inverse, so that a long wait is worth no more than a
short one: shares of a target are what is compared.

Pure, and a few numbers whatever comes: times are arguments.
"""

from dataclasses import dataclass, field, replace

from molink_scheduler.routing.gap_times import GapTimes
from molink_scheduler.routing.ring_forecast import (
    ANSWER_TOKENS,
    RingPace,
    RingState,
    ttft_waits_s,
)

SAMPLES_REMEMBERED = 64
"""First tokens over which a pace is smoothed, as many as a ring of sixteen answers in some
minutes."""

GAPS_REMEMBERED = 1024
"""Gaps between two tokens over which they are smoothed: some rounds of each of sixteen users."""

PACE_AFTER = 64
"""Gaps after which the pace is the ring's own, and gaps are counted as multiples of it: before that
they would tell how wrong the plan was."""

PLAN_WEIGHT = 1.0
"""Samples of middling weight that the plan's forecast counts for: after a few answers what came
counts for more, and after SAMPLES_REMEMBERED the plan for a hundredth or two."""

PLAN_TOKENS = 1000.0
"""Length of the prompt at which the plan's line is held, beside that of none."""

PLAN_OTHERS = 8.0
"""Number of others at which it is held, beside none."""

FLAT_S = 0.02
"""Shortest forecast that a sample is weighed by: the clocks and queues of a ring are no better."""

KNOWN_AFTER, KNOWN_TIMES = 8, 2
"""First tokens after which a pace is known that no plan has forecast, for prompts of so many times
the tokens of the longest of them: how long longer ones take, short ones do not tell."""

UNKNOWN_PACE = RingPace(200.0, 0.3, 0.1, 0.01)
"""Pace of a ring without a plan: a middling one of home PCs; what comes soon outweighs it."""


@dataclass(slots=True)
class _LineFit:
    """Line through samples, older ones counting less, held at two points that stay."""

    at_zero: float
    slope: float
    hold_x: float
    """The line is held at 0 and here."""
    remembered: int
    _count: float = field(init=False, default=0.0)
    _weight: float = field(init=False, default=0.0)
    _x: float = field(init=False, default=0.0)
    _y: float = field(init=False, default=0.0)
    _xx: float = field(init=False, default=0.0)
    _xy: float = field(init=False, default=0.0)
    _held: tuple[float, float] = field(init=False)
    """Values at 0 and at `hold_x`."""

    def __post_init__(self) -> None:
        self._held = self.at_zero, self.value(self.hold_x)

    def value(self, x: float) -> float:
        return self.at_zero + self.slope * x

    @property
    def count(self) -> float:
        """How many samples count, older ones by what is left of them."""
        return self._count

    def add(self, x: float, y: float, times: int = 1) -> None:
        """Add a sample that counts so many times."""
        kept, weight = (1 - 1 / self.remembered) ** times, times / max(FLAT_S, self.value(x)) ** 2
        self._count = kept * self._count + times
        self._weight = kept * self._weight + weight
        self._x = kept * self._x + weight * x
        self._y = kept * self._y + weight * y
        self._xx = kept * self._xx + weight * x * x
        self._xy = kept * self._xy + weight * x * y
        self._fit()

    def _fit(self) -> None:
        """Least squares over the samples and the two points; neither value below 0."""
        total, x, y, xx, xy = self._weight, self._x, self._y, self._xx, self._xy
        weight = PLAN_WEIGHT / 2 * self._weight / self._count
        total, y = total + weight, y + weight * self._held[0]
        at, value = self.hold_x, self._held[1]
        total, x, y = total + weight, x + weight * at, y + weight * value
        xx, xy = xx + weight * at * at, xy + weight * at * value
        spread = total * xx - x * x
        slope = max(0.0, (total * xy - x * y) / spread)
        at_zero = (y - slope * x) / total
        if at_zero < 0:
            at_zero, slope = 0.0, xy / xx
        self.at_zero, self.slope = at_zero, slope


@dataclass(slots=True)
class PaceEstimator:
    """Pace of one ring, begun with its plan's."""

    planned: RingPace | None = None
    """Pace of the ring's plan; None: nobody has forecast it."""
    answer_tokens: float = ANSWER_TOKENS
    """Mean length of answers that have ended."""
    waits_s: float = field(init=False, default=0.0)
    """Seconds by which lenders of KV lengthen a token's time now, which the pace leaves out."""
    gaps: GapTimes = field(init=False, default_factory=GapTimes)
    """Single gaps between tokens, as multiples of the pace."""
    _ttft: _LineFit = field(init=False)
    """Seconds over prompt tokens, as many as they would be while nobody decodes."""
    _tpot: _LineFit = field(init=False)
    _answers: int = field(init=False, default=0)
    _longest: int = field(init=False, default=0)
    """Tokens that were computed of the longest prompt that was answered."""

    def __post_init__(self) -> None:
        pace = self.planned or UNKNOWN_PACE
        each_s = 1 / pace.prefill_tokens_per_s
        self._ttft = _LineFit(pace.first_token_s, each_s, PLAN_TOKENS, SAMPLES_REMEMBERED)
        self._tpot = _LineFit(pace.tpot_alone_s, pace.tpot_each_s, PLAN_OTHERS, GAPS_REMEMBERED)

    @property
    def has_learned(self) -> bool:
        """Whether a plan or enough answers tell of it for some prompts."""
        return self.planned is not None or self._answers >= KNOWN_AFTER

    def is_known(self, ring: RingState, prompt_tokens: int) -> bool:
        """Whether a plan or enough answers tell of it for a prompt."""
        if self.planned is not None:
            return True
        own = max(1, prompt_tokens - ring.cached_tokens)
        return self.has_learned and own <= KNOWN_TIMES * self._longest

    @property
    def pace(self) -> RingPace:
        """Pace of the ring as it is known now."""
        return RingPace(
            1 / max(1e-9, self._ttft.slope),
            self._ttft.at_zero,
            max(1e-6, self._tpot.at_zero),
            self._tpot.slope,
        )

    def first_token_came(self, ring: RingState, prompt_tokens: int, ttft_s: float) -> None:
        """A request that met the ring in this state had its first token so long after, of which the
        pace leaves out what lenders took."""
        ttft_s = max(0.0, ttft_s - ttft_waits_s(ring, prompt_tokens))
        own = max(1, prompt_tokens - ring.cached_tokens)
        pace = replace(self.pace, prefill_tokens_per_s=1.0)
        self._ttft.add(pace.prefill_s(ring.waiting_tokens + own, ring.decoding), ttft_s)
        self._answers, self._longest = self._answers + 1, max(self._longest, own)

    def round_came(self, others: int, gap_s: float, tokens: int = 1) -> None:
        """An answer beside so many others has so many tokens at once, so long after those before.
        Each of them counts as one that took its share of the time."""
        gap_s = max(0.0, gap_s - self.waits_s)
        if gap_s > 0 and self._tpot.count >= PACE_AFTER:
            self.gaps.add(others, gap_s / self.pace.tpot_s(others))
        self._tpot.add(others, gap_s / tokens, tokens)

    def answer_ended(self, tokens: int) -> None:
        """An answer has ended with so many tokens."""
        self.answer_tokens += (max(1, tokens) - self.answer_tokens) / SAMPLES_REMEMBERED
