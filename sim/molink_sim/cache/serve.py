"""A trace over rings in virtual time: each request goes to one of them, or nowhere.

Rings are those of every other simulation, with the core of every stage and its prefix cache. The
coordinator routes and admits by what it is told in the product (`molink_sim.ring.outlook`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from molink.workload.figures import percentile
from molink_scheduler.routing.admission import NO_TARGETS, AdmissionPolicy, Targets
from molink_scheduler.routing.ring_choice import Routing
from molink_sim.cache.trace import CacheRequest
from molink_sim.outcome import RequestOutcome
from molink_sim.scenario import EntrySpec, RequestArrival, RingSpec, Scenario
from molink_sim.simulate import World
from molink_sim.systems import system_named

DRAIN_S = 30 * 24 * 3600.0
"""Virtual time after the last arrival in which all that waits is answered."""


@dataclass(frozen=True, slots=True)
class CacheRules:
    """How requests are routed and admitted, and in which order prompts are computed."""

    routing: str = str(Routing.MOLINK)
    admission: AdmissionPolicy = AdmissionPolicy.ACCEPT
    targets: Targets = NO_TARGETS
    seed: int = 0
    """Seed of random routing."""
    prompt_order: str = "shortest"
    """Order of prompts: `shortest`, as heads have it, or `fifo`, as they have it where a time to a
    first token is promised."""
    caches: bool = True
    """Whether anything is cached."""

    @property
    def is_fifo(self) -> bool:
        """Whether prompts are computed as they come."""
        is_promised = self.admission is not AdmissionPolicy.ACCEPT
        return self.prompt_order == "fifo" or (is_promised and self.targets.ttft_s is not None)


@dataclass(frozen=True, slots=True)
class CacheOutcome:
    """Outcome of each request, in the trace's order."""

    served: Sequence[RequestOutcome]

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were cached, of requests that got a first token."""
        begun = [one for one in self.served if one.token_times_s]
        tokens = sum(one.input_tokens for one in begun)
        return sum(one.cached_tokens for one in begun) / max(1, tokens)

    @property
    def ttfts_s(self) -> list[float]:
        """Times to the first token of requests that were not refused."""
        return [one.ttft_s for one in self.served if not one.refused]

    @property
    def tpots_s(self) -> list[float]:
        """Times per token of requests that were not refused and have more than one token."""
        long = (one for one in self.served if one.output_tokens > 1 and not one.refused)
        return [tpot_s(one) for one in long]

    def tbts_s(self, percentile: float) -> list[float]:
        """Of each of these, the gap that so many per cent of its own are within."""
        long = (one for one in self.served if one.output_tokens > 1 and not one.refused)
        return [tbt_s(one, percentile) for one in long]

    def good(self, targets: Targets) -> int:
        """Requests that met all targets."""
        return sum(_is_good(one, targets) for one in self.served)

    def wasted_tokens(self, targets: Targets) -> int:
        """Prompt tokens that were computed for requests that missed a target."""
        return sum(computed_tokens(one) for one in self.served if not _is_good(one, targets))


def computed_tokens(one: RequestOutcome) -> int:
    """Tokens of a prompt that were computed; 0 if none was."""
    return one.input_tokens - one.cached_tokens if one.token_times_s else 0


def tpot_s(one: RequestOutcome) -> float:
    """Mean time between a request's tokens; 0 if it has one, infinite before its end."""
    if not one.finished:
        return math.inf
    return (one.token_times_s[-1] - one.token_times_s[0]) / max(1, len(one.token_times_s) - 1)


def tbt_s(one: RequestOutcome, percent: float) -> float:
    """Gap that so many per cent of the gaps between a request's tokens are within; 0 if it has but
    one token, infinite before its end."""
    if not one.finished:
        return math.inf
    gaps_s = sorted(gap_s for a, b in pairwise(one.token_times_s) if (gap_s := b - a) > 0)
    return percentile(gaps_s, percent) if gaps_s else 0.0


def _is_good(one: RequestOutcome, targets: Targets) -> bool:
    if one.refused or not one.finished:
        return False
    gap_s = 0.0 if targets.tbt_s is None else tbt_s(one, targets.tbt_percentile)
    return targets.missed_by(one.ttft_s, tpot_s(one), gap_s) <= 1


def serve(
    requests: Sequence[CacheRequest], rings: Sequence[RingSpec], rules: CacheRules
) -> CacheOutcome:
    """All requests over these rings, until the last answer has ended."""
    system = system_named("molink", prefix_cache=rules.caches, fifo_prompts=rules.is_fifo)
    arrivals = [
        RequestArrival(one.at_s, one.input_tokens, one.output_tokens, one.prompt)
        for one in requests
    ]
    scenario = Scenario(
        tuple(rings),
        arrivals,
        system,
        EntrySpec(Routing(rules.routing), rules.admission, rules.targets),
        duration_s=arrivals[-1].at_s + 1.0,
        drain_s=DRAIN_S,
        seed=rules.seed,
    )
    world = World(scenario)
    world.run()
    return CacheOutcome(tuple(world.coordinator.requests))
