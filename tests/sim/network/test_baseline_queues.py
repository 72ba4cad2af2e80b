"""Fifo keeps the order of offer, fair shares evenly and lets nobody overtake in his class."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.batch import BatchClass
from molink_scheduler.link.transmission import LinkView, Transfer
from molink_sim.network.baseline_queues import FAIR_PIECE_BYTES, FIFO_PIECE_BYTES
from molink_sim.network.policies import make_queue

DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL
LINK = LinkView(2.5e6, 20_000)

batches = st.lists(st.tuples(st.sampled_from(BatchClass), st.integers(1, 200_000)), max_size=20)


def fill(policy: str, rows):
    queue = make_queue(policy)
    for transfer_id, (batch_class, size) in enumerate(rows):
        queue.offer(Transfer(transfer_id, batch_class, size))
    return queue


def drain(queue):
    return list(iter(lambda: queue.next_chunk(0.0, LINK), None))


@given(batches)
def test_fifo_sends_whole_transfers_in_order_of_offer(rows):
    sent = drain(fill("fifo", rows))
    assert [c.transfer_id for c in sent] == sorted(c.transfer_id for c in sent)
    assert all(c.size_bytes == FIFO_PIECE_BYTES or c.last for c in sent)


@given(batches)
def test_fair_gives_everybody_as_much_as_the_next(rows):
    """While no transfer is on its last piece, nobody is more than a piece ahead of anybody."""
    queue, sent = fill("fair", rows), Counter()
    left = {transfer_id: size for transfer_id, (_, size) in enumerate(rows)}
    while all(size > FAIR_PIECE_BYTES for size in left.values()):
        if (chunk := queue.next_chunk(0.0, LINK)) is None:
            break
        sent[chunk.transfer_id] += chunk.size_bytes
        left[chunk.transfer_id] -= chunk.size_bytes
        shares = [sent[transfer_id] for transfer_id in left]
        assert max(shares) - min(shares) <= FAIR_PIECE_BYTES


def test_fair_lets_a_decode_wait_for_one_piece_of_each_other():
    queue = fill("fair", [(PREFILL, 10**6)] * 5)
    for _ in range(7):
        queue.next_chunk(0.0, LINK)
    queue.offer(Transfer(9, DECODE, 5_000))
    sent = [queue.next_chunk(0.0, LINK).transfer_id for _ in range(6)]
    assert sent == [2, 3, 4, 0, 1, 9]


def test_fair_keeps_back_the_end_of_a_short_span_behind_a_long_one():
    queue = fill("fair", [(PREFILL, 5 * FAIR_PIECE_BYTES), (PREFILL, 2 * FAIR_PIECE_BYTES)])
    assert [c.transfer_id for c in drain(queue)] == [0, 1, 0, 0, 0, 0, 1]
