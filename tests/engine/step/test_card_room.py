"""How much KV a card has room for: nobody's memory is counted twice, and a part stays free."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from molink.checkpoint.stage_size import KV_TOKENS_MIN
from molink.engine.step.card_room import (
    SPAN_ROWS_MEASURED,
    fitting_kv_tokens,
    measured_step_bytes,
    room_on,
    settle_kv,
)
from molink.errors import NoRoomError
from molink.hardware.card_memory import CONTEXT_BYTES, STEP_BYTES, kept_free_bytes
from tests.engine.device.stand_in import GB, OURS, StandInCard

KEPT = kept_free_bytes(12 * GB)
TOKEN_BYTES = 100_000


def room(card: StandInCard, stages_here: int = 1, lent: int | None = None):
    return room_on(card, card.step, stages_here, lent, OURS)


def test_alone_a_stage_takes_what_is_free_but_a_step_and_a_part():
    card = StandInCard(held_bytes=6 * GB, step=GB, foreign=GB)
    assert room(card).for_kv == 12 * GB - GB - GB // 2 - 6 * GB - GB - KEPT


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("stages", [2, 3])
def test_stages_that_load_one_after_another_leave_room_for_the_next(stages, tells):
    """Three times 6 GB of weights on 24 GB: a share of what is free gave the first one 5 GB of KV,
    and the last one nothing to load into."""
    total, weights, step, taken = 24 * GB, 6 * GB, GB // 4, 0
    for _ in range(stages):
        card = StandInCard(
            total_bytes=total, held_bytes=weights, step=step, siblings=taken, tells_processes=tells
        )
        left = room(card, stages).for_kv
        assert left > 0
        taken += CONTEXT_BYTES + weights + left + step
    assert taken <= total - kept_free_bytes(total)


def test_other_programs_are_divided_among_the_stages_where_the_driver_tells_whose_they_are():
    early = StandInCard(foreign=4 * GB, held_bytes=GB)
    assert room(early, 2).most == (12 * GB - KEPT - 4 * GB) // 2 - CONTEXT_BYTES
    silent = StandInCard(foreign=4 * GB, held_bytes=GB, tells_processes=False)
    assert room(silent, 2).most == (12 * GB - KEPT) // 2 - CONTEXT_BYTES
    last = StandInCard(foreign=4 * GB, siblings=6 * GB, held_bytes=GB, tells_processes=False)
    assert room(last, 2).for_kv == last.free_bytes - KEPT


def test_an_owner_s_loan_bounds_a_stage_on_an_empty_card():
    card = StandInCard(held_bytes=2 * GB, step=GB // 4)
    assert room(card, lent=4 * GB).most == 4 * GB + STEP_BYTES
    assert room(card, lent=4 * GB).for_kv == 4 * GB + STEP_BYTES - 2 * GB - GB // 4


@given(
    st.integers(2, 80),
    st.lists(st.integers(0, 20 * GB), min_size=1, max_size=5),
    st.integers(0, 8 * GB),
    st.integers(0, GB),
    st.booleans(),
)
def test_no_order_of_loading_over_commits(total_gb, weights, foreign, step, tells):
    """Whatever a stage takes beyond its weights was free when it took it, and a part still is."""
    total = total_gb * GB
    siblings = 0
    for size in weights:
        card = StandInCard(
            total_bytes=total,
            held_bytes=size,
            step=step,
            siblings=siblings,
            foreign=foreign,
            tells_processes=tells,
        )
        if card.free_bytes < 0:
            return
        left = room(card, len(weights)).for_kv
        if left <= 0:
            return
        siblings += CONTEXT_BYTES + size + left
        assert siblings + foreign + step <= total - kept_free_bytes(total)


def fits(card: StandInCard, wanted: int | None, lent: int | None = None) -> int | None:
    return fitting_kv_tokens(card, room(card, lent=lent), TOKEN_BYTES, 0, wanted)


def test_what_an_operator_asks_for_is_given_or_refused_with_a_sentence():
    card = StandInCard(held_bytes=10 * GB, step=GB // 4)
    assert fits(card, 4_096) == 4_096 and fits(card, None) is None
    with pytest.raises(NoRoomError, match=r"8,192 are wanted: .*10\.0 GiB.*fewer --kv-tokens"):
        fits(card, 8_192)


def test_what_a_plan_has_counted_is_given_as_far_as_it_fits():
    card = StandInCard(held_bytes=10 * GB, step=GB // 4)
    given_tokens = fits(card, 8_192, lent=11 * GB)
    assert 4_096 < given_tokens < 8_192
    assert given_tokens % 16 == 0
    assert given_tokens * TOKEN_BYTES <= room(card, lent=11 * GB).for_kv


@pytest.mark.parametrize("wanted", [None, 100_000])
@pytest.mark.parametrize("lent", [None, 11 * GB])
def test_where_no_conversation_fits_one_sentence_says_so(wanted, lent):
    card = StandInCard(held_bytes=11 * GB - GB // 8, step=0)
    with pytest.raises(NoRoomError, match=f"{KV_TOKENS_MIN:,} are needed.*more nodes"):
        fits(card, wanted, lent)


def test_a_request_s_states_have_room_too():
    card = StandInCard(held_bytes=10 * GB)
    left = room(card)
    assert fitting_kv_tokens(card, left, 0, left.for_kv, 64) == 64
    with pytest.raises(NoRoomError):
        fitting_kv_tokens(card, left, 0, left.for_kv + 1, 64)
    with pytest.raises(NoRoomError):
        fitting_kv_tokens(card, left, TOKEN_BYTES, left.for_kv, None)


def full(*_: int) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory.")


def test_a_step_is_measured_by_what_the_allocator_held_at_most():
    card, asked = StandInCard(held_bytes=3 * GB, step=GB // 3), []
    assert measured_step_bytes(card, asked.append) == GB // 3
    assert asked == [SPAN_ROWS_MEASURED] and card.waits
    with pytest.raises(NoRoomError, match=r"too full for one step beside 3\.0 GiB"):
        measured_step_bytes(card, full)


def test_kv_is_made_smaller_until_its_far_end_can_be_computed():
    card, sizes, tried = StandInCard(), [], []

    def run_at(tokens: int) -> None:
        tried.append(tokens)
        if tokens > 6_000:
            full()

    settle_kv(card, 16_000, sizes.append, run_at)
    assert tried == [16_000, 12_000, 9_000, 6_750, 5_062] and sizes == tried[1:]
    with pytest.raises(NoRoomError, match="at the end of 2,048 tokens"):
        settle_kv(card, 16_000, sizes.append, full)
