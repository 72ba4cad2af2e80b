"""A stage with a shadow is lost at any moment: tokens stay exact, what lacks is replayed."""

from random import Random

import pytest

from tests.scheduler.shadowed_ring import ShadowedRing

SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_token_changes_when_stages_with_shadows_are_lost(seed):
    random = Random(seed)
    stage_count = random.randint(2, 5)
    ring = ShadowedRing(
        seed,
        stage_count,
        kv_tokens=random.choice([128, 4096]),
        log_bytes=random.choice([120, 1e9, 1e9]),
        micro_batches=random.randint(1, 3),
        covered=random.sample(range(1, stage_count), random.randint(1, stage_count - 1)),
        slowest_s=random.choice([0.05, 0.5]),
    )
    for _ in range(random.randint(1, 6)):
        ring.submit_at(
            random.uniform(0, 2),
            random.randint(1, 40),
            random.randint(1, 30),
            random.getrandbits(9),
        )
    for _ in range(random.randint(1, 3)):
        lost = set(random.sample(range(stage_count), random.randint(1, 2)))
        ring.lose_at(random.uniform(0, 8), lost, random.uniform(0.05, 1.5))
    for number in random.sample(range(len(ring.answers)), random.randint(0, 1)):
        ring.cancel_at(random.uniform(0, 8), number)
    if random.random() < 0.3:
        ring.lose_shadow_at(random.uniform(0, 8), random.choice(ring.covered))
    ring.run()
    ring.assert_all_answered()
    assert sum(one.rows_again for stage in ring.stages for one in stage.layers.parts()) == 0


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_only_what_the_shadow_lacks_is_fed_again(lost):
    ring = ShadowedRing(seed=lost, stage_count=4, covered=(lost,), slowest_s=0.02, feed_bytes=1000)
    for number in range(4):
        ring.submit_at(0.0, 30 + number, 25, seed=number)
    ring.lose_at(5.0, {lost}, 0.5)
    ring.run()
    ring.assert_all_answered()
    assert (ring.resumed, ring.missing) == (4, 0)
    assert ring.replayed == ring.behind < 0.5 * ring.known
