"""Requests whose KV is cut answer the same whatever becomes of them, and spoil nobody's rows."""

from random import Random

import pytest

from molink_scheduler.events import CacheCleared
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.tiers import CacheTiers
from tests.scheduler.surviving_ring import SurvivingRing
from tests.sweeps import swept

BUDGETS = (1.0, 0.8, 0.5, 0.25, 0.1)
SEEDS = swept(range(60), of=12)
FOLDING_SEEDS = swept(range(300), of=40)


SHAPES = ((1, 2), (1, 3), (2, 9), (3, 6), (0, 2))
"""Of stages: layers that keep all, and all layers."""


def a_ring(seed: int, *, folds: bool = False, **settings) -> tuple[SurvivingRing, Random]:
    """Cut and whole requests of prompts that begin alike; with KV for few in each third ring."""
    random = Random(seed)
    stage_count = random.randint(1, 4)
    ring = SurvivingRing(
        seed,
        stage_count=stage_count,
        shapes=tuple(Random(seed).choices(SHAPES, k=stage_count)) if folds else (),
        kv_tokens=(256, 448, 4096)[seed % 3],
        log_bytes=random.choice([400, 1e9]),
        micro_batches=random.randint(1, 3),
        **settings,
    )
    for _ in range(random.randint(4, 10)):
        ring.submit_at(
            random.uniform(0, 4),
            random.randint(1, 150),
            random.randint(1, 60),
            random.getrandbits(9),
            random.choice(BUDGETS),
        )
    return ring, random


@pytest.mark.parametrize("seed", SEEDS)
def test_no_token_changes_by_preemption_cache_or_loss(seed):
    ring, random = a_ring(seed, prefix_cache=True, chains_stay=seed % 4 == 0)
    for _ in range(random.randint(0, 2)):
        lost = {random.randrange(ring.stage_count)}
        beside = random.random() < 0.3 and not ring.chains_stay
        ring.lose_at(random.uniform(0, 8), lost, random.uniform(0.05, 1.0), beside=beside)
    ring.run()
    ring.assert_all_answered()


@pytest.mark.parametrize("seed", FOLDING_SEEDS)
def test_no_row_is_lost_or_changed_where_blocks_are_folded(seed):
    """Every stage has its rows in memory of the size that the head counts with; a step reads all
    that its requests need."""
    ring, random = a_ring(seed, folds=True, prefix_cache=seed % 5 > 0, chains_stay=seed % 5 == 1)
    if seed % 2:
        ring.tiers = None if seed % 4 == 1 else CacheTiers(host_blocks=12)
        ring.stages = ring.new_stages()
    for _ in range(random.randint(0, 2)):
        lost = {random.randrange(ring.stage_count)}
        beside = random.random() < 0.3 and not ring.chains_stay
        ring.lose_at(random.uniform(0, 8), lost, random.uniform(0.05, 1.0), beside=beside)
    if seed % 3 == 0:
        ring.push(random.uniform(0, 8), lambda: ring.to_head(CacheCleared()))
    ring.run()
    ring.assert_all_answered()
    for stage in ring.stages:
        for part in stage.layers.parts():
            assert (
                part.folds.kv.blocks_free + len(part.folds.kv.cached_numbers()) == part.folds.blocks
            )


def test_the_first_blocks_of_a_cut_prompt_are_shared():
    """Of 128 tokens half are kept: whoever comes next finds the four blocks before them, and who is
    cut himself begins with no more."""
    ring = SurvivingRing(3, stage_count=3, prefix_cache=True)
    for number, budget in enumerate((0.5, 1.0, 1.0, 0.5, 0.5, 1.0)):
        ring.submit_at(20.0 * number, 128, 8, number, budget)  # Two prompts, in turn.
    ring.run()
    ring.assert_all_answered()
    whole = 4 * BLOCK_TOKENS
    assert ring.begun_cached == [0, 0, whole, whole, whole, 7 * BLOCK_TOKENS]


@pytest.mark.parametrize("caches", [False, True])
def test_preempted_requests_are_cut_again_at_the_same_place(caches):
    """They come again with their answers so far, and prompts that are cut in another way would
    answer differently."""
    random, ring = Random(1), SurvivingRing(1, 2, 240, prefix_cache=caches)
    for number in range(12):
        ring.submit_at(random.random(), random.randint(40, 70), 150, number, random.choice(BUDGETS))
    ring.run()
    ring.assert_all_answered()
    assert len(ring.begun_cached) > 12, "some are admitted twice"
