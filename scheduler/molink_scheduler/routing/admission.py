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

The two other ways of Mooncake's comparison are here for the simulator.

Pure.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from molink_scheduler.routing.ring_forecast import (
    RingState,
    decoding_then,
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
"""Largest targets: nobody waits longer, and a larger one refuses nobody."""


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
    """Most seconds between two tokens; None: any."""

    def __post_init__(self) -> None:
        assert all(one is None or one > 0 for one in (self.ttft_s, self.tpot_s)), "above 0"

    def or_else(self, others: "Targets") -> "Targets":
        """These targets, and where they say nothing the others."""
        return Targets(
            others.ttft_s if self.ttft_s is None else self.ttft_s,
            others.tpot_s if self.tpot_s is None else self.tpot_s,
        )

    def missed_by(self, ttft_s: float, tpot_s: float) -> float:
        """The larger share of its target that a forecast takes up; over 1 it misses."""
        of_ttft = 0.0 if self.ttft_s is None else ttft_s / self.ttft_s
        of_tpot = 0.0 if self.tpot_s is None else tpot_s / self.tpot_s
        return max(of_ttft, of_tpot)


NO_TARGETS = Targets()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a ring takes a request, and what it would get there."""

    admitted: bool
    ttft_s: float
    tpot_s: float
    retry_after_s: float = 0.0
    """Seconds until the ring is forecast to take such a request; 0: it is taken."""
    hopeless: bool = False
    """Whether it misses on the idle ring too."""


@dataclass(slots=True)
class RingAdmission:
    """Decides for one ring, and remembers whether it refuses."""

    policy: AdmissionPolicy = AdmissionPolicy.PREDICTED
    _refused: int | None = field(init=False, default=None)
    """The first priority that was refused since the last that had room to spare; None: none."""

    def decide(
        self, ring: RingState, prompt_tokens: int, targets: Targets, priority: int = 0
    ) -> Verdict:
        """Whether the ring takes a request that comes now. Lower priorities go first."""
        predicts = self.policy is AdmissionPolicy.PREDICTED
        ttft_s = forecast_ttft_s(ring, prompt_tokens)
        tpot_s = forecast_tpot_s(ring, prompt_tokens, predicts=predicts)
        verdict = Verdict(True, ttft_s, tpot_s)
        if self.policy is AdmissionPolicy.ACCEPT:
            return verdict
        if self.policy is AdmissionPolicy.BASELINE:
            targets = Targets(targets.ttft_s)
        share = targets.missed_by(ttft_s, tpot_s)
        if self._admits(share, priority, is_idle=ring.requests == 0):
            return verdict
        idle = if_idle(ring)
        alone = forecast_ttft_s(idle, prompt_tokens), forecast_tpot_s(idle, prompt_tokens)
        hopeless = targets.missed_by(*alone) > 1
        if not hopeless:
            self._refused = priority if self._refused is None else min(self._refused, priority)
        retry_s = RETRY_S_MAX if hopeless else _retry_s(ring, targets, ttft_s)
        return Verdict(False, ttft_s, tpot_s, retry_s, hopeless)

    def goes_on(self, ring: RingState, targets: Targets) -> bool:
        """Whether a request whose prompt has been computed is answered; by `BASELINE` only is it
        ever not."""
        if self.policy is not AdmissionPolicy.BASELINE or targets.tpot_s is None:
            return True
        return ring.pace.tpot_s(ring.decoding) <= targets.tpot_s

    def _admits(self, share: float, priority: int, *, is_idle: bool) -> bool:
        """Whether such a share is admitted; an idle ring would never have more to spare for it."""
        if self._refused is None or priority < self._refused:
            return share <= 1
        if is_idle or share < READMITTED_BELOW:
            self._refused = None
        return share <= 1 if is_idle else share < READMITTED_BELOW


def _retry_s(ring: RingState, targets: Targets, ttft_s: float) -> float:
    """Seconds until a request fits: so little waits, and so many answers have ended, by then."""
    waits_s = 0.0 if targets.ttft_s is None else ttft_s - READMITTED_BELOW * targets.ttft_s
    if targets.tpot_s is not None and ring.pace.tpot_each_s > 0:
        spare_s = READMITTED_BELOW * targets.tpot_s - ring.pace.tpot_alone_s
        fitting = max(0.5, spare_s / ring.pace.tpot_each_s)
        many = max(fitting, decoding_then(ring, ttft_s))
        mean_s = ring.answer_tokens * ring.pace.tpot_s(max(0, ring.decoding - 1))
        waits_s = max(waits_s, mean_s * math.log(many / fitting))
    return min(RETRY_S_MAX, max(RETRY_S_MIN, waits_s))
