from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.ring_choice import RingLoad, choose_ring


def test_an_idle_ring_is_taken_before_a_busy_one():
    assert choose_ring([RingLoad(500), RingLoad(0), RingLoad(0)], 100) == 1


def test_a_quick_ring_takes_more():
    assert choose_ring([RingLoad(300, speed=1.0), RingLoad(900, speed=4.0)], 100) == 1


@given(st.lists(st.integers(1, 3000), min_size=30, max_size=120), st.integers(1, 8))
def test_no_ring_has_more_than_a_request_over_the_least(requests, rings):
    loads = [RingLoad() for _ in range(rings)]
    for tokens in requests:
        loads[choose_ring(loads, tokens)].outstanding_tokens += tokens
    outstanding = [load.outstanding_tokens for load in loads]
    assert max(outstanding) - min(outstanding) <= max(requests)
