"""Stages are lost at any moment of rounds with drafts: no token changes, survivors compute nothing
again, and no shadow holds a draft that did not come true."""

import os
from random import Random

import pytest

from molink_scheduler.kv.tiers import CacheTiers
from tests.scheduler.lent_ring import LentRing
from tests.scheduler.seeded_drafter import SeededDrafter, SeededTail
from tests.scheduler.shadowed_ring import ShadowedRing
from tests.scheduler.surviving_ring import SurvivingRing
from tests.scheduler.toy_ring import ToyRing
from tests.sweeps import swept

RINGS = int(os.environ.get("MOLINK_RINGS", "150"))
"""Rings of each sweep."""


def drafters(seed: int) -> dict:
    """Drafters at the head, at the tail, or at both."""
    at_head, at_tail = [(True, False), (False, True), (True, True)][seed % 3]
    return {
        "drafter": SeededDrafter.of(seed) if at_head else None,
        "tail_drafter": SeededTail.of(seed) if at_tail else None,
    }


def submit_some(ring: ToyRing, random: Random, *, until: float = 2.0) -> None:
    for _ in range(random.randint(1, 7)):
        asked = random.uniform(0, until), random.randint(1, 40), random.randint(1, 60)
        ring.submit_at(*asked, random.getrandbits(9))
    for number in random.sample(range(len(ring.answers)), random.randint(0, 1)):
        ring.cancel_at(random.uniform(0, 8), number)


def run(ring: SurvivingRing) -> None:
    ring.run()
    ring.assert_all_answered()
    assert sum(one.rows_again for stage in ring.stages for one in stage.layers.parts()) == 0


@pytest.mark.parametrize("seed", swept(range(RINGS), of=80))
def test_no_token_changes_when_stages_are_lost(seed):
    random = Random(seed)
    caches, chains_stay = random.choice([(False, False), (True, False), (True, True)])
    has_tiers = chains_stay and random.random() < 0.5
    ring = SurvivingRing(
        seed,
        stage_count=random.randint(2, 5),
        kv_tokens=random.choice([160, 400, 4096]),
        log_bytes=random.choice([120, 1e9, 1e9]),
        micro_batches=random.randint(1, 3),
        broken_share=random.choice([0.0, 0.3]),
        prefix_cache=caches,
        chains_stay=chains_stay,
        tiers=CacheTiers(6, 12) if has_tiers else None,
        **drafters(seed),
    )
    submit_some(ring, random)
    for _ in range(random.randint(1, 3)):
        lost = set(random.sample(range(ring.stage_count), random.randint(1, 2)))
        beside = random.random() < 0.4
        ring.lose_at(random.uniform(0, 8), lost, random.uniform(0.05, 1.5), beside=beside)
    run(ring)


@pytest.mark.parametrize("seed", swept(range(RINGS), of=80))
def test_no_token_changes_when_shadows_take_over(seed):
    random = Random(seed)
    stage_count = random.randint(2, 5)
    ring = ShadowedRing(
        seed,
        stage_count,
        kv_tokens=random.choice([160, 4096]),
        log_bytes=random.choice([120, 1e9, 1e9]),
        micro_batches=random.randint(1, 3),
        **drafters(seed),
        covered=random.sample(range(1, stage_count), random.randint(1, stage_count - 1)),
        slowest_s=random.choice([0.02, 0.05, 0.5]),
        feed_bytes=random.choice([24, 1000]),
    )
    submit_some(ring, random)
    for _ in range(random.randint(1, 3)):
        lost = set(random.sample(range(stage_count), random.randint(1, 2)))
        ring.lose_at(random.uniform(0, 8), lost, random.uniform(0.05, 1.5))
    run(ring)


@pytest.mark.parametrize("seed", swept(range(RINGS), of=40))
def test_no_token_changes_when_lenders_are_lost(seed):
    random = Random(seed)
    ring = LentRing(
        seed,
        stage_count=random.randint(1, 4),
        kv_tokens=random.choice([160, 4096]),
        micro_batches=random.randint(1, 3),
        prefix_cache=random.random() < 0.5,
        broken_share=random.choice([0.0, 0.3]),
        **drafters(seed),
    )
    submit_some(ring, random, until=6.0)
    for _ in range(random.randint(1, 4)):
        place, share = random.randrange(ring.stage_count), random.choice([0.2, 0.6, 1.0])
        ring.lose_lender_at(random.uniform(0, 10), place, share)
    run(ring)


@pytest.mark.parametrize("seed", swept(range(RINGS), of=40))
def test_no_token_changes_where_layers_keep_a_window(seed):
    random = Random(seed)
    ring = SurvivingRing(
        seed,
        stage_count=random.randint(2, 4),
        micro_batches=random.randint(1, 3),
        prefix_cache=random.random() < 0.7,
        window=random.choice([3, 16, 40]),
        **drafters(seed),
    )
    for _ in range(random.randint(4, 9)):
        asked = random.uniform(0, 12), random.randint(1, 200), random.randint(1, 80)
        ring.submit_at(*asked, random.getrandbits(9))
    for _ in range(random.randint(0, 3)):
        lost, beside = random.randrange(ring.stage_count), random.random() < 0.3
        ring.lose_at(random.uniform(0, 15), {lost}, random.uniform(0.05, 1.5), beside=beside)
    run(ring)


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
@pytest.mark.parametrize("beside", [False, True])
def test_requests_go_on_where_they_were(lost, beside):
    drafter = SeededDrafter(Random(lost), 4, "depth")
    ring = SurvivingRing(seed=lost, stage_count=4, drafter=drafter)
    for number in range(4):
        ring.submit_at(0.0, 10 + number, 60, seed=number)
    ring.lose_at(5.0, {lost}, 0.5, beside=beside)
    run(ring)
    assert (ring.resumed, ring.missing) == (4, 0)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_only_what_the_shadow_lacks_is_fed_again(lost):
    drafter = SeededDrafter(Random(lost), 4, "depth")
    ring = ShadowedRing(
        seed=lost, stage_count=4, drafter=drafter, covered=(lost,), slowest_s=0.02, feed_bytes=1000
    )
    for number in range(4):
        ring.submit_at(0.0, 30 + number, 60, seed=number)
    ring.lose_at(5.0, {lost}, 0.5)
    run(ring)
    assert (ring.resumed, ring.missing) == (4, 0)
    assert ring.replayed == ring.behind < 0.5 * ring.known
