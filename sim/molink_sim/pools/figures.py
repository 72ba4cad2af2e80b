"""Mooncake's figures 9 to 11, its scheduling comparison, and the lines that pools need.

A rate is held where nine in ten requests have their first token and nine in ten their mean gap
within the targets, and prompts are computed as fast as they come. For figures 9 and 10 these are
ten and five times what nine in ten have alone on a node without a cache; for figure 11, 30 s and
0.1 s.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

from molink_scheduler.routing.admission import Targets
from molink_scheduler.units import GB
from molink_sim.cache.search import TPOT_TIMES, TTFT_TIMES, highest_rate, p90
from molink_sim.cache.trace import CacheRequest, at_rate
from molink_sim.pools.loads import LOADS, drawn, paced
from molink_sim.pools.node import KV_TOKEN_BYTES, prefill_s, step_s, worth_fetching_bytes_per_s
from molink_sim.pools.serve import serve
from molink_sim.pools.setting import POLICIES, PoolsOutcome, PoolsSetting

Row = Mapping[str, str | float]
At = Callable[[float], Sequence[CacheRequest]]
"""The requests of a load at a rate."""

REQUESTS = 600
REAL_TARGETS = Targets(30.0, 0.1)
"""Figure 11's."""

GBPS = GB / 8
LINES: Mapping[str, float] = {
    "1 Gbit/s": GBPS,
    "10 Gbit/s": 10 * GBPS,
    "25 Gbit/s": 25 * GBPS,
    "100 Gbit/s": 100 * GBPS,
    "87 GB/s": 87e9,
}

PEAKS: Mapping[str, float] = {"8 A800": 8 * 312e12, "8 H800": 8 * 989e12}


@dataclass(frozen=True, slots=True)
class Rival:
    """Nodes of both roles that pools are compared with."""

    name: str
    setting: PoolsSetting


def rivals(nodes: int) -> list[Rival]:
    """The paper's vLLM as far as it is described, and what later versions have more: prefix caches,
    and besides those prompts in chunks of 2,048."""
    return [
        Rival("no cache", PoolsSetting(both=nodes, capacity_tokens=0)),
        Rival("own caches", PoolsSetting(both=nodes)),
        Rival("in chunks", PoolsSetting(both=nodes, chunk_tokens=2_048)),
    ]


def alone(requests: Sequence[CacheRequest], gap_s: float | None = None) -> Targets:
    """Targets by what nine in ten have alone on a node without a cache; or this gap."""
    firsts_s = [prefill_s(one.input_tokens, 0) for one in requests]
    gaps_s = [step_s(1, one.input_tokens + one.output_tokens / 2) for one in requests]
    return Targets(TTFT_TIMES * p90(firsts_s), gap_s or TPOT_TIMES * p90(gaps_s))


def source(load: str, count: int, seed: int, trace: Sequence[CacheRequest] | None = None) -> At:
    """A load at any rate: drawn, or the first requests of a trace."""
    if trace is not None:
        return lambda rate: at_rate(trace, rate, seed)[:count]
    requests = drawn(LOADS[load], count, seed)
    return lambda rate: paced(requests, rate)


@dataclass(frozen=True, slots=True)
class _Steady:
    """A run that counts as within no target where more prompts came than could be computed: a long
    enough run would not be."""

    outcome: PoolsOutcome
    nodes: int

    @property
    def ttfts_s(self) -> Sequence[float]:
        served = self.outcome.served
        work_s = sum(prefill_s(one.request.input_tokens, one.cached_tokens) for one in served)
        is_steady = work_s <= self.nodes * served[-1].request.at_s
        return self.outcome.ttfts_s if is_steady else [inf]

    @property
    def tpots_s(self) -> Sequence[float]:
        return self.outcome.tpots_s


def held(at: At, setting: PoolsSetting, targets: Targets) -> tuple[float, PoolsOutcome | None]:
    """The highest rate that these nodes hold, and what came at it."""
    nodes = setting.prefill or setting.both
    found = highest_rate(lambda rate: _Steady(serve(at(rate), setting), nodes), targets)
    return found.rate_per_s, None if found.outcome is None else found.outcome.outcome


def _compared(
    load: str,
    pools: PoolsSetting,
    others: Sequence[Rival],
    published: str,
    at: At,
    targets: Targets,
) -> Iterator[Row]:
    """A row of the pools, and one of each rival."""
    ours, outcome = held(at, pools, targets)
    yield {"load": load, "nodes": pools.name, **_held_cells(ours, outcome), "published": ""}
    for number, rival in enumerate(others):
        rate, outcome = held(at, rival.setting, targets)
        yield {
            "load": load,
            "nodes": f"{rival.setting.name}, {rival.name}",
            **_held_cells(rate, outcome),
            "pools over it": f"{ours / rate - 1:+.0%}" if rate else "-",
            "published": "" if number else published,
        }


def _held_cells(rate: float, outcome: PoolsOutcome | None) -> Row:
    cells: dict[str, str | float] = {"held, req./s": rate}
    if outcome is not None:
        cells["TTFT p90, s"] = p90(outcome.ttfts_s)
        cells["gap p90, ms"] = 1e3 * p90(outcome.tpots_s)
        cells["cached"] = outcome.cached_share
    cells["pools over it"] = ""
    return cells


def figure_9(gap_s: float | None = None) -> Iterator[Row]:
    """ArXiv and L-Eval, three prefill nodes and one that decodes against four of both."""
    for load, published in (("ArXiv", "+20 %"), ("L-Eval", "+40 %")):
        at = source(load, REQUESTS, 0)
        targets = alone(at(1.0), gap_s)
        yield from _compared(load, PoolsSetting(3, 1), rivals(4), published, at, targets)


def figure_10(gap_s: float | None = None) -> Iterator[Row]:
    """Prompts of 16,000 to 128,000 tokens; the paper's vLLM computes one request at a time."""
    single = PoolsSetting(both=4, capacity_tokens=0, rows_max=1)
    others = [Rival("one at a time", single), *rivals(4)[:2]]
    published = {"16k": "+50 to 525 %", "32k": "", "64k": "", "128k": ""}
    for load, value in published.items():
        at = source(load, REQUESTS // 2, 0)
        targets = alone(at(1.0), gap_s)
        yield from _compared(load, PoolsSetting(3, 1), others, value, at, targets)


def figure_11(trace: Sequence[CacheRequest] | None = None) -> Iterator[Row]:
    """The real load, ten and ten nodes against twenty of both: rates held, and who meets 0.1 s."""
    pools, at = PoolsSetting(10, 10), source("real", REQUESTS, 0, trace)
    yield from _compared("real", pools, rivals(20), "+75 %", at, REAL_TARGETS)


def under_target(trace: Sequence[CacheRequest] | None = None) -> Iterator[Row]:
    """Shares of requests whose mean gap is within figure 11's target, by rate."""
    at = source("real", REQUESTS, 0, trace)
    named = {"10P+10D": PoolsSetting(10, 10)}
    named |= {f"20M, {one.name}": one.setting for one in rivals(20)}
    for rate in (8.0, 10.0, 12.0, 14.0, 16.0):
        row: dict[str, str | float] = {"req./s": f"{rate:g}"}
        for name, setting in named.items():
            gaps_s = serve(at(rate), setting).tpots_s
            row[name] = f"{fmean(one <= (REAL_TARGETS.tpot_s or 0) for one in gaps_s):.0%}"
        yield row | {"published": "100 % and 57 %, rate not told" if rate == 14 else ""}


def scheduling(trace: Sequence[CacheRequest]) -> Iterator[Row]:
    """Mean times to the first token of a trace by policy (FAST'25, figure 5), at its own pace."""
    published = dict(zip(POLICIES, (19.65, 5.27, 3.58, 3.07), strict=True))
    for policy in POLICIES:
        outcome = serve(trace, PoolsSetting(8, 8, policy=policy))
        yield {
            "policy": policy,
            "TTFT mean, s": fmean(outcome.ttfts_s),
            "p90, s": p90(outcome.ttfts_s),
            "cached": outcome.cached_share,
            "copied, GB": sum(one.copied_tokens for one in outcome.served) * KV_TOKEN_BYTES / GB,
            "published mean, s": published[policy],
        }


def worth_fetching() -> Iterator[Row]:
    """GB a second from which a cached prefix comes sooner over a line than it is computed."""
    for tokens, published in ((1_024, ""), (8_192, "6 and 19"), (32_768, ""), (131_072, "")):
        rates = {
            f"{name}, GB/s": worth_fetching_bytes_per_s(tokens, peak) / GB
            for name, peak in PEAKS.items()
        }
        yield {"prefix, tokens": f"{tokens:,}", **rates, "published": published}


def lines() -> Iterator[Row]:
    """Rates held by three and one nodes over lines of several rates, over those of four of both
    with their own caches; and what KV takes of cards that compute prompts."""
    for load in ("ArXiv", "L-Eval"):
        at = source(load, REQUESTS // 2, 0)
        targets = alone(at(1.0))
        own, _ = held(at, PoolsSetting(both=4), targets)
        for name, rate in LINES.items():
            ours, outcome = held(at, PoolsSetting(3, 1, line_bytes_per_s=rate), targets)
            row: dict[str, str | float] = {"load": load, "line": name, "held, req./s": ours}
            row["over 4M"] = f"{ours / own - 1:+.0%}" if own else "-"
            if outcome is not None:
                row["KV by layers / whole"] = outcome.occupied_byte_s / outcome.whole_byte_s
            yield row
