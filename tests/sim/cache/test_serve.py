from math import inf

import pytest

from molink_scheduler.routing.admission import AdmissionPolicy, Targets
from molink_scheduler.routing.ring_choice import Routing
from molink_scheduler.token_ids import token_bytes
from molink_sim.cache.cluster import paper_ring
from molink_sim.cache.search import highest_rate, is_within, quiet_targets
from molink_sim.cache.serve import CacheRules, computed_tokens, serve, tbt_s, tpot_s
from molink_sim.cache.trace import BLOCK_TOKENS, CacheRequest, at_rate, read_cache_trace
from molink_sim.even_ring import even_ring
from molink_sim.scenario import LinkSpec

LINK = LinkSpec(100.0, 0.03)


def request(at_s, blocks, output_tokens=1):
    return CacheRequest(at_s, BLOCK_TOKENS * len(blocks), output_tokens, token_bytes(blocks))


def ring(capacity_tokens=None):
    return even_ring("llama-3-8b", "rtx4090", 2, LINK, kv_tokens_max=capacity_tokens)


def test_a_second_turn_computes_what_is_new():
    turns = [request(0, range(8)), request(100, range(10))]
    first, second = serve(turns, [ring()], CacheRules()).served
    assert computed_tokens(first) == 8 * BLOCK_TOKENS
    assert computed_tokens(second) == 2 * BLOCK_TOKENS
    assert second.ttft_s < 0.5 * first.ttft_s
    without = serve(turns, [ring()], CacheRules(caches=False)).served
    assert computed_tokens(without[1]) == 10 * BLOCK_TOKENS


def test_of_a_cached_prompt_the_last_block_of_the_product_is_computed():
    same = [request(at_s, range(4)) for at_s in (0, 100)]
    assert computed_tokens(serve(same, [ring()], CacheRules()).served[1]) == 16


@pytest.mark.parametrize("admission", AdmissionPolicy)
def test_short_prompts_pass_only_where_nothing_was_promised(admission):
    prompts = [request(0, range(8)), request(0.01, range(10, 30)), request(0.02, range(100, 102))]
    rules = CacheRules(admission=admission, targets=Targets(ttft_s=1e6))
    _, long, short = serve(prompts, [ring()], rules).served
    assert (short.ttft_s < long.ttft_s) == (admission is AdmissionPolicy.ACCEPT)


def test_unused_blocks_make_room_and_used_ones_do_not():
    few = ring(capacity_tokens=10 * BLOCK_TOKENS)
    turns = [request(0, range(8), 500), request(0.1, range(20, 28)), request(500, range(8))]
    long, waits, again = serve(turns, [few], CacheRules()).served
    assert waits.token_times_s[0] > long.token_times_s[-1]
    assert computed_tokens(again) > 16


@pytest.mark.parametrize("routing", Routing)
def test_everything_ends_the_same_each_time(trace, routing):
    requests = read_cache_trace(trace)[:16]
    rings = [paper_ring(1, 40_000)] * 2
    outcome = serve(requests, rings, CacheRules(routing, seed=1))
    assert len(outcome.served) == len(requests) and max(outcome.ttfts_s) < inf
    assert 0 < outcome.hit_rate < 1
    assert serve(requests, rings, CacheRules(routing, seed=1)).ttfts_s == outcome.ttfts_s


def test_knowing_the_cache_computes_less():
    requests = [
        request(100.0 * turn + 0.05 * place, range(100 * talk, 100 * talk + 2 * turn + 2))
        for turn in range(4)
        for place, talk in enumerate([(one + turn) % 6 for one in range(6)])
    ]
    rings = [ring()] * 2
    hits = {name: serve(requests, rings, CacheRules(name)).hit_rate for name in ("load", "molink")}
    assert hits["molink"] > 1.3 * hits["load"]


def crowd_of(count, every_s, answer_tokens):
    return [request(every_s * one, [100 + one, 1, 2], answer_tokens) for one in range(count)]


def test_refusing_early_serves_more_in_time():
    crowd, targets = crowd_of(40, 0.2, 8), Targets(ttft_s=6.0)
    plain, early = (
        serve(crowd, [ring()], CacheRules(admission=AdmissionPolicy(name), targets=targets))
        for name in ("accept", "predicted")
    )
    assert early.good(targets) > plain.good(targets)
    assert early.wasted_tokens(targets) < plain.wasted_tokens(targets)
    assert any(one.refused and not computed_tokens(one) for one in early.served)


def test_prompts_of_which_no_answer_comes_are_counted_as_for_nothing():
    targets = Targets(tpot_s=0.07)
    rules = CacheRules(admission=AdmissionPolicy.BASELINE, targets=targets)
    outcome = serve(crowd_of(20, 0.1, 100), [ring()], rules)
    dropped = [one for one in outcome.served if one.refused]
    assert dropped and all(computed_tokens(one) for one in dropped)
    assert all(len(one.token_times_s) < 100 for one in dropped)
    assert outcome.wasted_tokens(targets) >= sum(computed_tokens(one) for one in dropped)


def test_answers_with_a_long_gap_are_not_good_though_their_mean_is():
    """Prompts that come beside an answer hold a gap of it up, and hardly its mean."""
    crowd = [*crowd_of(1, 0, 60), *(request(0.5 + one, range(20, 28)) for one in range(3))]
    outcome = serve(crowd, [ring()], CacheRules(caches=False))
    mean_s, longest_s = tpot_s(outcome.served[0]), tbt_s(outcome.served[0], 99.9)
    assert longest_s > 1.05 * mean_s and tbt_s(outcome.served[0], 50) <= mean_s
    assert outcome.good(Targets(tpot_s=1.03 * mean_s)) == 4
    assert outcome.good(Targets(tpot_s=1.03 * mean_s, tbt_s=1.03 * mean_s)) == 3


def test_rings_that_promise_gaps_refuse_who_would_make_them_long():
    crowd, targets = crowd_of(60, 1.0, 60), Targets(tbt_s=0.09)
    plain, predicted = (
        serve(crowd, [ring()], CacheRules(admission=AdmissionPolicy(name), targets=targets))
        for name in ("accept", "predicted")
    )
    assert any(one.refused for one in predicted.served)
    assert predicted.good(targets) > plain.good(targets)


def test_quiet_times_are_those_of_the_request_that_nine_in_ten_are_no_larger_than():
    requests = [request(10.0 * one, range(one, 2 * one + 1), 4) for one in range(10)]
    targets = quiet_targets(requests, ring(), 1.0, 1.0)
    alone = serve([request(0, range(8, 17), 4)], [ring()], CacheRules(caches=False)).served[0]
    assert targets == Targets(alone.ttft_s, tpot_s(alone))


def test_the_highest_rate_is_where_the_targets_end(trace):
    requests, rings = read_cache_trace(trace)[:20], [paper_ring(1)]
    requests = [CacheRequest(one.at_s, one.input_tokens, 1, one.blocks) for one in requests]
    targets = quiet_targets(requests, rings[0], 2.0)

    def run(rate):
        return serve(at_rate(requests, rate, 0), rings, CacheRules("load"))

    held = highest_rate(run, lambda outcome: is_within(outcome, targets))
    assert 0 < held.rate_per_s < 64 and held.outcome is not None
    beyond = run(1.5 * held.rate_per_s)
    assert sorted(beyond.ttfts_s)[int(0.9 * len(beyond.ttfts_s))] > targets.ttft_s
