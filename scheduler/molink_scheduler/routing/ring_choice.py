"""Choice of the ring that serves a new request: four policies behind one function.

- `molink`: the ring with the least forecast time to the first token, as Mooncake's Algorithm 1
  (KVCache-centric) has it: a cached prefix counts for the time that it saves, a line for the time
  that it costs. What a request computes delays all who wait, so the time for its own prompt counts
  once more for each of them (on average over rings): where nobody waits the soonest ring takes it,
  and the busier all are, the more it is worth to compute nothing twice. Of rings with about the
  same, the one whose tokens will follow faster. Where a longer prefix lies on a ring that is too
  busy, it is replicated thereby: computed on the quieter ring, never copied over home links.
  A session that is named stays on its ring until another one is better by `HOME_TIMES`.
- `cache`: the ring with the longest cached prefix, unless it has many more requests than the least
  busy one, as SGLang's router has it. It needs two thresholds, and no forecast.
- `load`: the ring that would be done with all its work first, counted in tokens that requests may
  still come to, prompt and answer. Rejected: the fewest requests, which takes a prompt of 8,000
  tokens for one of 80; and taking turns, which fills a slow ring as fast as a quick one.
- `random`: any; to compare with.

Of equals the first is taken, so that the same rings and requests give the same choices.

Pure: the caller keeps count, and draws.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import assert_never

from molink_scheduler.routing.ring_forecast import (
    RingState,
    forecast_tpot_s,
    forecast_ttft_s,
    own_prefill_s,
)

ALIKE = 1.05
"""Multiple of the least forecast that counts as no longer: forecasts are not more exact than that,
and rings that would begin at about the same time should share the work."""

HOME_TIMES = 2.0
"""Multiple of the least forecast up to which a session stays on its ring: what another one lacks of
it is in the forecast for this request, and would cost those that follow again."""

MORE_REQUESTS_MAX, MORE_TIMES_MAX = 8, 1.5
"""Requests more than on the least busy ring, and multiple of those, that a ring with a longer
prefix may have by `cache`: half of what a ring of home PCs often serves, and SGLang's ratio."""


class Routing(StrEnum):
    """How a ring is chosen."""

    RANDOM = "random"
    LOAD = "load"
    CACHE = "cache"
    MOLINK = "molink"


def choose_ring(
    routing: Routing,
    rings: Sequence[RingState],
    prompt_tokens: int,
    answer_tokens_max: int,
    draw: float = 0.0,
) -> int:
    """Index of the ring for a request of so many tokens; `draw`, from 0 to below 1, decides for
    `random`."""
    assert rings, "there is at least one ring"
    assert 0 <= draw < 1, "a draw is a share"
    match routing:
        case Routing.RANDOM:
            return int(draw * len(rings))
        case Routing.LOAD:
            return _least_loaded(rings, prompt_tokens + answer_tokens_max)
        case Routing.CACHE:
            return _longest_prefix(rings, prompt_tokens + answer_tokens_max)
        case Routing.MOLINK:
            return _soonest(rings, prompt_tokens, prompt_tokens + answer_tokens_max)
    assert_never(routing)


def _least_loaded(rings: Sequence[RingState], tokens: int) -> int:
    return min(range(len(rings)), key=lambda one: rings[one].seconds_outstanding(tokens))


def _longest_prefix(rings: Sequence[RingState], tokens: int) -> int:
    """The least loaded of those with the longest prefix that are not too busy."""
    least = min(ring.requests for ring in rings)
    most = max(least + MORE_REQUESTS_MAX, MORE_TIMES_MAX * least)
    free = [one for one in range(len(rings)) if rings[one].requests <= most]
    return min(
        free, key=lambda one: (-rings[one].cached_tokens, rings[one].seconds_outstanding(tokens))
    )


def _soonest(rings: Sequence[RingState], prompt_tokens: int, tokens: int) -> int:
    waiting = sum(ring.waiting_requests for ring in rings) / len(rings)
    costs_s = [
        forecast_ttft_s(ring, prompt_tokens) + waiting * own_prefill_s(ring, prompt_tokens)
        for ring in rings
    ]
    for one, ring in enumerate(rings):
        if ring.is_home and costs_s[one] <= HOME_TIMES * min(costs_s):
            return one
    within_s = ALIKE * min(costs_s)
    alike = [one for one, cost_s in enumerate(costs_s) if cost_s <= within_s]
    return min(
        alike,
        key=lambda one: (
            forecast_tpot_s(rings[one], prompt_tokens),
            costs_s[one],
            rings[one].seconds_outstanding(tokens),
        ),
    )
