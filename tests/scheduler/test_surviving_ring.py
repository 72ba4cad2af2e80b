"""Losses at any moment change no token, and survivors compute nothing again."""

from random import Random

import pytest

from molink_scheduler.kv.tiers import CacheTiers
from tests.scheduler.surviving_ring import SurvivingRing

SEEDS = (*range(60), 1334, 1442)
"""Of the last two a request is cancelled while a fresh head replays it to a fresh neighbour."""


def a_ring(seed: int, **settings) -> tuple[SurvivingRing, Random]:
    random = Random(seed)
    ring = SurvivingRing(
        seed,
        stage_count=random.randint(2, 5),
        kv_tokens=random.choice([128, 4096]),
        log_bytes=random.choice([120, 1e9, 1e9]),
        micro_batches=random.randint(1, 3),
        broken_share=random.choice([0.0, 0.3]),
        **settings,
    )
    for _ in range(random.randint(1, 6)):
        ring.submit_at(
            random.uniform(0, 2),
            random.randint(1, 40),
            random.randint(1, 30),
            random.getrandbits(9),
        )
    return ring, random


def rows_again(ring: SurvivingRing) -> int:
    return sum(part.rows_again for stage in ring.stages for part in stage.layers.parts())


@pytest.mark.parametrize("seed", SEEDS)
def test_no_token_changes_when_neighbours_take_lost_layers(seed):
    ring, random = a_ring(seed)
    for _ in range(random.randint(1, 4)):
        lost = set(random.sample(range(ring.stage_count), random.randint(1, 2)))
        beside = random.random() < 0.7
        ring.lose_at(random.uniform(0, 8), lost, random.uniform(0.05, 1.5), beside=beside)
    for number in random.sample(range(len(ring.answers)), random.randint(0, 1)):
        ring.cancel_at(random.uniform(0, 8), number)
    ring.run()
    ring.assert_all_answered()
    assert rows_again(ring) == 0


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
    assert rows_again(ring) == 0


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("seed", [22, *range(200, 220)])
def test_nobody_waits_for_ever_where_kept_requests_fill_all_kv(seed, caches):
    """In seed 22 each of them needs a block for its next token, in others some of them."""
    random = Random(seed)
    stages, micro_batches = random.randint(2, 4), random.randint(1, 3)
    ring = SurvivingRing(seed, stages, 128, 1e9, micro_batches, prefix_cache=caches)
    random.random()
    for _ in range(12):
        asked = random.uniform(0, 12), random.randint(16, 40), random.randint(1, 30)
        ring.submit_at(*asked, seed=5)
    for _ in range(random.randint(1, 2)):
        at, lost = random.uniform(2, 14), random.randrange(ring.stage_count)
        ring.lose_at(at, {lost}, random.uniform(0.05, 1.5))
    ring.run()
    ring.assert_all_answered()


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_requests_go_on_where_they_were(lost):
    ring = SurvivingRing(seed=lost, stage_count=4)
    for number in range(4):
        ring.submit_at(0.0, 10 + number, 25, seed=number)
    ring.lose_at(5.0, {lost}, 0.5)
    ring.run()
    ring.assert_all_answered()
    assert (ring.resumed, ring.missing) == (4, 0)


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_requests_go_on_where_they_were_with_one_place_less(lost):
    ring = SurvivingRing(seed=lost, stage_count=4)
    for number in range(4):
        ring.submit_at(0.0, 10 + number, 25, seed=number)
    ring.lose_at(5.0, {lost}, 0.5, beside=True)
    ring.run()
    ring.assert_all_answered()
    assert (ring.resumed, ring.missing, ring.extended) == (4, 0, 1)
    assert len(ring.stages) == 3 and rows_again(ring) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_no_token_changes_when_rings_with_a_cache_lose_stages(seed):
    """Requests that began with cached blocks go on too: the log has the rows of these."""
    ring, random = a_ring(seed, prefix_cache=True)
    for _ in range(random.randint(1, 3)):
        lost = set(random.sample(range(ring.stage_count), random.randint(1, 2)))
        beside = random.random() < 0.3
        ring.lose_at(random.uniform(0, 8), lost, random.uniform(0.05, 1.5), beside=beside)
    for number in random.sample(range(len(ring.answers)), random.randint(0, 1)):
        ring.cancel_at(random.uniform(0, 8), number)
    ring.run()
    ring.assert_all_answered()
    assert rows_again(ring) == 0


@pytest.mark.parametrize("seed", SEEDS[::3])
def test_no_token_changes_when_stages_are_lost_while_blocks_come_back(seed):
    """With KV for a few requests, and more in lower tiers, which begin empty after a loss."""
    random, tiers = Random(seed), CacheTiers(6, 12)
    ring = SurvivingRing(seed, stage_count=3, kv_tokens=160, prefix_cache=True, tiers=tiers)
    for at in range(16):
        ring.submit_at(at + random.random(), random.randint(16, 40), random.randint(1, 30), at)
    for _ in range(random.randint(1, 2)):
        lost = set(random.sample(range(ring.stage_count), 1))
        ring.lose_at(random.uniform(2, 14), lost, random.uniform(0.05, 1.5))
    ring.run()
    ring.assert_all_answered()
    assert ring.losses


def test_blocks_come_back_before_a_stage_is_lost():
    ring = SurvivingRing(1, stage_count=3, kv_tokens=80, prefix_cache=True, tiers=CacheTiers(6, 12))
    for at in range(12):
        ring.submit_at(10.0 * at, 40, 30, 5)
    ring.lose_at(75.0, {1}, 0.1)
    ring.run()
    ring.assert_all_answered()
    assert ring.fetches > 3


def test_a_request_that_began_with_cached_blocks_goes_on_where_it_was():
    ring = SurvivingRing(1, stage_count=3, kv_tokens=4096, prefix_cache=True)
    for at in (0.0, 0.0, 20.0):
        ring.submit_at(at, 40, 30, 5)
    ring.lose_at(22.0, {1}, 0.1)
    ring.run()
    ring.assert_all_answered()
    assert (ring.resumed, ring.missing) == (1, 0)


def a_ring_with_chains(seed: int, **settings) -> tuple[SurvivingRing, Random]:
    """Users who come again and again: chains are idle, in use, and short of room."""
    random = Random(seed)
    ring = SurvivingRing(
        seed,
        stage_count=random.randint(2, 5),
        kv_tokens=random.choice([160, 400, 4096]),
        log_bytes=random.choice([300, 1e9, 1e9]),
        micro_batches=random.randint(1, 2),
        broken_share=random.choice([0.0, 0.4]),
        prefix_cache=True,
        chains_stay=True,
        **settings,
    )
    for at in range(random.randint(4, 14)):
        asked = random.uniform(0.5, 1.5) * at, random.randint(16, 80), random.randint(1, 20)
        ring.submit_at(*asked, random.getrandbits(9))
    return ring, random


@pytest.mark.parametrize("seed", [*SEEDS, 24233])
def test_no_token_changes_when_survivors_keep_their_chains(seed):
    """In the last seed a request ends while a fresh head replays it: survivors hold more of it."""
    ring, random = a_ring_with_chains(seed)
    for _ in range(random.randint(1, 4)):
        places = range(0 if random.random() < 0.1 else 1, ring.stage_count)
        lost = set(random.sample(places, min(len(places), random.randint(1, 2))))
        beside = random.random() < 0.1
        ring.lose_at(random.uniform(0, 14), lost, random.uniform(0.05, 1.5), beside=beside)
    for number in random.sample(range(len(ring.answers)), random.randint(0, 2)):
        ring.cancel_at(random.uniform(0, 14), number)
    ring.run()
    ring.assert_all_answered()
    assert rows_again(ring) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_no_token_changes_when_survivors_with_tiers_keep_their_chains(seed):
    """Chains leave the device and come back before, while and after stages are lost, and hosts
    lose what they hold, and take nothing for a while."""
    tiers = Random(seed).choice([CacheTiers(4), CacheTiers(6, 12), CacheTiers(200)])
    ring, random = a_ring_with_chains(seed, tiers=tiers)
    for _ in range(random.randint(1, 4)):
        places = range(0 if random.random() < 0.1 else 1, ring.stage_count)
        lost = set(random.sample(places, min(len(places), random.randint(1, 2))))
        beside = random.random() < 0.1
        ring.lose_at(random.uniform(0, 14), lost, random.uniform(0.05, 1.5), beside=beside)
    for _ in range(random.randint(0, 3)):
        at, place = random.uniform(0, 20), random.randrange(ring.stage_count)
        ring.short_at(at, place, at + random.uniform(0, 5))
    for number in random.sample(range(len(ring.answers)), random.randint(0, 2)):
        ring.cancel_at(random.uniform(0, 14), number)
    ring.run()
    ring.assert_all_answered()
    assert rows_again(ring) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_no_token_changes_when_lost_stages_come_back_with_a_file(seed):
    """Of the last loss or of an older one, of a directory that is no more, or in part unreadable;
    while blocks go to files and come back, and hosts lose what they hold."""
    tiers = Random(seed).choice([CacheTiers(0, 12), CacheTiers(6, 12), CacheTiers(2, 200)])
    ring, random = a_ring_with_chains(seed, tiers=tiers, disk_share=0.8)
    ring.unread_share = random.choice([0.0, 0.0, 0.3])
    for _ in range(random.randint(2, 6)):
        places = range(0 if random.random() < 0.2 else 1, ring.stage_count)
        lost = set(random.sample(places, min(len(places), random.randint(1, 2))))
        ring.lose_at(random.uniform(0, 14), lost, random.uniform(0.05, 1.0))
    for _ in range(random.randint(0, 2)):
        at, place = random.uniform(0, 20), random.randrange(ring.stage_count)
        ring.short_at(at, place, at + random.uniform(0, 5))
    for number in random.sample(range(len(ring.answers)), random.randint(0, 2)):
        ring.cancel_at(random.uniform(0, 14), number)
    ring.run()
    ring.assert_all_answered()
    assert rows_again(ring) == 0


@pytest.mark.parametrize("lost", [{1}, {2}, {1, 2}])
@pytest.mark.parametrize(("disk_share", "hit"), [(1.0, 96), (0.0, 16)])
def test_what_all_files_hold_is_a_hit_after_a_stage_is_lost(lost, disk_share, hit):
    """All of its blocks but the first are in files, which are read; that one is sent again."""
    tiers = CacheTiers(0, 64)
    ring = SurvivingRing(1, 3, 128, prefix_cache=True, chains_stay=True, tiers=tiers)
    ring.disk_share = disk_share
    for at in (0.0, 10.0, 30.0):  # Two families in turn push each other out.
        ring.submit_at(at, 100, 2, 5)
    ring.lose_at(20.0, lost, 0.1)
    ring.run()
    ring.assert_all_answered()
    assert ring.begun_cached == [0, 0, hit]
    assert (ring.fetches, ring.blocks_lost) == (3 * (hit == 96), 0)
    if hit == 96:
        assert {part.adopted for stage in ring.stages for part in stage.layers.parts()} == {0, 1}


def test_a_file_of_another_directory_is_no_hit():
    """The head is lost behind the stage whose file is found again: numbers begin anew then, and
    the families come in another order."""
    tiers = CacheTiers(0, 64)
    ring = SurvivingRing(1, 3, 128, prefix_cache=True, chains_stay=True, tiers=tiers)
    for at in (0.0, 10.0, 40.0, 30.0, 70.0, 60.0):
        ring.submit_at(at, 100, 2, 5)
    ring.lose_at(20.0, {1}, 0.1)  # Its file has the first family.
    ring.lose_at(21.0, {0}, 0.1)
    ring.lose_at(50.0, {1}, 0.1)
    ring.push(50.01, lambda: ring.disks[1,].pop())  # The newest is not found.
    ring.disk_share = 1.0
    ring.run()
    ring.assert_all_answered()
    assert ring.begun_cached == [0, 0, 0, 0, 16, 16] and ring.fetches == 3


@pytest.mark.parametrize("moment", range(20))
def test_what_is_on_its_way_back_when_a_stage_is_lost_does_not_stay(moment):
    """One host has lost it, which nobody has heard of yet."""
    ring = SurvivingRing(moment, 3, 128, prefix_cache=True, chains_stay=True, tiers=CacheTiers(64))
    for at in (0.0, 10.0, 20.0, 40.0, 50.0):  # Two families in turn push each other out.
        ring.submit_at(at, 100, 2, 5)
    ring.short_at(15.0, 2, 15.1)
    ring.lose_at(20.02 + 0.03 * moment, {1}, 0.1)
    ring.run()
    ring.assert_all_answered()
    assert ring.fetches and ring.blocks_lost


@pytest.mark.parametrize("tiers", [None, CacheTiers(64)])
@pytest.mark.parametrize("lost", [{1}, {2}, {3}, {1, 2}, {2, 3}, {1, 3}])
def test_idle_chains_are_hits_again_which_only_the_replacement_computes(lost, tiers):
    ring = SurvivingRing(1, 4, prefix_cache=True, chains_stay=True, tiers=tiers)
    for _ in range(2):  # Two families of prompts.
        ring.submit_at(0.0, 100, 2, 5)
    ring.lose_at(20.0, lost, 0.1)
    for at in (30.0, 30.0, 40.0):  # The second of the first family comes later.
        ring.submit_at(at, 100, 2, 5)
    ring.run()
    ring.assert_all_answered()
    assert ring.begun_cached[2:] == [96, 96, 96]
    for stage in ring.stages:
        (part,) = stage.layers.parts()
        rebuilt = 192 if stage.index in lost else 0
        assert part.adopted * 16 == rebuilt
        assert part.rows_computed == 3 * 5 + rebuilt + (0 if stage.index in lost else 2 * 101)


@pytest.mark.parametrize("lost", [1, 2])
def test_chains_in_use_are_found_again_after_a_loss(lost):
    """What the replaced stage computes again for a request that goes on is a hit for the next."""
    ring = SurvivingRing(1, stage_count=3, kv_tokens=4096, prefix_cache=True)
    ring.submit_at(0.0, 40, 60, 5)
    ring.submit_at(0.0, 40, 5, 5)  # Of the other family: nobody uses its chain any more.
    ring.lose_at(8.0, {lost}, 0.1)
    for _ in range(2):
        ring.submit_at(14.0, 40, 2, 5)
    ring.run()
    ring.assert_all_answered()
    assert (ring.resumed, ring.missing) == (1, 0)
    assert ring.begun_cached[-2:] == [32, 0]


@pytest.mark.parametrize("seed", range(60))
def test_no_token_changes_where_layers_keep_a_window(seed):
    """Prompts that begin alike, longer than the window; stages check that each row finds what it
    sees, in blocks that are fewer than its request's tokens."""
    random = Random(seed)
    stages, caches = random.randint(2, 4), random.random() < 0.7
    window = random.choice([3, 16, 40])
    ring = SurvivingRing(
        seed, stages, micro_batches=random.randint(1, 3), prefix_cache=caches, window=window
    )
    for _ in range(random.randint(4, 9)):
        at, prompt_tokens = random.uniform(0, 12), random.randint(1, 200)
        ring.submit_at(at, prompt_tokens, random.randint(1, 80), random.getrandbits(9))
    for _ in range(random.randint(0, 3)):
        lost, beside = random.randrange(stages), random.random() < 0.3
        ring.lose_at(random.uniform(0, 15), {lost}, random.uniform(0.05, 1.5), beside=beside)
    ring.run()
    ring.assert_all_answered()
    assert rows_again(ring) == 0
    if not ring.losses:
        # Two texts: whoever comes third with one begins behind the other two, if it is long.
        begun = {part.windows.begun for stage in ring.stages for part in stage.layers.parts()}
        assert begun == {sum(map(bool, ring.begun_cached))}


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_answers_go_on_where_they_were_although_windows_move_on(lost):
    ring = SurvivingRing(seed=lost, stage_count=3, window=16)
    for number in range(4):
        ring.submit_at(0.0, 60 + number, 60, seed=number)
    ring.lose_at(14.0, {lost}, 0.5)
    ring.run()
    ring.assert_all_answered()
    assert (ring.resumed, ring.missing) == (4, 0)
