"""Blocks that another ring has handed over are read as computed there, or computed again here."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.events import CacheChanged, Refuse
from molink_scheduler.head.fetches import OFFERS_MAX
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.changes import FetchBlocks, KeepBlocks, KeptBlocks, TakeBlocks
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.ring_cache import RingCache
from molink_scheduler.kv.tiers import FETCHES_MAX, CacheTiers
from molink_scheduler.recording.values import decode
from molink_scheduler.recording.writing import encode
from molink_scheduler.token_ids import token_bytes
from tests.scheduler.head.test_prefix_cache import crowds, prefilled

EPOCH = 7


def hand_over(ring, at, request, blocks, lost=frozenset()):
    """Submit a request of whose prompt so many blocks were handed over, but for what is lost on
    some stages, as (stage, block)."""
    number = request.request_id
    offer = TakeBlocks(number, ((0, blocks),), (EPOCH, number))
    ring.push(at, lambda: ring.receive(0, CacheChanged(offer)))
    ring.submit_at(at, request)
    chain = ring.chains[number]
    for index, stage in enumerate(ring.stages):
        stage.handed[EPOCH, number] = [
            [] if (index, block) in lost else chain[BLOCK_TOKENS * block :][:BLOCK_TOKENS]
            for block in range(blocks)
        ]


@given(
    crowds(),
    st.integers(0, 2**16),
    st.integers(7, 20),
    st.integers(1, 3),
    st.sampled_from([None, CacheTiers(3, 0), CacheTiers(4, 12)]),
    st.lists(st.floats(0, 18), max_size=1),
    st.sampled_from([0.5, 15.0]),
)
def test_no_row_is_read_that_other_tokens_wrote(
    make_ring, make_request, crowd, seed, blocks, n, room, cleared, read_s
):
    """Beside requests that compute their prompts, tiers, losses and a cache that is cleared."""
    random = Random(seed)
    ring = make_ring(
        *(seed, n, 16 * blocks, n), prefix_cache=True, tiers=room, lost=0.2, read_s=read_s
    )
    for turn in range(2):
        for number, prompt, answer, at, salt in crowd:
            if len(prompt) + answer > 16 * blocks:
                continue
            request = make_request(10 * turn + number, prompt, answer, cache_salt=salt)
            whole = len(prompt) // BLOCK_TOKENS
            if whole and random.random() < 0.7:
                lost = {(random.randrange(n), random.randrange(whole))} if turn else set()
                hand_over(ring, 9.0 * turn + at, request, whole, lost)
            else:
                ring.submit_at(9.0 * turn + at, request)
    for at in cleared:
        ring.clear_at(at)
    ring.run()
    for number in ring.requests:
        assert ring.answers[number] == ring.expected_answer(number)
    ring.assert_nothing_left()


@pytest.mark.parametrize(("lost", "computed"), [((), 1), (((1, 5),), 49), (((0, 0), (2, 3)), 129)])
def test_only_what_did_not_come_is_computed(make_ring, make_request, lost, computed):
    ring = make_ring(1, 3, 16 * 10, prefix_cache=True)
    hand_over(ring, 0.0, make_request(0, 129, 2), 8, frozenset(lost))
    ring.run()
    assert prefilled(ring) == computed and ring.answers[0] == ring.expected_answer(0)
    ring.assert_nothing_left()


@pytest.mark.parametrize(("handed", "computed"), [(3, 129), (8, 129 + 49)])
def test_only_what_is_not_here_is_taken(make_ring, make_request, handed, computed):
    """Eight of nine blocks are cached here: a longer prompt that begins so takes what is behind."""
    ring = make_ring(1, 2, 16 * 30, prefix_cache=True)
    ring.submit_at(0.0, make_request(0, 129, 2))
    prompt = (*range(1, 81), *range(500, 549))
    hand_over(ring, 50.0, make_request(1, prompt, 2), handed)
    ring.run()
    expected = 129 + len(prompt) - 80 if handed == 3 else 129 + 1
    assert prefilled(ring) == expected and ring.fetches == (handed == 8)
    ring.assert_nothing_left()


def test_what_was_taken_is_found_by_others(make_ring, make_request):
    ring = make_ring(1, 2, 16 * 30, prefix_cache=True)
    hand_over(ring, 0.0, make_request(0, 129, 2), 8)
    ring.submit_at(0.0, make_request(1, 129, 2))
    ring.submit_at(50.0, make_request(2, 129, 2))
    ring.run()
    assert prefilled(ring) == 3 and ring.fetches == 1


def test_an_offer_of_a_request_that_never_comes_is_forgotten(make_ring, make_request):
    ring = make_ring(1, 1, 16 * 30, prefix_cache=True)
    for number in range(OFFERS_MAX + 1):
        ring.receive(0, CacheChanged(TakeBlocks(number, ((0, 8),), (EPOCH, number))))
    ring.submit_at(0.0, make_request(0, 129, 2))
    ring.run()
    assert prefilled(ring) == 129 and not ring.fetches


def test_a_ring_that_caches_nothing_computes(make_ring, make_request):
    ring = make_ring(1, 2, 16 * 30)
    hand_over(ring, 0.0, make_request(0, 129, 2), 8)
    ring.run()
    assert prefilled(ring) == 129 and ring.answers[0] == ring.expected_answer(0)


def test_a_stage_behind_the_head_takes_no_fetch_for_an_offer(make_ring):
    ring = make_ring(1, 2, 160, prefix_cache=True)
    fetch = CacheChanged(FetchBlocks(0, ((0, 8),)))
    assert any(isinstance(one, Refuse) for one in ring.head.handle(fetch, 0.0))


@pytest.mark.parametrize(
    "change",
    [
        TakeBlocks(1, ((0, 9),), (1, 1)),
        TakeBlocks(1, ((0, 2**50),), (1, 1)),
        TakeBlocks(1, ((10, 2), (11, 1)), (1, 1)),
        TakeBlocks(1, ((0, 1),), (1, 1)),
        TakeBlocks(0, ((20, 1),), (1, 1)),
    ],
)
def test_what_cannot_be_taken_is_refused(change):
    """Beside one block that is cached and one that is on its way: six are free."""
    table = BlockTable(KvLedger(8))
    table.begin(3, ())
    table.kv.grow(3, 16)
    table.change(KeepBlocks((KeptBlocks(3, 0, 0, 1),)))
    table.change(TakeBlocks(0, ((5, 1),), (1, 2)))
    assert table.objection(change)
    assert table.objection(TakeBlocks(1, ((20, 6),), (1, 1))) is None


def test_only_so_many_are_taken_at_a_time():
    table = BlockTable(KvLedger(80))
    for number in range(FETCHES_MAX):
        table.change(TakeBlocks(number, ((number, 1),), (1, number)))
    assert table.objection(TakeBlocks(9, ((9, 1),), (1, 9)))


def test_no_source_is_below_zero():
    for source, first in (((-1, 0), 0), ((0, -1), 0), ((0, 0), -1)):
        with pytest.raises(ValueError, match="handed over"):
            TakeBlocks(0, ((0, 1),), source, first)


def test_a_table_with_blocks_on_their_way_is_written_and_read():
    cache = RingCache(KvLedger(20))
    tokens = token_bytes(range(129))
    node, blocks = cache.take("", tokens, TakeBlocks(0, ((0, 8),), (1, 1)), "")
    read = decode(json.loads(json.dumps(encode(cache))))
    assert blocks == 8
    for one in (cache, read):
        one.arrived(node, 5, 8)
        assert one.match("", tokens, 8).blocks == 5 and one.ledger.blocks_free == 15
    assert read.take_changes() == cache.take_changes()
