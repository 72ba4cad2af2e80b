"""Algorithm 1 as the paper has it, line by line."""

from molink_scheduler.batch import DECODE, PREFILL
from molink_scheduler.link.facts import CHUNK_BYTES_MIN
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.priority_queues import DECISIONS_MAX
from molink_scheduler.link.sender import LinkSender
from molink_scheduler.link.transmission import LinkView, Transfer
from molink_sim.network.paper_queue import PIECE_BYTES_MAX, PaperQueue

RATE = 2.5e6
LINK = LinkView(RATE, 20_000)
FAR = LinkView(RATE, 20_000, next_decode_due_at=0.1)
"""T_a is 100 ms at 0: 250,000 B."""


def offer(queue, batch_class, *sizes, first=0):
    for number, size_bytes in enumerate(sizes, first):
        queue.offer(Transfer(number, batch_class, size_bytes))


def test_decode_leaves_whole_and_first():
    queue = PaperQueue()
    offer(queue, PREFILL, 10**6)
    offer(queue, DECODE, 300_000, 10, first=1)
    sent = [queue.next_chunk(0.0, FAR) for _ in range(3)]
    assert [(one.transfer_id, one.size_bytes) for one in sent] == [
        (1, 300_000),
        (2, 10),
        (0, 250_000),
    ]


def test_w_counts_decisions_for_which_both_wait_and_every_prefill_chunk_resets_it():
    queue = PaperQueue()
    offer(queue, DECODE, 10, 10)
    queue.next_chunk(0.0, FAR)
    assert queue.decisions == 0
    offer(queue, PREFILL, 10**6, first=9)
    queue.next_chunk(0.0, FAR)
    assert queue.decisions == 1
    assert queue.next_chunk(0.0, FAR).batch_class is PREFILL
    assert queue.decisions == 0


def test_at_the_nth_decision_all_that_is_left_goes_with_nothing_in_between():
    queue = PaperQueue()
    offer(queue, PREFILL, 9_000_000, 5_000)
    offer(queue, DECODE, *DECISIONS_MAX * [10], first=2)
    passed = [queue.next_chunk(0.0, FAR) for _ in range(DECISIONS_MAX - 1)]
    assert {one.batch_class for one in passed} == {DECODE}
    whole = [queue.next_chunk(0.0, FAR) for _ in range(3)]
    assert [one.transfer_id for one in whole] == [0, 0, 0] and whole[-1].last
    assert whole[0].size_bytes == PIECE_BYTES_MAX, "what a receiver takes at once"
    assert queue.next_chunk(0.0, FAR).batch_class is DECODE, "the next prompt has its own W"


def test_what_an_upload_cap_cuts_still_leaves_whole():
    queue = PaperQueue()
    offer(queue, PREFILL, 10**6)
    capped = LinkView(RATE, 20_000, chunk_bytes_max=60_000, next_decode_due_at=0.1)
    queue.next_chunk(0.0, capped)
    offer(queue, DECODE, 10, first=1)
    rest = [queue.next_chunk(0.0, capped) for _ in range(5)]
    assert [one.size_bytes for one in rest] == [60_000, 60_000, 60_000, 10_000, 10]


def test_where_the_paper_says_nothing():
    queue = PaperQueue()
    offer(queue, PREFILL, 10**6)
    late = LinkView(RATE, 20_000, next_decode_due_at=-0.1)
    sizes = [queue.next_chunk(0.0, link).size_bytes for link in (LINK, late)]
    assert sizes == [20_000, CHUNK_BYTES_MIN]


def test_no_room_is_made_for_a_step_and_decode_may_overdraw_the_window():
    sender = LinkSender(PaperQueue(), LinkPacer())
    sender.offer(Transfer(0, PREFILL, 10**6), 0.0)
    sender.set_decode_result_due(0.004)
    _, chunk = sender.next_chunk(0.0)
    sender.on_sent(0, chunk, chunk.size_bytes, 0.0)
    sender.offer(Transfer(1, DECODE, 3000), 0.0)
    _, chunk = sender.next_chunk(0.0)
    assert chunk.batch_class is DECODE
