"""Early rejection of newcomers whose forecast misses what is promised.

Mooncake's early rejection: who would wait too long, or get tokens too slowly, is told so before
anything is computed for it. Looking at the decode load of now swings: while prompts are long in
line few decode, so all are let in, and later all are refused. So the load is forecast for the
moment when the newcomer's prompt will be computed (early rejection with prediction).

Once a ring has refused somebody it takes only who has some room to spare, until one has, or until
it has nothing to do. That is what keeps it from swinging at the limit. Who would miss on the idle
ring too is refused without that: it says nothing of the ring's load. Priorities come first because
a request looks only at what waits ahead of it, and a refusal counts only for those of its priority
or a lower one.

A mean time between tokens may be kept while single gaps are far longer: a target of gaps (TBT, as
Mooncake has it) is for the one that so many per cent of them are within. It follows the mean by a
multiple that the ring's gaps have told (`gap_times`). A ring that refuses everybody for its gaps
has none to learn from, so an idle one takes one of `PROBED_AFTER` to see.

The two other ways of Mooncake's comparison are here for the simulator.

Pure.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from molink_scheduler.routing.ring_forecast import (
    RingState,
    decoding_then,
    forecast_tbt_s,
    forecast_tpot_s,
    forecast_ttft_s,
    if_idle,
)

READMITTED_BELOW = 0.9
"""Share of a target below which a ring takes requests again after it has refused one: a tenth is
more than one more request changes on a ring that is full, so two in a row are not answered
differently for nothing."""

RETRY_S_MIN, RETRY_S_MAX = 1.0, 120.0
"""Bounds of Retry-After, in whole seconds: after more than two minutes the client has gone."""


TTFT_TARGET_S_MAX, TPOT_TARGET_MS_MAX = 3600.0, 60_000.0
"""Largest targets: nobody waits longer, and a larger one refuses nobody. The latter is of single
gaps, too."""

TBT_PERCENTILE, TBT_PERCENTILE_MIN, TBT_PERCENTILE_MAX = 99.0, 50.0, 99.9
"""Percentile of gaps that a target is for unless another is said, and the least and the highest:
below half of the gaps the mean says more, and a rarer one than in a thousand is not in what is
counted."""

TARGET_S_MIN = 1e-9
"""A target below it is none that could be met; in seconds it could be rounded to zero."""

PROBED_AFTER = 8
"""Refusals of an idle ring for its gaps alone, after which it takes one to learn anew how long they
are: an hour's stutter is not to refuse for good, and a ring that always stutters disappoints one in
so many."""


class AdmissionPolicy(StrEnum):
    """Rule by which a request is refused for missing its targets."""

    ACCEPT = "accept"
    """Refuse nobody."""
    BASELINE = "baseline"
    """Refuse for the first token when a request comes, and for its pace once its prompt has been
    computed, which was for nothing then (`RingAdmission.goes_on`)."""
    EARLY = "early"
    """Refuse for both when a request comes, by the answers that decode then."""
    PREDICTED = "predicted"
    """Refuse for both when a request comes, by the answers that decode after its prompt."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Times that a request is to get, or is refused."""

    ttft_s: float | None = None
    """Most seconds to its first token; None: any."""
    tpot_s: float | None = None
    """Most seconds between two tokens as a mean; None: any."""
    tbt_s: float | None = None
    """Most seconds that `tbt_percentile` per cent of the gaps between tokens stay within; None:
    any."""
    tbt_percentile: float = TBT_PERCENTILE
    """Percentile of the target of gaps."""

    def __post_init__(self) -> None:
        assert all(one is None or one > 0 for one in self.seconds), "above 0"
        assert TBT_PERCENTILE_MIN <= self.tbt_percentile <= TBT_PERCENTILE_MAX, "a percentile"

    @classmethod
    def of_ms(
        cls,
        ttft_s: float | None,
        tpot_ms: float | None,
        tbt_ms: float | None,
        tbt_percentile: float = TBT_PERCENTILE,
    ) -> "Targets":
        """Targets of which those between tokens are in milliseconds."""
        tpot_s, tbt_s = (
            None if one is None else max(TARGET_S_MIN, one / 1000) for one in (tpot_ms, tbt_ms)
        )
        return cls(ttft_s, tpot_s, tbt_s, tbt_percentile)

    @property
    def between_tokens_s(self) -> float:
        """The tighter one of those between tokens; infinite where there is none."""
        return min((one for one in (self.tpot_s, self.tbt_s) if one is not None), default=math.inf)

    @property
    def seconds(self) -> tuple[float | None, float | None, float | None]:
        """Seconds of each, in the order in which `shares_of` takes them."""
        return self.ttft_s, self.tpot_s, self.tbt_s

    @property
    def are_set(self) -> bool:
        """Whether there is any."""
        return self.seconds != (None, None, None)

    def or_else(self, others: "Targets") -> "Targets":
        """These targets, and where they say nothing the others; the percentile is theirs."""
        return Targets(
            others.ttft_s if self.ttft_s is None else self.ttft_s,
            others.tpot_s if self.tpot_s is None else self.tpot_s,
            others.tbt_s if self.tbt_s is None else self.tbt_s,
            others.tbt_percentile,
        )

    def shares_of(self, *came_s: float) -> tuple[float, ...]:
        """Share of each target that a time takes up; over 1 it misses, 0 where there is none."""
        pairs = zip(self.seconds, came_s, strict=True)
        return tuple(0.0 if most_s is None else one_s / most_s for most_s, one_s in pairs)

    def missed_by(self, ttft_s: float, tpot_s: float, tbt_s: float = 0.0) -> float:
        """The largest share of its target that a forecast takes up; over 1 it misses."""
        return max(self.shares_of(ttft_s, tpot_s, tbt_s))


NO_TARGETS = Targets()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a ring takes a request, and what it would get there."""

    admitted: bool
    ttft_s: float
    tpot_s: float
    tbt_s: float
    """Seconds that the targets' percentile of its gaps stays within."""
    retry_after_s: float = 0.0
    """Seconds until the ring is forecast to take such a request; 0: it is taken."""
    hopeless: bool = False
    """Whether it misses on the idle ring too."""
    alone_s: float = 0.0
    """Seconds between two tokens on the idle ring, where it is refused."""

    @property
    def seconds(self) -> tuple[float, float, float]:
        """Times in the order of targets."""
        return self.ttft_s, self.tpot_s, self.tbt_s


@dataclass(slots=True)
class RingAdmission:
    """Decides for one ring, and remembers whether it refuses."""

    policy: AdmissionPolicy = AdmissionPolicy.PREDICTED
    _refused: int | None = field(init=False, default=None)
    """The first priority that was refused since the last that had room to spare; None: none."""
    _idle_refusals: int = field(init=False, default=0)
    """Refusals of the idle ring for its gaps alone, since one was taken to see."""

    def decide(
        self, ring: RingState, prompt_tokens: int, targets: Targets, priority: int = 0
    ) -> Verdict:
        """Whether the ring takes a request that comes now. Lower priorities go first."""
        predicts = self.policy is AdmissionPolicy.PREDICTED
        verdict = _forecast(ring, prompt_tokens, targets, predicts=predicts)
        if self.policy is AdmissionPolicy.ACCEPT:
            return verdict
        if self.policy is AdmissionPolicy.BASELINE:
            targets = Targets(targets.ttft_s)
        is_idle = ring.requests == 0
        if self._admits(targets.missed_by(*verdict.seconds), priority, is_idle=is_idle):
            return verdict
        alone = _forecast(if_idle(ring), prompt_tokens, targets)
        hopeless = targets.missed_by(*alone.seconds) > 1
        if is_idle and self._probes(targets, alone):
            return verdict
        if not hopeless:
            self._refused = priority if self._refused is None else min(self._refused, priority)
        retry_s = RETRY_S_MAX if hopeless else _retry_s(ring, targets, verdict.ttft_s)
        alone_s = alone.tpot_s
        return Verdict(False, *verdict.seconds, retry_s, hopeless=hopeless, alone_s=alone_s)

    def goes_on(self, ring: RingState, targets: Targets) -> bool:
        """Whether a request whose prompt has been computed is answered; by `BASELINE` only is it
        ever not."""
        if self.policy is not AdmissionPolicy.BASELINE:
            return True
        tpot_s = ring.pace.tpot_s(ring.decoding)
        tbt_s = tpot_s * ring.gaps.times(ring.decoding, targets.tbt_percentile)
        return targets.missed_by(0.0, tpot_s, tbt_s) <= 1

    def _probes(self, targets: Targets, alone: Verdict) -> bool:
        """Whether an idle ring takes one that it is forecast to miss by its gaps alone."""
        if targets.missed_by(alone.ttft_s, alone.tpot_s, alone.tpot_s) > 1:
            return False
        self._idle_refusals = (self._idle_refusals + 1) % PROBED_AFTER
        return self._idle_refusals == 0

    def _admits(self, share: float, priority: int, *, is_idle: bool) -> bool:
        """Whether such a share is admitted; an idle ring would never have more to spare for it."""
        if self._refused is None or priority < self._refused:
            return share <= 1
        if is_idle or share < READMITTED_BELOW:
            self._refused = None
        return share <= 1 if is_idle else share < READMITTED_BELOW


def _forecast(
    ring: RingState, prompt_tokens: int, targets: Targets, *, predicts: bool = True
) -> Verdict:
    """What a request would get that is taken."""
    return Verdict(
        True,
        forecast_ttft_s(ring, prompt_tokens),
        forecast_tpot_s(ring, prompt_tokens, predicts=predicts),
        forecast_tbt_s(ring, prompt_tokens, targets.tbt_percentile, predicts=predicts),
    )


def _retry_s(ring: RingState, targets: Targets, ttft_s: float) -> float:
    """Seconds until a request fits: so little waits, and so many answers have ended, by then."""
    waits_s = 0.0 if targets.ttft_s is None else ttft_s - READMITTED_BELOW * targets.ttft_s
    tpot_s = _tpot_within_s(ring, targets)
    if tpot_s is not None and ring.pace.tpot_each_s > 0:
        spare_s = READMITTED_BELOW * tpot_s - ring.pace.tpot_alone_s
        fitting = max(0.5, spare_s / ring.pace.tpot_each_s)
        many = max(fitting, decoding_then(ring, ttft_s))
        mean_s = ring.answer_tokens * ring.pace.tpot_s(max(0, ring.decoding - 1))
        waits_s = max(waits_s, mean_s * math.log(many / fitting))
    return min(RETRY_S_MAX, max(RETRY_S_MIN, waits_s))


def _tpot_within_s(ring: RingState, targets: Targets) -> float | None:
    """The mean between tokens with which a ring keeps both targets, where its gaps stay as many
    times as long as they are now; None: any."""
    if targets.tbt_s is None:
        return targets.tpot_s
    of_gaps_s = targets.tbt_s / ring.gaps.times(ring.decoding, targets.tbt_percentile)
    return of_gaps_s if targets.tpot_s is None else min(of_gaps_s, targets.tpot_s)
