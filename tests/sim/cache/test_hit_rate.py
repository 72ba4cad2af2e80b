import pytest

from molink_sim.cache.hit_rate import brute_force_lru, hit_rate
from molink_sim.cache.trace import read_cache_trace


@pytest.mark.parametrize("blocks", [1, 5, 20, 60, 150, 1000])
def test_the_tree_hits_as_often_as_a_list_of_single_blocks(trace, blocks):
    requests = read_cache_trace(trace)
    assert hit_rate(requests, blocks) == brute_force_lru(requests, blocks)


@pytest.mark.parametrize("order", ["lru", "lfu", "length-aware"])
def test_more_room_hits_more_up_to_what_the_trace_repeats(trace, order):
    requests = read_cache_trace(trace)
    rates = [hit_rate(requests, blocks, order) for blocks in (5, 60, None)]
    assert rates == sorted(rates) and rates[0] < rates[-1]
    seen, again = set(), 0
    for request in requests:
        numbers = [request.blocks[at : at + 4] for at in range(0, len(request.blocks), 4)]
        again += sum(number in seen for number in numbers)
        seen.update(numbers)
    assert rates[-1] == again / sum(one.block_count for one in requests)
