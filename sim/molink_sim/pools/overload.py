"""Refusals of two pools at twice the pace, and how their loads swing (Mooncake, section 6).

By rooflines, ten nodes decode so fast that the paper's 0.1 s refuse nobody. So for refusals the gap
that is asked for is the one by which the baseline refuses as many as it does in the paper. Loads
swing where prompts are computed faster than their answers can be decoded: nine nodes and one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean, pstdev

from molink_scheduler.routing.admission import AdmissionPolicy, Targets
from molink_sim.cache.trace import CacheRequest
from molink_sim.pools.figures import Row, source
from molink_sim.pools.loads import LOADS, drawn, paced
from molink_sim.pools.serve import serve
from molink_sim.pools.setting import PoolsOutcome, PoolsSetting

PUBLISHED = {
    AdmissionPolicy.BASELINE: 4_183,
    AdmissionPolicy.EARLY: 3_771,
    AdmissionPolicy.PREDICTED: 3_589,
}
PUBLISHED_REQUESTS = 23_000

RATE_PER_S = 2 * 23_608 / 3600
"""Twice the pace of the paper's trace, 23,608 requests an hour."""

REQUESTS = 600
"""Requests of a seed's run: three quarters of a minute."""

TTFT_S = 30.0
SEARCHED = 12
"""Seeds on which the gap that is asked for is searched."""

GAPS_S = (0.0113, 0.06)
"""Bounds of the gap that is asked for."""

SWING_S, SWING_RATE, SWING_TARGETS = 300, 30.0, Targets(30.0, 0.03)
SETTLED_S = 60
"""Seconds of a run that fills the pools first."""


def rejections(
    decode: int, rate: float, seeds: int, trace: Sequence[CacheRequest] | None = None
) -> Iterator[Row]:
    """Refusals of eight prefill nodes and some that decode, by policy, over seeds."""
    loads = [source("real", REQUESTS, seed, trace)(rate) for seed in range(seeds)]
    gap_s = _asked_gap_s(loads[:SEARCHED], decode)
    baseline: list[int] = []
    for policy, published in PUBLISHED.items():
        outcomes = [_run(load, decode, gap_s, policy) for load in loads]
        refused = [one.refused() for one in outcomes]
        baseline = baseline or [max(1, one) for one in refused]
        ratios = [one / base for one, base in zip(refused, baseline, strict=True)]
        yield {
            "policy": str(policy),
            "gap asked for, ms": 1e3 * gap_s,
            "refused": f"{sum(refused) / sum(map(len, loads)):.1%}",
            "published": f"{published / PUBLISHED_REQUESTS:.1%}",
            "over baseline": f"{fmean(ratios):.2f} +- {pstdev(ratios):.2f}",
            "published over": f"{published / PUBLISHED[AdmissionPolicy.BASELINE]:.2f}",
            "seeds with fewer": f"{sum(one < 1 for one in ratios)} of {seeds}",
            "computed for nothing": f"{fmean(one.wasted_share for one in outcomes):.1%}",
        }


def _asked_gap_s(loads: Sequence[Sequence[CacheRequest]], decode: int) -> float:
    """The gap by which the baseline refuses the paper's share; less refuses more."""
    low, high = GAPS_S
    share = PUBLISHED[AdmissionPolicy.BASELINE] / PUBLISHED_REQUESTS
    for _ in range(8):
        middle = (low + high) / 2
        outcomes = [_run(load, decode, middle, AdmissionPolicy.BASELINE) for load in loads]
        if sum(one.refused() for one in outcomes) > share * sum(map(len, loads)):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _run(
    load: Sequence[CacheRequest], decode: int, gap_s: float, policy: AdmissionPolicy
) -> PoolsOutcome:
    return serve(load, PoolsSetting(8, decode, admission=policy, targets=Targets(TTFT_S, gap_s)))


def swing() -> Iterator[Row]:
    """Loads of nine prefill nodes and one that decodes, second by second, by policy; decode nodes
    take whom Conductor took."""
    naive = PoolsSetting(
        9, 1, admission=AdmissionPolicy.EARLY, targets=SWING_TARGETS, checks_again=False
    )
    uniform = replace(naive, admission=AdmissionPolicy.PREDICTED)
    policies = {
        "naive": naive,
        "predicted, all answers alike": uniform,
        "predicted, ends at random": replace(uniform, ends_at_random=True),
    }
    for varied in (LOADS["real"].varied, 0.3):
        load = replace(LOADS["real"], varied=varied)
        requests = paced(drawn(load, round(SWING_S * SWING_RATE), 0), SWING_RATE)
        for name, setting in policies.items():
            yield {"lengths vary by": f"{varied:g}", "policy": name} | _swing(
                serve(requests, setting, sample_s=1.0)
            )


def _swing(outcome: PoolsOutcome) -> dict[str, str | float]:
    loads = outcome.loads[SETTLED_S:]
    prefill, decode = [one.prefill for one in loads], [one.decode for one in loads]
    return {
        "refused": f"{outcome.refused() / len(outcome.served):.0%}",
        "decode load": f"{fmean(decode):.2f}",
        "its deviation": pstdev(decode),
        "least to most": f"{min(decode):.2f} to {max(decode):.2f}",
        "prefill's deviation": pstdev(prefill),
        "both together": f"{correlation(prefill, decode):+.2f}",
    }


def correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Pearson's; 0 where one side stands still."""
    middle_left, middle_right = fmean(left), fmean(right)
    spread = pstdev(left) * pstdev(right)
    pairs = zip(left, right, strict=True)
    common = fmean((one - middle_left) * (other - middle_right) for one, other in pairs)
    return common / spread if spread else 0.0
