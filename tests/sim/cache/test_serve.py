from dataclasses import replace
from math import inf

import pytest

from molink_scheduler.routing.admission import AdmissionPolicy, Targets
from molink_scheduler.token_ids import token_bytes
from molink_sim.cache.cluster import PaperNode, home_ring, paper_ring, paper_ring_spec
from molink_sim.cache.search import highest_rate, quiet_targets
from molink_sim.cache.serve import ROUTINGS, CacheRules, serve
from molink_sim.cache.trace import BLOCK_TOKENS, CacheRequest, at_rate, read_cache_trace
from molink_sim.even_ring import even_ring
from molink_sim.scenario import LinkSpec, RequestArrival, Scenario
from molink_sim.simulate import World
from molink_sim.systems import system_named
from tests.sweeps import swept

LINK = LinkSpec(100.0, 0.03)
MODEL, GPU, STAGES = "llama-3-8b", "rtx4090", 4


def request(at_s, blocks, output_tokens=1):
    return CacheRequest(at_s, BLOCK_TOKENS * len(blocks), output_tokens, token_bytes(blocks))


def ring(capacity_tokens=None):
    return home_ring(MODEL, GPU, STAGES, LINK, capacity_tokens)


def test_a_second_turn_computes_what_is_new():
    turns = [request(0, range(8)), request(100, range(10))]
    first, second = serve(turns, [ring()], CacheRules()).served
    assert first.computed_tokens == 8 * BLOCK_TOKENS
    assert second.computed_tokens == 2 * BLOCK_TOKENS
    assert second.ttft_s < 0.5 * first.ttft_s


def test_the_last_token_of_a_cached_prompt_is_computed():
    same = [request(at_s, range(4)) for at_s in (0, 100)]
    assert serve(same, [ring()], CacheRules()).served[1].computed_tokens == 1


def test_what_waits_behind_a_prompt_waits_for_it():
    together = [request(0, range(8)), request(0, range(20, 28))]
    first, second = serve(together, [ring()], CacheRules()).served
    alone = first.ttft_s - ring().prefill(0, 8 * BLOCK_TOKENS).fill_s
    assert second.ttft_s == pytest.approx(first.ttft_s + alone, rel=0.01)


def test_a_short_prompt_leaves_the_ring_behind_the_long_one_before_it():
    cost = paper_ring(8)
    long, short = serve([request(0, range(100)), request(0, [200])], [cost], CacheRules()).served
    own_s = cost.prefill(0, BLOCK_TOKENS).stage_s
    assert short.ttft_s == pytest.approx(long.ttft_s + own_s)
    alone = serve([request(0, [200])], [cost], CacheRules()).served[0].ttft_s
    assert alone > cost.prefill(0, BLOCK_TOKENS).stage_s > cost.prefill(0, 1).stage_s > 0


def test_what_an_answer_filled_is_cached_with_its_end():
    asked = request(0, range(4), output_tokens=2 * BLOCK_TOKENS)
    asked = replace(asked, answer=token_bytes([4, 5]))
    under_way, after = request(20, range(7)), request(1000, range(7))
    first, second = serve([asked, under_way], [ring()], CacheRules()).served
    assert second.first_token_s < first.ended_s < 1000
    assert second.computed_tokens == 3 * BLOCK_TOKENS
    assert serve([asked, after], [ring()], CacheRules()).served[1].computed_tokens == BLOCK_TOKENS


@pytest.mark.parametrize("admission", AdmissionPolicy)
def test_short_prompts_pass_only_where_nothing_was_promised(admission):
    prompts = [request(0, range(8)), request(0, range(10, 90)), request(0, range(100, 102))]
    rules = CacheRules(admission=admission, targets=Targets(ttft_s=1e6))
    _, long, short = serve(prompts, [ring()], rules).served
    assert (short.ttft_s < long.ttft_s) == (admission is AdmissionPolicy.ACCEPT)


def test_unused_blocks_make_room_and_used_ones_do_not():
    cost = ring(capacity_tokens=10 * BLOCK_TOKENS)
    turns = [request(0, range(8), 500), request(0, range(20, 28)), request(500, range(8))]
    long, waits, again = serve(turns, [cost], CacheRules()).served
    assert waits.first_token_s > long.ended_s
    assert again.computed_tokens > 1


@pytest.mark.parametrize("routing", ROUTINGS)
def test_everything_ends_the_same_each_time(trace, routing):
    requests = read_cache_trace(trace)
    outcome = serve(requests, [PaperNode(40_000)] * 3, CacheRules(routing, seed=1))
    assert len(outcome.served) == len(requests) and max(outcome.ttfts_s) < inf
    assert 0 < outcome.hit_rate < 1
    again = serve(requests, [PaperNode(40_000)] * 3, CacheRules(routing, seed=1))
    assert again.ttfts_s == outcome.ttfts_s


def test_knowing_the_cache_computes_less(trace):
    requests, costs = read_cache_trace(trace), [ring()] * 4
    hits = {name: serve(requests, costs, CacheRules(name)).hit_rate for name in ("load", "molink")}
    assert hits["molink"] > 1.3 * hits["load"]


def test_refusing_early_serves_more_in_time(long_trace):
    requests, costs = read_cache_trace(long_trace), [ring()]
    targets = quiet_targets(requests, costs[0])
    crowd = at_rate(requests, 2.0, 0)
    plain, early = (
        serve(crowd, costs, CacheRules(admission=AdmissionPolicy(name), targets=targets))
        for name in ("accept", "predicted")
    )
    assert early.good(targets) > plain.good(targets)
    assert early.wasted_tokens(targets) < plain.wasted_tokens(targets)
    assert any(one.refused and not one.computed_tokens for one in early.served)


def test_prompts_of_which_no_answer_comes_are_counted_as_for_nothing():
    crowd = [request(0.1 * number, [100 + number, 1, 2], 400) for number in range(30)]
    targets = Targets(tpot_s=0.16)
    outcome = serve(
        crowd, [ring()], CacheRules(admission=AdmissionPolicy.BASELINE, targets=targets)
    )
    dropped = [one for one in outcome.served if one.refused]
    assert dropped and all(one.computed_tokens for one in dropped)
    assert outcome.wasted_tokens(targets) >= sum(one.computed_tokens for one in dropped)


def test_the_highest_rate_is_where_the_targets_end(trace):
    requests, costs = read_cache_trace(trace), [ring()]
    targets = quiet_targets(requests, costs[0])

    def run(rate):
        return serve(at_rate(requests, rate, 0), costs, CacheRules("load"))

    held = highest_rate(run, targets)
    assert 0 < held.rate_per_s < 64 and held.outcome is not None
    beyond = run(1.5 * held.rate_per_s)
    assert sorted(beyond.ttfts_s)[int(0.9 * len(beyond.ttfts_s))] > targets.ttft_s


@pytest.mark.parametrize(
    "asked",
    [[(0.0, 4000, 60)], [(0.0, 1500, 100)] * 4, [(2.0 * n, 1000, 80) for n in range(6)]],
)
def test_the_coarse_ring_is_near_the_one_with_every_batch(asked):
    spec = even_ring(MODEL, GPU, STAGES, LINK)
    world = World(
        Scenario((spec,), [RequestArrival(*one) for one in asked], system_named("molink"), 60.0)
    )
    world.run()
    fine = [one.token_times_s for one in world.coordinator.requests]
    requests = [
        CacheRequest(at_s, tokens, answer, token_bytes(range(100 * number, 100 * number + 8)))
        for number, (at_s, tokens, answer) in enumerate(asked)
    ]
    coarse = serve(requests, [ring()], CacheRules()).served
    first = sum(times[0] - one[0] for times, one in zip(fine, asked, strict=True))
    assert sum(one.ttft_s for one in coarse) == pytest.approx(first, rel=0.1)
    each = sum((times[-1] - times[0]) / (len(times) - 1) for times in fine)
    assert sum(one.tpot_s for one in coarse) == pytest.approx(each, rel=0.1)


@pytest.mark.parametrize("stages", swept([2, 8], 2))
@pytest.mark.parametrize(
    "asked",
    [
        [(0.0, 8000)],
        [(0.0, 500)] * 16,
        [(0.0, 30_000)] + [(0.01, 400)] * 4,
        [(0.3 * number, 2000 + 1500 * (number % 7)) for number in range(20)],
    ],
)
def test_a_coarse_ring_of_the_papers_nodes_is_near_the_one_with_every_batch(stages, asked):
    cost = paper_ring(stages)
    spec = paper_ring_spec(stages, cost.capacity_tokens)
    arrivals = [RequestArrival(at_s, tokens, 1) for at_s, tokens in asked]
    world = World(Scenario((spec,), arrivals, system_named("molink"), 60.0))
    world.run()
    fine = [one.token_times_s[0] for one in world.coordinator.requests]
    requests = [
        CacheRequest(at_s, tokens, 1, token_bytes(range(100 * number, 100 * number + 60)))
        for number, (at_s, tokens) in enumerate(asked)
    ]
    coarse = serve(requests, [cost], CacheRules()).served
    expected = sum(fine) - sum(at_s for at_s, _ in asked)
    assert sum(one.ttft_s for one in coarse) == pytest.approx(expected, rel=0.02)
