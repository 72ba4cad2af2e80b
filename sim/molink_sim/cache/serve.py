"""A trace over rings in virtual time: each request goes to one of them, or nowhere.

Routing and admission are the coordinator's own code (`molink_scheduler.routing`), told what it is
told there: tokens that wait, answers that decode, what is cached of the prompt, and the pace that
each ring has learned of itself.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import pstdev

from molink_scheduler.prompt_order import OWN_WORK_TIMES, PromptOrder
from molink_scheduler.routing.admission import NO_TARGETS, AdmissionPolicy, Targets
from molink_scheduler.routing.ring_choice import Routing, choose_ring
from molink_scheduler.routing.ring_forecast import forecast_tpot_s, forecast_ttft_s
from molink_sim.cache.cluster import KvcacheCentric
from molink_sim.cache.ring import CacheRing, ServedPrompt
from molink_sim.cache.ring_cost import RingCost
from molink_sim.cache.trace import CacheRequest

MOONCAKE = {
    "mooncake-cache-aware": KvcacheCentric(copies=False),
    "mooncake-kvcache-centric": KvcacheCentric(copies=True),
}
"""Routings of the paper's cluster only."""

ROUTINGS = (*(str(one) for one in Routing), *MOONCAKE)
"""Routings that a coordinator can do, and the paper's."""

PROBE = CacheRequest(0.0, 1, 1, b"")
"""Asked about the load: it has no prompt to speak of, so what it finds is the ring's."""

SAMPLE_S = 10.0
"""How often the rings' load is looked at: an answer takes some times as long."""


@dataclass(frozen=True, slots=True)
class CacheRules:
    """How requests are routed and admitted, and blocks evicted."""

    routing: str = str(Routing.MOLINK)
    """Name in `ROUTINGS`."""
    admission: AdmissionPolicy = AdmissionPolicy.ACCEPT
    targets: Targets = NO_TARGETS
    eviction: str = "lru"
    seed: int = 0
    """Seed of random routing."""
    prompt_order: str = "shortest"
    """Order of prompts: `shortest`, as heads have it, or `fifo`, which Mooncake's routings have in
    any case, and heads where a time to a first token is promised."""

    @property
    def own_work_times(self) -> int:
        """Factor by which places of prompts are given; 0: in order of arrival."""
        is_promised = (
            self.admission is not AdmissionPolicy.ACCEPT and self.targets.ttft_s is not None
        )
        is_fifo = self.prompt_order == "fifo" or self.routing in MOONCAKE or is_promised
        return 0 if is_fifo else OWN_WORK_TIMES


@dataclass(frozen=True, slots=True)
class CacheOutcome:
    """Outcome of each request, in the trace's order, and of the rings."""

    served: Sequence[ServedPrompt]
    loads: Sequence[float]
    """Mooncake's load, mean over rings, every SAMPLE_S from the first arrival to the last: which
    share of its target the forecast of a request takes up; 0 without targets."""

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were cached, of requests that got a first token."""
        begun = [one for one in self.served if one.first_token_s is not None]
        tokens = sum(one.request.input_tokens for one in begun)
        return 1 - sum(one.computed_tokens for one in begun) / max(1, tokens)

    @property
    def ttfts_s(self) -> list[float]:
        """Times to the first token of requests that were not refused."""
        return [one.ttft_s for one in self.served if not one.refused]

    @property
    def tpots_s(self) -> list[float]:
        """Times per token of requests that were not refused and have more than one token."""
        long = (one for one in self.served if one.request.output_tokens > 1 and not one.refused)
        return [one.tpot_s for one in long]

    @property
    def load_swing(self) -> float:
        """Standard deviation of the load over time."""
        return pstdev(self.loads or [0.0])

    def good(self, targets: Targets) -> int:
        """Requests that met all targets."""
        return sum(_is_good(one, targets) for one in self.served)

    def wasted_tokens(self, targets: Targets) -> int:
        """Prompt tokens that were computed for requests that missed a target."""
        return sum(one.computed_tokens for one in self.served if not _is_good(one, targets))


def _is_good(one: ServedPrompt, targets: Targets) -> bool:
    return not one.refused and targets.missed_by(one.ttft_s, one.tpot_s) <= 1


@dataclass(slots=True)
class _Cluster:
    """Rings and their coordinator."""

    costs: Sequence[RingCost]
    rules: CacheRules
    rings: list[CacheRing] = field(init=False)
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        rules = self.rules
        self.rings = [
            CacheRing(
                cost,
                rules.eviction,
                rules.admission,
                rules.targets,
                PromptOrder(rules.own_work_times),
            )
            for cost in self.costs
        ]
        self.random = Random(f"routing {rules.seed}")

    def advance(self, until_s: float) -> None:
        for ring in self.rings:
            ring.advance(until_s)

    def ask(self, request: CacheRequest) -> ServedPrompt:
        chosen = self._choose(request)
        return self.rings[chosen].submit(request, self.rings[chosen].state(request))

    def _choose(self, request: CacheRequest) -> int:
        if self.rules.routing in MOONCAKE:
            return MOONCAKE[self.rules.routing](self.rings, request)
        states = [ring.state(request) for ring in self.rings]
        lengths, draw = (request.input_tokens, request.output_tokens), self.random.random()
        return choose_ring(Routing(self.rules.routing), states, *lengths, draw)

    def load(self, request: CacheRequest) -> float:
        states = [ring.state(request) for ring in self.rings]
        shares = [
            self.rules.targets.missed_by(
                forecast_ttft_s(state, request.input_tokens),
                forecast_tpot_s(state, request.input_tokens, predicts=False),
            )
            for state in states
        ]
        return sum(shares) / len(shares)


def serve(
    requests: Sequence[CacheRequest],
    costs: Sequence[RingCost],
    rules: CacheRules,
    progress: Callable[[float], None] = lambda virtual_s: None,
) -> CacheOutcome:
    """All requests over a ring for each cost, until the last answer has ended.

    `progress` is told now and then how many virtual seconds have passed.
    """
    cluster, served, loads = _Cluster(costs, rules), [], []
    samples = _samples(requests)
    next_sample = next(samples)
    for request in requests:
        while next_sample <= request.at_s:
            cluster.advance(next_sample)
            loads.append(cluster.load(PROBE))
            next_sample = next(samples)
            progress(next_sample)
        cluster.advance(request.at_s)
        served.append(cluster.ask(request))
    while any(ring.next_s() < float("inf") for ring in cluster.rings):
        cluster.advance(min(ring.next_s() for ring in cluster.rings))
    return CacheOutcome(tuple(served), tuple(loads))


def _samples(requests: Sequence[CacheRequest]) -> Iterator[float]:
    at_s = requests[0].at_s if requests else 0.0
    while True:
        at_s += SAMPLE_S
        yield at_s
