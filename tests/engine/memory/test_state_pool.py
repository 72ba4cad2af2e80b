import pytest
import torch
from transformers.cache_utils import LinearAttentionLayer

from molink.engine.memory.state_pool import StatePool
from molink_scheduler.batch import DRAFTS_MAX, Span
from molink_scheduler.kv.blocks import OutOfBlocks


def stored(values: list[float]) -> LinearAttentionLayer:
    """A cache layer as a mixer leaves it: one state of each kind for each sequence."""
    layer = LinearAttentionLayer(number_of_states=1)
    state = torch.tensor(values)[:, None, None].expand(-1, 2, 3)
    layer.update_conv_state(state, conv_kernel_size=3)
    layer.update_recurrent_state(state + 100)
    return layer


def values(pool: StatePool, slots: list[int]) -> list[float]:
    layer = pool.load(7, 1, slots)
    assert torch.equal(layer.conv_states[0] + 100, layer.recurrent_states[0])
    return layer.conv_states[0][:, 0, 0].tolist()


def test_a_request_keeps_its_slot_and_gives_it_back():
    pool = StatePool(2)
    first, second = pool.take(10), pool.take(11)
    assert first != second
    assert pool.take(10) == first
    with pytest.raises(OutOfBlocks, match="request 12 needs a state slot"):
        pool.take(12)
    pool.release(10)
    pool.release(10)
    assert pool.take(12) == first
    assert len(pool._slot_of) == 2


def test_states_come_back_to_their_slots_in_any_order():
    pool = StatePool(4)
    pool.store(7, stored([1.0, 2.0, 3.0]), [3, 0, 2])
    assert values(pool, [0, 2, 3]) == [2.0, 3.0, 1.0]
    pool.store(7, stored([9.0]), [2])
    assert values(pool, [2, 3]) == [9.0, 1.0]


def test_a_single_requests_state_is_a_view():
    pool = StatePool(4)
    pool.store(7, stored([1.0, 2.0]), [0, 1])
    layer = pool.load(7, 1, [1])
    layer.update_recurrent_state(torch.full((1, 2, 3), 55.0))
    layer.conv_states[0].fill_(-45.0)
    pool.store(7, layer, [1])
    assert values(pool, [1, 0]) == [-45.0, 1.0]


def test_a_resized_pool_is_empty_and_knows_its_size():
    pool = StatePool(1)
    pool.store(7, stored([1.0]), [pool.take(5)])
    larger = pool.resized(3)
    assert larger.request_bytes == pool.request_bytes == 2 * (2 * 3 * 4)
    assert not larger._slot_of


DRAFTED = Span(5, 8, 12, True, (1, 2, 3))


def test_states_stand_behind_what_was_known_until_the_next_span():
    pool = StatePool(2)
    assert not pool.lags([DRAFTED]), "layers keep no states"
    pool.store(7, stored([1.0]), [pool.take(5)])
    assert pool.lags([DRAFTED])
    assert pool.passed(DRAFTED) == 0
    following = Span(5, 11, 12, True)
    assert pool.lags([following])
    assert pool.passed(following) == 2
    assert not pool.lags([Span(5, 12, 13, True)])
    assert pool.passed(Span(5, 12, 13, True)) == 0


def test_no_span_begins_before_what_was_known():
    pool = StatePool(1)
    pool.passed(DRAFTED)
    with pytest.raises(AssertionError):
        pool.passed(DRAFTED)


def test_a_request_that_was_released_begins_anew():
    pool = StatePool(1)
    pool.store(7, stored([1.0]), [pool.take(5)])
    pool.passed(DRAFTED)
    pool.release(5)
    assert not pool.lags([Span(5, 0, 20, False)])
    assert pool.passed(Span(5, 20, 21, True)) == 0


def test_what_is_given_for_drafts_has_places_that_are_counted():
    pool = StatePool(2, padding=1, snapshots=1)
    pool.store(7, stored([1.0]), [pool.take(5)])
    states_bytes = pool.request_bytes
    pool.carry(7, 0, torch.zeros(1, 3, 4), None)
    assert pool.request_bytes == states_bytes + DRAFTS_MAX * 4 * 4
    larger = pool.resized(3, 1, 1)
    assert larger.request_bytes == pool.request_bytes
    assert len(larger.inputs[7][0]) == 3 * DRAFTS_MAX
