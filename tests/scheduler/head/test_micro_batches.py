"""Who departs together: even shares, however requests came to be where they are."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.head.micro_batches import MicroBatches


def test_a_micro_batch_over_its_share_leaves_some_to_the_next():
    places = MicroBatches(2)
    assert places.share(6, ready_count=4) == 3
    assert places.share(6, ready_count=6) == 3
    assert places.share(6, ready_count=2) == 2


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12))
def test_uneven_micro_batches_are_even_after_a_round_or_two(sizes):
    """They come back in the order in which they left, as over links."""
    places, running, left = MicroBatches(len(sizes)), sum(sizes), 0
    circling = deque(sizes)
    for _ in range(2 * len(sizes)):
        left += circling.popleft()
        share = places.share(running, left)
        circling.append(share)
        left -= share
    assert left == 0 and max(circling) <= -(-running // len(sizes))


@given(st.integers(1, 12), st.integers(1, 200), st.data())
def test_somebody_departs_whenever_somebody_is_ready(count, running, data):
    ready = data.draw(st.integers(1, running))
    assert 1 <= MicroBatches(count).share(running, ready) <= ready
