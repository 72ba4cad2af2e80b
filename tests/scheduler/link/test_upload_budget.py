"""The cap: kept in every second, shared by all links, and never in the way of decode."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.link.upload_budget import UNLIMITED_BYTES, UploadBudget, check_cap

steps = st.lists(
    st.tuples(st.floats(0, 0.2), st.booleans(), st.floats(0.01, 1)), min_size=1, max_size=200
)


@settings(derandomize=True, deadline=None)
@given(st.floats(1e4, 1e8), steps)
def test_no_second_carries_more_than_five_percent_over_the_cap(cap, script):
    budget = UploadBudget(cap)
    now, sends = 0.0, []
    for pause_s, urgent, share in script:
        now += pause_s
        size = int(budget.sendable_bytes(now, urgent=urgent) * share)
        budget.on_sent(size, now)
        sends.append((now, size))
    for start, _ in sends:
        assert sum(size for at, size in sends if start <= at <= start + 1) <= 1.05 * cap


@pytest.mark.parametrize("cap", [125e3, 1e6, 12.5e6])
def test_a_greedy_link_gets_the_cap_and_no_more(cap):
    budget = UploadBudget(cap)
    now, sent_bytes = 0.0, 0
    while now < 10:
        size = budget.sendable_bytes(now)
        budget.on_sent(size, now)
        sent_bytes += size
        now = max(now + 1e-4, budget.sendable_at(4096, now))
    assert 0.98 * 10 * cap <= sent_bytes <= 1.01 * 10 * cap


def test_decode_finds_room_that_prefill_cannot_take():
    budget = UploadBudget(1e6)
    budget.on_sent(budget.sendable_bytes(0.0), 0.0)
    assert budget.sendable_bytes(0.0) == 0
    assert budget.sendable_bytes(0.0, urgent=True) == 20_000
    budget.on_sent(20_000, 0.0)
    assert budget.sendable_bytes(0.0, urgent=True) == 0
    assert budget.sendable_bytes(0.019) == 0
    assert budget.sendable_bytes(0.031) > 0


def test_room_is_there_when_it_was_promised():
    budget = UploadBudget(1e6)
    budget.on_sent(40_000, 5.0)
    for urgent in (False, True):
        at = budget.sendable_at(8192, 5.0, urgent=urgent)
        assert (
            budget.sendable_bytes(at - 1e-4, urgent=urgent)
            < 8192
            <= budget.sendable_bytes(at, urgent=urgent)
        )
    assert math.isfinite(budget.sendable_at(10**9, 5.0))


def test_bytes_beyond_the_room_are_waited_for():
    budget = UploadBudget(1e6)
    budget.on_sent(1_040_000, 0.0)
    assert budget.sendable_bytes(0.99, urgent=True) == 0
    assert budget.sendable_bytes(1.01, urgent=True) > 0


def test_links_share_one_budget_and_a_clock_that_steps_back_fills_nothing():
    budget = UploadBudget(1e6)
    budget.on_sent(40_000, 1.0)
    assert budget.sendable_bytes(0.5, urgent=True) == 0
    budget.on_sent(0, 0.5)
    assert budget.sendable_bytes(1.0, urgent=True) == 0


def test_without_a_cap_there_is_always_room():
    budget = UploadBudget(None)
    budget.on_sent(10**9, 0.0)
    assert budget.sendable_bytes(0.0) == UNLIMITED_BYTES
    assert budget.sendable_at(10**9, 0.0) == 0.0


def test_a_cap_below_one_decode_stream_is_refused_with_the_number():
    check_cap(1e6, 0.9e6)
    with pytest.raises(ValueError, match=r"needs 8 Mbps"):
        check_cap(0.9e6, 1e6)


@pytest.mark.parametrize("cap", [0, -1, float("nan"), float("inf")])
def test_a_cap_must_make_sense(cap):
    with pytest.raises(ValueError, match="above 0"):
        UploadBudget(cap)
