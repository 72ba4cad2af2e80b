"""Losses at any moment change no token, and survivors compute nothing again."""

from random import Random

import pytest

from tests.scheduler.surviving_ring import SurvivingRing

SEEDS = range(60)


def a_ring(seed: int) -> tuple[SurvivingRing, Random]:
    random = Random(seed)
    ring = SurvivingRing(
        seed,
        stage_count=random.randint(2, 5),
        kv_tokens=random.choice([128, 4096]),
        log_bytes=random.choice([120, 1e9, 1e9]),
        micro_batches=random.randint(1, 3),
    )
    for _ in range(random.randint(1, 6)):
        ring.submit_at(
            random.uniform(0, 2),
            random.randint(1, 40),
            random.randint(1, 30),
            random.getrandbits(9),
        )
    return ring, random


@pytest.mark.parametrize("seed", SEEDS)
def test_no_token_changes_when_stages_are_lost(seed):
    ring, random = a_ring(seed)
    for _ in range(random.randint(1, 3)):
        lost = set(random.sample(range(ring.stage_count), random.randint(1, 2)))
        ring.lose_at(random.uniform(0, 8), lost, random.uniform(0.05, 1.5))
    for number in random.sample(range(len(ring.answers)), random.randint(0, 1)):
        ring.cancel_at(random.uniform(0, 8), number)
    ring.run()
    ring.assert_all_answered()
    assert sum(stage.rows_again for stage in ring.stages) == 0


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_requests_go_on_where_they_were(lost):
    ring = SurvivingRing(seed=lost, stage_count=4)
    for number in range(4):
        ring.submit_at(0.0, 10 + number, 25, seed=number)
    ring.lose_at(5.0, {lost}, 0.5)
    ring.run()
    ring.assert_all_answered()
    assert (ring.resumed, ring.missing) == (4, 0)
