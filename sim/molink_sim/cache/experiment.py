"""Experiment of `molink sim cache`: rows of one table, each a plain mapping that goes to JSON
too."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean
from typing import Any

from molink.errors import UserError
from molink_scheduler.kv.eviction import EVICTION_ORDERS
from molink_scheduler.routing.admission import (
    TBT_PERCENTILE,
    TBT_PERCENTILE_MAX,
    TBT_PERCENTILE_MIN,
    AdmissionPolicy,
    Targets,
)
from molink_scheduler.routing.ring_choice import Routing
from molink_sim.cache.cluster import PAPER_NODES, paper_ring
from molink_sim.cache.hit_rate import brute_force_lru, hit_rate
from molink_sim.cache.search import (
    TPOT_TIMES,
    TTFT_TIMES,
    highest_rate,
    is_within,
    p90,
    quiet_targets,
)
from molink_sim.cache.serve import CacheOutcome, CacheRules, computed_tokens, serve
from molink_sim.cache.trace import BLOCK_TOKENS, CacheRequest, at_rate, rate_per_s, within
from molink_sim.even_ring import even_ring
from molink_sim.scenario import LinkSpec, RingSpec

HOME_RINGS, HOME_STAGES = 4, 4

RINGS_MAX = 64
"""All rings are asked about each request: more take minutes."""

MBPS_MIN, MBPS_MAX = 0.1, 1e6
LATENCY_MS_MAX = 60_000.0
"""Slower links than a modem's, or to the moon and back, make times that no figure holds."""

OVERLOAD_TIMES = 2.0
"""Multiple of the rate that is held: Mooncake plays its trace twice as fast."""

CAPACITIES_BLOCKS = (1_000, 3_000, 5_859, 10_000, 30_000, 50_000, 100_000, None)
"""Mooncake's, and a node's 3 M tokens; None: all fit."""

MILLISECONDS = 1e-3

Row = Mapping[str, Any]
Progress = Callable[[], None]


@dataclass(frozen=True, slots=True)
class CacheSetting:
    """Rings and rules of an experiment. Raises UserError for what cannot be."""

    shape: str = "home"
    """Shape of the cluster. `home`: rings of PCs; `paper`: prefill nodes of Mooncake's cluster."""
    rings: int | None = None
    """Number of rings; None: four, or as many as the paper's nodes make."""
    model: str = "llama-3-8b"
    gpu: str = "rtx4090"
    stages: int | None = None
    """Stages of each ring; None: four, or one of the paper's nodes."""
    bandwidth_mbps: float = 100.0
    latency_ms: float = 30.0
    capacity_tokens: int | None = None
    """Cached tokens that each ring has room for; None: what its memory has room for."""
    routings: tuple[str, ...] = ("random", "load", "cache", "molink")
    admission: str = "accept"
    rate: float | None = None
    """Requests per second over all rings; None: the trace's own."""
    ttft_times: float = TTFT_TIMES
    tpot_times: float = TPOT_TIMES
    """Multiple of the quiet time per token that a request is to get."""
    tbt_times: float | None = None
    """Multiple of it that most gaps between a request's tokens are to be within; None: any."""
    tbt_percentile: float = TBT_PERCENTILE
    """Percentile of its gaps that are."""
    seed: int = 0
    prompt_order: str = "shortest"
    """Order in which prompts are computed: `shortest` or `fifo`."""

    def __post_init__(self) -> None:
        unknown = [one for one in self.routings if one not in set(Routing)]
        if unknown or not self.routings:
            raise UserError(f"--routing takes {', '.join(Routing)}: got {', '.join(unknown)!r}.")
        if self.rings is not None and not 1 <= self.rings <= RINGS_MAX:
            raise UserError(f"--rings takes 1 to {RINGS_MAX}, got {self.rings}.")
        if self.stages is not None and self.stages < 1:
            raise UserError(f"--stages takes 1 or more stages, got {self.stages}.")
        if self.shape == "paper" and PAPER_NODES % (self.stages or 1):
            raise UserError(f"--stages of --shape paper takes 1, 2, 4 or 8, got {self.stages}.")
        if self.capacity_tokens is not None and self.capacity_tokens < BLOCK_TOKENS:
            raise UserError(f"--capacity-tokens takes {BLOCK_TOKENS} or more.")
        if not MBPS_MIN <= self.bandwidth_mbps <= MBPS_MAX:
            given = f"{self.bandwidth_mbps:g}"
            raise UserError(f"--bandwidth-mbps takes {MBPS_MIN:g} to {MBPS_MAX:g}, got {given}.")
        if not 0 <= self.latency_ms <= LATENCY_MS_MAX:
            raise UserError(f"--latency-ms takes 0 to {LATENCY_MS_MAX:g}, got {self.latency_ms:g}.")
        if self.rate is not None and not 0 < self.rate < inf:
            raise UserError(f"--rate takes a number above 0, got {self.rate:g}.")
        if not (0 < self.ttft_times < inf and 0 < self.tpot_times < inf):
            raise UserError("--ttft-times and --tpot-times take numbers above 0.")
        if self.tbt_times is not None and not 0 < self.tbt_times < inf:
            raise UserError(f"--tbt-times takes a number above 0, got {self.tbt_times:g}.")
        if not TBT_PERCENTILE_MIN <= self.tbt_percentile <= TBT_PERCENTILE_MAX:
            bounds = f"{TBT_PERCENTILE_MIN:g} to {TBT_PERCENTILE_MAX:g}"
            raise UserError(f"--tbt-percentile takes {bounds}, got {self.tbt_percentile:g}.")

    def specs(self) -> list[RingSpec]:
        """Descriptions of the rings that requests are sent to."""
        if self.shape == "paper":
            stages = self.stages or 1
            one = paper_ring(stages, self.capacity_tokens)
            return [one] * (self.rings or PAPER_NODES // stages)
        link = LinkSpec(self.bandwidth_mbps, self.latency_ms * MILLISECONDS)
        stages = self.stages or HOME_STAGES
        most = self.capacity_tokens
        ring = even_ring(self.model, self.gpu, stages, link, kv_tokens_max=most)
        return [ring] * (self.rings or HOME_RINGS)


@dataclass(frozen=True, slots=True)
class _Experiment:
    """A setting, the requests that fit it, and what they are to get."""

    setting: CacheSetting
    requests: Sequence[CacheRequest]
    rings: Sequence[RingSpec]
    targets: Targets

    @classmethod
    def of(cls, setting: CacheSetting, requests: Sequence[CacheRequest]) -> "_Experiment":
        rings = setting.specs()
        capacity_tokens = min(stage.kv_tokens for stage in rings[0].stages)
        if setting.shape == "paper":
            requests = [replace(one, output_tokens=1) for one in requests]
        fitting = within(requests, capacity_tokens // BLOCK_TOKENS * BLOCK_TOKENS)
        gaps = setting.tbt_times, setting.tbt_percentile
        times = setting.ttft_times, setting.tpot_times, *gaps
        return cls(setting, fitting, rings, quiet_targets(fitting, rings[0], *times))

    @property
    def mean_targets(self) -> Targets:
        """The targets but for that of gaps."""
        return replace(self.targets, tbt_s=None)

    def run(
        self,
        rate: float,
        routing: str,
        admission: AdmissionPolicy,
        promised: Targets | None = None,
    ) -> CacheOutcome:
        """What comes of the trace where rings refuse by `promised`, usually all targets."""
        setting = self.setting
        requests = at_rate(self.requests, rate, setting.seed)
        order = setting.prompt_order
        rules = CacheRules(routing, admission, promised or self.targets, setting.seed, order)
        return serve(requests, self.rings, rules)

    def held(self, routing: str) -> tuple[float, CacheOutcome | None]:
        found = highest_rate(
            lambda rate: self.run(rate, routing, AdmissionPolicy.ACCEPT),
            lambda outcome: is_within(outcome, self.targets),
        )
        return found.rate_per_s, found.outcome

    def row(self, outcome: CacheOutcome, **where: Any) -> Row:
        begun = [one for one in outcome.served if one.token_times_s]
        return {
            **where,
            "requests": len(outcome.served),
            "refused": sum(one.refused for one in outcome.served),
            "met_targets": outcome.good(self.targets),
            "met_but_for_gaps": outcome.good(self.mean_targets),
            "hit_rate": outcome.hit_rate,
            "ttft_mean_s": fmean([one.ttft_s for one in begun]) if begun else 0.0,
            "ttft_p90_s": p90(outcome.ttfts_s),
            "tpot_p90_s": p90(outcome.tpots_s),
            "tbt_p90_s": p90(outcome.tbts_s(self.targets.tbt_percentile)),
            "computed_tokens": sum(computed_tokens(one) for one in outcome.served),
            "wasted_tokens": outcome.wasted_tokens(self.targets),
        }


def rows_of(
    shown: str,
    setting: CacheSetting,
    requests: Sequence[CacheRequest],
    done: Progress = lambda: None,
) -> Iterator[Row]:
    """The rows of what is shown, one of `SHOWN`; `done` is called after each.

    Raises UserError when rings cannot be, or hold no request of the trace.
    """
    for row in SHOWN[shown](setting, requests):
        done()
        yield row


def _hit_rates(setting: CacheSetting, requests: Sequence[CacheRequest]) -> Iterator[Row]:
    for blocks in CAPACITIES_BLOCKS:
        rates = {order: hit_rate(requests, blocks, order) for order in EVICTION_ORDERS}
        everything = sum(one.block_count for one in requests)
        by_brute_force = brute_force_lru(requests, blocks or everything)
        yield {"blocks": blocks or "all", **rates, "lru_by_brute_force": by_brute_force}


def _runs(setting: CacheSetting, requests: Sequence[CacheRequest]) -> Iterator[Row]:
    experiment = _Experiment.of(setting, requests)
    rate = setting.rate or rate_per_s(experiment.requests)
    _check_rate(experiment, rate)
    for routing in setting.routings:
        outcome = experiment.run(rate, routing, AdmissionPolicy(setting.admission))
        yield experiment.row(outcome, routing=routing, rate_per_s=rate)


def _held_rates(setting: CacheSetting, requests: Sequence[CacheRequest]) -> Iterator[Row]:
    experiment = _Experiment.of(setting, requests)
    for routing in setting.routings:
        rate, outcome = experiment.held(routing)
        if outcome is not None:
            yield experiment.row(outcome, routing=routing, rate_per_s=rate)


def _overload(setting: CacheSetting, requests: Sequence[CacheRequest]) -> Iterator[Row]:
    """Rows at twice the rate that is held with the last of the routings, or the rate that is
    given; with a target of gaps also where requests are refused by the others alone."""
    experiment, routing = _Experiment.of(setting, requests), setting.routings[-1]
    rate = setting.rate or OVERLOAD_TIMES * experiment.held(routing)[0]
    if not rate:
        raise UserError("these rings hold no rate of the trace: give them less to do, or --rate")
    _check_rate(experiment, rate)
    for admission in AdmissionPolicy:
        outcome = experiment.run(rate, routing, admission)
        yield experiment.row(outcome, admission=str(admission), rate_per_s=rate)
    if experiment.targets.tbt_s is not None:
        by_mean = AdmissionPolicy.PREDICTED, experiment.mean_targets
        outcome = experiment.run(rate, routing, *by_mean)
        yield experiment.row(outcome, admission="predicted, by means", rate_per_s=rate)


def _check_rate(experiment: _Experiment, rate: float) -> None:
    if not at_rate(experiment.requests, rate, experiment.setting.seed):
        raise UserError(f"at {rate:g} requests per second none of the trace is left: raise --rate")


SHOWN: Mapping[str, Callable[[CacheSetting, Sequence[CacheRequest]], Iterator[Row]]] = {
    "runs": _runs,
    "hit-rate": _hit_rates,
    "held-rate": _held_rates,
    "overload": _overload,
}
"""Rows by the names that `--show` takes."""
