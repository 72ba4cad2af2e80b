"""Drawn loads have the means of Mooncake's Table 1, and its share of cached tokens."""

from statistics import fmean

import pytest

from molink_sim.cache.trace import BLOCK_TOKENS
from molink_sim.pools.loads import LOADS, drawn, paced
from molink_sim.pools.setting import NodeCache

CACHED = {"ArXiv": 0.0, "L-Eval": 0.81, "16k": 0.5, "128k": 0.5, "real": 0.5}


@pytest.mark.parametrize("name", CACHED)
def test_means_and_shares_are_the_tables(name):
    load, cache = LOADS[name], NodeCache(10**12)
    requests, cached = drawn(load, 2_000, seed=3), 0
    for one in requests:
        cached += cache.cached_tokens(one)
        cache.keep(one)
        assert len(one.blocks) == 4 * -(-one.input_tokens // BLOCK_TOKENS)
    tokens = sum(one.input_tokens for one in requests)
    assert tokens / len(requests) == pytest.approx(load.prompt_tokens, rel=0.1)
    answers = fmean(one.output_tokens for one in requests)
    assert answers == pytest.approx(load.answer_tokens, rel=0.1)
    assert cached / tokens == pytest.approx(CACHED[name], abs=0.05)


def test_a_seed_says_it_all_and_a_pace_changes_only_times():
    requests = drawn(LOADS["real"], 50, seed=1)
    assert requests == drawn(LOADS["real"], 50, seed=1) != drawn(LOADS["real"], 50, seed=2)
    faster = paced(requests, 4.0)
    assert [one.at_s * 4 for one in faster] == pytest.approx([one.at_s for one in requests])
    assert [one.blocks for one in faster] == [one.blocks for one in requests]


def test_a_full_cache_drops_the_oldest():
    requests = drawn(LOADS["ArXiv"], 40, seed=0)
    cache = NodeCache(100_000)
    for one in requests:
        cache.keep(one)
        assert cache.tree.blocks <= 100_000 // BLOCK_TOKENS
    assert cache.cached_tokens(requests[-1]) == requests[-1].input_tokens - 1
    assert cache.cached_tokens(requests[0]) == 0
