"""A run: requests over two pools, or over nodes that do both."""

import math
from collections.abc import Sequence

from molink_sim.cache.trace import CacheRequest
from molink_sim.clock import Clock
from molink_sim.pools.cluster import Pools
from molink_sim.pools.mixed import MixedNode
from molink_sim.pools.setting import NodeCache, PooledRequest, PoolsOutcome, PoolsSetting


def serve(
    requests: Sequence[CacheRequest], setting: PoolsSetting, sample_s: float | None = None
) -> PoolsOutcome:
    """All requests, until the last answer has ended; the pools' loads each `sample_s` until the
    last request has come."""
    clock = Clock()
    outcome = PoolsOutcome([PooledRequest(*each) for each in enumerate(requests)])
    if setting.both:
        _arrivals_of_both(setting, clock, outcome)
    else:
        pools = Pools(setting, clock, outcome)
        for served in outcome.served:
            clock.at(served.request.at_s, pools.arrive, served)
        moments = int(requests[-1].at_s / sample_s) if sample_s else 0
        for moment in range(moments):
            clock.at(moment * (sample_s or 0.0), pools.sample)
    clock.run(math.inf)
    return outcome


def _arrivals_of_both(setting: PoolsSetting, clock: Clock, outcome: PoolsOutcome) -> None:
    nodes = [
        MixedNode(clock, NodeCache(setting.capacity_tokens), setting.rows_max, setting.chunk_tokens)
        for _ in range(setting.both)
    ]

    def arrive(served: PooledRequest) -> None:
        min(nodes, key=lambda node: node.cost(served)).take(served)

    for served in outcome.served:
        clock.at(served.request.at_s, arrive, served)
