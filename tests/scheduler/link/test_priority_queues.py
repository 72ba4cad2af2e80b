"""Algorithm 1 as the paper has it, and where we leave it on purpose."""

import pytest

from molink_scheduler.batch import BatchClass
from molink_scheduler.link.facts import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, chunk_bytes_at
from molink_scheduler.link.priority_queues import (
    JUST_IN_TIME_BYTES_MAX,
    PriorityQueues,
    StarvationLimits,
    just_in_time,
)
from molink_scheduler.link.transmission import LinkView, Transfer
from molink_sim.network.policies import (
    FIXED_QUANTUM_BYTES,
    POLICIES,
    fixed_quantum,
    make_queue,
)

DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL
LINK = LinkView(2.5e6, 20_000)
N = 5
COUNT_ONLY = StarvationLimits(decisions_max=N, decode_bytes_max=10**12, wait_s_max=1e9)


def queues(limits: StarvationLimits = COUNT_ONLY) -> PriorityQueues:
    return PriorityQueues(just_in_time, fixed_quantum, limits)


def offer(queue: PriorityQueues, batch_class: BatchClass, count: int, size: int, first: int):
    for transfer_id in range(first, first + count):
        queue.offer(Transfer(transfer_id, batch_class, size))


def classes(queue: PriorityQueues, count: int, now: float = 0.0, link: LinkView = LINK):
    return [queue.next_chunk(now, link).batch_class for _ in range(count)]


def test_paper_decode_leaves_first_and_nothing_goes_between_its_pieces():
    queue = queues()
    offer(queue, PREFILL, 1, 10**6, first=0)
    offer(queue, DECODE, 2, 300_000, first=1)
    sent = []
    while (chunk := queue.next_chunk(0.0, LINK)).batch_class is DECODE:
        sent.append(chunk)
    assert [chunk.transfer_id for chunk in sent] == sorted(chunk.transfer_id for chunk in sent)
    assert sum(chunk.size_bytes for chunk in sent) == 600_000
    assert max(chunk.size_bytes for chunk in sent) == FIXED_QUANTUM_BYTES
    assert [chunk.transfer_id for chunk in sent if chunk.last] == [1, 2]


def test_a_turn_of_prefill_waits_for_the_end_of_a_decode_message():
    queue = queues(StarvationLimits(30, decode_bytes_max=10**12, wait_s_max=0.1))
    offer(queue, PREFILL, 1, 10**6, first=0)
    offer(queue, DECODE, 2, 300_000, first=1)
    queue.next_chunk(0.0, LINK)
    late = [queue.next_chunk(1.0, LINK) for _ in range(20)]
    ends = next(index for index, chunk in enumerate(late) if chunk.last)
    assert {chunk.transfer_id for chunk in late[: ends + 1]} == {1}
    assert late[ends + 1].batch_class is PREFILL


def test_paper_at_the_nth_decision_prefill_has_its_turn_and_w_starts_again():
    queue = queues()
    offer(queue, PREFILL, 1, 10**6, first=0)
    offer(queue, DECODE, 20, 10, first=1)
    assert classes(queue, 2 * N) == 2 * [*(N - 1) * [DECODE], PREFILL]


def test_paper_w_counts_only_decisions_for_which_both_wait():
    queue = queues()
    offer(queue, DECODE, 10, 10, first=1)
    classes(queue, 10)
    assert queue.starvation.decisions == 0
    offer(queue, PREFILL, 1, 10**6, first=0)
    offer(queue, DECODE, 3, 10, first=20)
    classes(queue, 3)
    assert queue.starvation.decisions == 3


def test_paper_every_prefill_chunk_sets_w_to_zero():
    """Why N = 30 is never reached: decode drains, a chunk leaves, and W starts again."""
    queue = queues()
    offer(queue, PREFILL, 1, 10**6, first=0)
    for number in range(1, 100, 4):
        offer(queue, DECODE, N - 2, 10, first=number)
        assert classes(queue, N - 1) == [*(N - 2) * [DECODE], PREFILL]
        assert queue.starvation.decisions == 0


def test_deviation_a_turn_is_one_quantum_and_not_all_that_remains():
    queue = queues()
    offer(queue, PREFILL, 1, 33_000_000, first=0)
    offer(queue, DECODE, 20, 10, first=1)
    far = LinkView(2.5e6, 20_000, next_decode_due_at=1.0)  # Just in time would send 2.5 MB.
    chunks = [queue.next_chunk(0.0, far) for _ in range(N)]
    assert chunks[-1].batch_class is PREFILL
    assert chunks[-1].size_bytes == queue.chunk_bytes_now == 16_384


def test_deviation_decode_bytes_bound_the_wait():
    queue = queues(StarvationLimits(30, decode_bytes_max=100_000, wait_s_max=1e9))
    offer(queue, PREFILL, 1, 10**6, first=0)
    offer(queue, DECODE, 40, 10_000, first=1)
    assert classes(queue, 11) == [*10 * [DECODE], PREFILL]


def test_deviation_milliseconds_bound_the_wait():
    queue = queues(StarvationLimits(30, 10**12, wait_s_max=0.1))
    offer(queue, PREFILL, 1, 10**6, first=0)
    offer(queue, DECODE, 20, 10, first=1)
    times = (5.0, 5.06, 5.09, 5.11, 5.12)
    sent = [queue.next_chunk(now, LINK).batch_class for now in times]
    assert sent == [DECODE, DECODE, DECODE, PREFILL, DECODE]


def test_deviation_time_on_the_wire_does_not_earn_prefill_a_turn():
    queue = queues(StarvationLimits(30, 10**12, wait_s_max=0.1))
    offer(queue, PREFILL, 1, 10**6, first=0)
    assert queue.next_chunk(0.0, LINK).batch_class is PREFILL
    offer(queue, DECODE, 1, 10, first=1)
    assert queue.next_chunk(3.0, LINK).batch_class is DECODE


def test_prefill_alone_follows_the_chunk_rule():
    queue = queues()
    offer(queue, PREFILL, 1, 10**7, first=0)
    chunk = queue.next_chunk(0.0, LinkView(2.5e6, 20_000, next_decode_due_at=0.1))
    assert chunk.size_bytes == queue.chunk_bytes_now == 250_000


def test_the_policies_differ_in_their_pieces():
    pieces = {}
    for policy in ("molink", "just_in_time", "quantum"):
        queue = make_queue(policy)
        queue.offer(Transfer(1, PREFILL, 10**7))
        view = LinkView(2.5e6, 20_000, next_decode_due_at=0.1)
        pieces[policy] = queue.next_chunk(0.0, view).size_bytes
    assert pieces == {"molink": 20_000, "just_in_time": 250_000, "quantum": 16_384}


@pytest.mark.parametrize("limits", [(1, 10, 0.1), (30, 0, 0.1), (30, 10, 0.0)])
def test_limits_that_never_let_decode_go_first_are_refused(limits):
    with pytest.raises(ValueError, match=r"decode never|prefill must"):
        StarvationLimits(*limits)


MBPS_100 = 12.5e6
STEP_S = 0.0082
"""T_d(8) of 11 layers of a 7B model on an RTX 4090."""

ROUND_S = 3 * STEP_S + 0.10704064
"""T_o + T_m: three steps, and for 8 decode tokens of LLaMA-30B (act_sz 13,312) on three hops of 100
Mbps and 30 ms 3 x 30 ms + 2 x 13,312 x 8 / 12.5 MB/s + 2 x 8 / 12.5 MB/s."""


@pytest.mark.parametrize(
    ("due_at", "now", "size_bytes"),
    [
        pytest.param(10.0 + STEP_S, 10.0, 102_500, id="case 1: one begins here, T_a = 8.2 ms"),
        pytest.param(10.0 + STEP_S, 10.003, 65_000, id="case 2: one computes here, T_a = 5.2 ms"),
        pytest.param(10.0 + ROUND_S, 10.02, 1_395_508, id="case 3: none does, T_a = 111.6 ms"),
        pytest.param(None, 10.0, CHUNK_BYTES_MAX, id="deviation: without a forecast one quantum"),
        pytest.param(10.0, 11.0, CHUNK_BYTES_MIN, id="deviation: overdue, a smallest piece"),
        pytest.param(100.0, 10.0, JUST_IN_TIME_BYTES_MAX, id="deviation: a far forecast is capped"),
    ],
)
def test_just_in_time_fills_the_link_until_decode_is_due(due_at, now, size_bytes):
    link = LinkView(MBPS_100, chunk_bytes_at(MBPS_100), next_decode_due_at=due_at)
    assert just_in_time(now, link) == size_bytes


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(6.25e4, CHUNK_BYTES_MIN), (2.5e6, 20_000), (5e6, 40_000), (1.25e8, CHUNK_BYTES_MAX)],
)
def test_a_chunk_follows_the_rate_within_limits(rate, expected):
    assert chunk_bytes_at(rate) == expected


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("batch_class", BatchClass)
def test_nothing_is_longer_than_what_the_cap_lets_go(policy, batch_class):
    queue = make_queue(policy)
    queue.offer(Transfer(1, batch_class, 100_000))
    link = LinkView(2.5e6, 20_000, chunk_bytes_max=1_000, next_decode_due_at=0.1)
    sizes = [queue.next_chunk(0.0, link).size_bytes for _ in range(100)]
    assert sizes == 100 * [1_000] and queue.is_empty
