"""The highest rate of a trace that rings hold.

Held means Mooncake's bounds: of all requests, nine in ten have their first token within ten times,
and their tokens within five times, what nine in ten have while nobody else is there and nothing is
cached. That is the same for all routings, so that none is measured by its own quiet times.

As in `forecast`, the rate is doubled or halved until one holds and one does not; then the ratio
between the two is halved. Conversations of a low rate are among those of a higher one
(`trace.at_rate`), so the answer hardly depends on which were drawn.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from molink_scheduler.routing.admission import TBT_PERCENTILE, Targets
from molink_sim.cache.serve import CacheOutcome, CacheRules, serve, tpot_s
from molink_sim.cache.trace import CacheRequest
from molink_sim.outcome import RequestOutcome
from molink_sim.scenario import RingSpec

TTFT_TIMES, TPOT_TIMES = 10.0, 5.0
"""Multiples of the quiet times (Mooncake, section 5.1)."""

PERCENTILE = 0.9

SEARCH_STEPS = 7
"""Halvings of the ratio between a rate that holds and its double: to half a percent."""

RATE_MIN_PER_S, RATE_MAX_PER_S = 1 / 64, 64.0
"""A slower trace has some dozens of requests, a faster one is far from what homes have."""


def p90(values: Sequence[float]) -> float:
    """Value that nine in ten are at or below; 0 for none."""
    ordered = sorted(values)
    return ordered[math.ceil(PERCENTILE * len(ordered)) - 1] if ordered else 0.0


def quiet_targets(
    requests: Sequence[CacheRequest],
    ring: RingSpec,
    ttft_times: float = TTFT_TIMES,
    tpot_times: float = TPOT_TIMES,
    tbt_times: float | None = None,
    tbt_percentile: float = TBT_PERCENTILE,
) -> Targets:
    """Bounds of a trace on a ring: the quiet times, times what may be lost to others. A longer
    prompt takes longer, so nine in ten have at most what the one has that as many are no longer
    than; the same with contexts. That of gaps, where there is one, is a multiple of the quiet time
    per token, too: a ring without others has hardly a gap that is longer."""
    ttft_s = _alone(_ninth(requests, lambda one: one.input_tokens), ring).ttft_s
    contexts = _ninth(requests, lambda one: one.input_tokens + one.output_tokens / 2)
    tokens_s = tpot_s(_alone(contexts, ring))
    tbt_s = None if tbt_times is None else tbt_times * tokens_s or None
    return Targets(ttft_times * ttft_s, tpot_times * tokens_s or None, tbt_s, tbt_percentile)


def _ninth(requests: Sequence[CacheRequest], size: Callable[[CacheRequest], float]) -> CacheRequest:
    """The request that nine in ten are no larger than."""
    return sorted(requests, key=size)[math.ceil(PERCENTILE * len(requests)) - 1]


def _alone(request: CacheRequest, ring: RingSpec) -> RequestOutcome:
    return serve([replace(request, at_s=0.0)], [ring], CacheRules(caches=False)).served[0]


Outcome = TypeVar("Outcome")
"""What comes of a run at a rate."""


@dataclass(frozen=True, slots=True)
class HeldRate(Generic[Outcome]):
    """A rate that holds and what came at it."""

    rate_per_s: float
    """0: none does."""
    outcome: Outcome | None


def highest_rate(
    run: Callable[[float], Outcome], is_held: Callable[[Outcome], bool], first_per_s: float = 0.5
) -> HeldRate[Outcome]:
    """The highest rate at which what comes is held."""
    low, high, rate = 0.0, math.inf, first_per_s
    best: Outcome | None = None
    while (not low and rate >= RATE_MIN_PER_S) or (high == math.inf and rate <= RATE_MAX_PER_S):
        outcome = run(rate)
        if is_held(outcome):
            low, best, rate = rate, outcome, 2 * rate
        else:
            high, rate = rate, rate / 2
    for _ in range(SEARCH_STEPS if low and high < math.inf else 0):
        rate = math.sqrt(low * high)
        outcome = run(rate)
        if is_held(outcome):
            low, best = rate, outcome
        else:
            high = rate
    return HeldRate(low, best)


def is_within(outcome: CacheOutcome, targets: Targets) -> bool:
    """Whether nine in ten requests are within each target."""
    gaps_s = [] if targets.tbt_s is None else outcome.tbts_s(targets.tbt_percentile)
    return targets.missed_by(p90(outcome.ttfts_s), p90(outcome.tpots_s), p90(gaps_s)) <= 1
