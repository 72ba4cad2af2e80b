"""Who departs together, and that nobody is left behind for the sake of even shares."""

from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.head.micro_batches import MicroBatches


def out(count: int, circling: int) -> MicroBatches:
    places = MicroBatches(count)
    for _ in range(circling):
        places.departed(places.free_slot())
    return places


def test_the_last_place_takes_one_more_rather_than_leave_it():
    assert out(2, 1).share(6, ready_count=4) == 4
    assert out(2, 0).share(6, ready_count=4) == 3


def test_a_micro_batch_much_over_its_share_is_split():
    assert out(2, 1).share(6, ready_count=6) == 3


@given(st.integers(1, 12), st.integers(1, 200), st.data())
def test_shares_stay_near_even(count, running, data):
    circling = data.draw(st.integers(0, count - 1))
    at_home = data.draw(st.integers(1, running))
    share = out(count, circling).share(running, at_home)
    even = -(-running // count)
    assert 1 <= share <= at_home if at_home <= even else even <= share <= even + max(1, even // 4)
