"""A lender is lost at any moment: no token changes, and what did not lie there goes on."""

from random import Random

import pytest

from molink_scheduler.events import CapacityChosen
from molink_scheduler.kv.blocks import blocks_for
from molink_scheduler.kv.capacity import RingCapacity
from molink_scheduler.kv.tiers import CacheTiers
from tests.scheduler.lent_ring import LentRing
from tests.sweeps import swept


def a_ring(seed: int, caches: bool, chains_stay: bool) -> LentRing:
    random = Random(seed)
    ring = LentRing(
        seed,
        stage_count=random.randint(1, 5),
        kv_tokens=random.choice([160, 400, 4096]),
        micro_batches=random.randint(1, 3),
        prefix_cache=caches,
        chains_stay=chains_stay,
        broken_share=random.choice([0.0, 0.3]),
        tiers=CacheTiers(6, 12) if caches and not chains_stay and random.random() < 0.3 else None,
    )
    for at in range(random.randint(2, 12)):
        asked = random.uniform(0.5, 1.5) * at, random.randint(16, 80), random.randint(1, 20)
        ring.submit_at(*asked, random.getrandbits(9))
    for _ in range(random.randint(1, 4)):
        place, share = random.randrange(ring.stage_count), random.choice([0.2, 0.6, 1.0])
        ring.lose_lender_at(random.uniform(0, 14), place, share)
    if random.random() < 0.4:
        place = random.randrange(ring.stage_count)
        ring.lose_at(random.uniform(0, 14), {place}, random.uniform(0.05, 1.5))
    return ring


@pytest.mark.parametrize(("caches", "chains_stay"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("seed", swept(range(1000), of=40))
def test_no_token_changes_when_lenders_are_lost(seed, caches, chains_stay):
    ring = a_ring(seed, caches, chains_stay)
    ring.run()
    ring.assert_all_answered()
    assert sum(one.rows_again for stage in ring.stages for one in stage.layers.parts()) == 0


@pytest.mark.parametrize("place", [0, 1, 2])
def test_who_had_nothing_there_goes_on_where_it_was(place):
    ring = LentRing(seed=place, stage_count=3)
    for number in range(4):
        ring.submit_at(0.0, 10 + number, 25, seed=number)
    ring.push(5.0, lambda: ring.lose_lender(place, 0.5))
    ring.run()
    ring.assert_all_answered()
    assert ring.lenders == 1 and 0 < ring.lost_requests < 4
    assert (ring.resumed, ring.missing) == (4 - ring.lost_requests, ring.lost_requests)


def test_cached_blocks_that_lay_there_are_found_no_more():
    ring = LentRing(1, stage_count=3, prefix_cache=True, chains_stay=True)
    ring.submit_at(0.0, 100, 2, 5)
    ring.lose_lender_at(20.0, 1, 1.0)
    for at in (30.0, 40.0):
        ring.submit_at(at, 100, 2, 5)
    ring.run()
    ring.assert_all_answered()
    assert ring.lost_blocks == 6 and ring.begun_cached == [0, 0, 0]


LONGEST = 100
"""Tokens of the longest request of `a_ring`; a head never counts with fewer for good."""


@pytest.mark.parametrize("seed", swept(range(1000), of=30))
def test_no_token_changes_when_lenders_are_lost_while_the_head_counts_less(seed):
    """It is told of fewer blocks and of more, before, in and behind epochs of lost lenders."""
    ring, random = a_ring(seed, caches=seed % 2 > 0, chains_stay=seed % 4 == 3), Random(-seed)
    full = blocks_for(ring.kv_tokens)
    for _ in range(random.randint(1, 6)):
        fewer = random.randint(min(full, blocks_for(LONGEST)), full)
        at, place = random.uniform(0, 14), random.randrange(ring.stage_count)
        ring.push(at, lambda blocks=fewer: ring.to_head(CapacityChosen(RingCapacity(blocks))))
        ring.lose_lender_at(at + random.uniform(0, 0.3), place, random.choice([0.2, 0.6, 1.0]))
    ring.run()
    ring.assert_all_answered()
