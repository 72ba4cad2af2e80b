"""The queue's order under the pacer's limits, as live link and simulator drive them."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.batch import BatchClass
from molink_scheduler.link.facts import LinkMemory
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.priority_queues import PriorityQueues
from molink_scheduler.link.sender import (
    LATE_S_MAX,
    PAUSE_S_MAX,
    PAUSE_S_MIN,
    PAUSE_SHARE_MAX,
    LinkSender,
    PrefillPause,
)
from molink_scheduler.link.transmission import Transfer
from molink_scheduler.link.upload_budget import UploadBudget
from molink_sim.network.policies import POLICIES, make_queue

DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL


@pytest.fixture
def link_sender():
    return LinkSender(PriorityQueues(), LinkPacer(LinkMemory(1.25e7, 0.06)))


def send_all(sender, now):
    sent = []
    while (leaving := sender.next_chunk(now)) is not None:
        sequence, chunk = leaving
        sender.on_sent(sequence, chunk, chunk.size_bytes + 20, now)
        sent.append((sequence, chunk))
    return sent


def test_nothing_leaves_and_nobody_wakes_when_nothing_waits(link_sender):
    assert link_sender.next_chunk(0.0) is None
    assert link_sender.next_wake(0.0) is None and not link_sender.is_waiting


def test_prefill_stops_at_the_window_and_decode_still_leaves(link_sender):
    link_sender.offer(Transfer(0, PREFILL, 50_000_000), 0.0)
    for millisecond in range(200):
        send_all(link_sender, now := millisecond / 1000)
    assert link_sender.next_chunk(now) is None and link_sender.is_waiting
    link_sender.offer(Transfer(1, DECODE, 8192), now)
    [(_, chunk)] = send_all(link_sender, now)
    assert chunk.transfer_id == 1 and chunk.last


def test_acknowledgements_make_room_and_numbers_rise(link_sender):
    link_sender.offer(Transfer(0, PREFILL, 3_000_000), 0.0)
    numbers, under_way, now = [], [], 0.0
    while link_sender.is_waiting:
        now += 0.001
        while under_way and under_way[0][0] <= now:
            link_sender.on_ack(under_way.pop(0)[1], now)
        for sequence, _ in send_all(link_sender, now):
            numbers.append(sequence)
            under_way.append((now + 0.06, sequence))
        assert now < 10
    assert numbers == list(range(len(numbers)))


def test_after_another_connection_the_unacknowledged_leave_first_under_their_numbers(link_sender):
    link_sender.offer(Transfer(0, PREFILL, 3_000_000), 0.0)
    for millisecond in range(50):
        send_all(link_sender, millisecond / 1000)
    count = link_sender.pacer._newest_sequence + 1
    assert link_sender.on_ack(1, 0.05) and link_sender.oldest == 2
    link_sender.connection_changed(4, 0.06, path_changed=False)
    repeated, now = [], 0.06
    while link_sender._again:
        assert link_sender.next_chunk(now) is None and now < 1
        while (repeat := link_sender.next_repeat(now)) is not None:
            link_sender.on_repeated(repeat, now)
            repeated.append(repeat.sequence)
        now += 0.001
    assert repeated == list(range(4, count))
    link_sender.on_ack(count - 1, now)
    assert [sequence for sequence, _ in send_all(link_sender, now + 0.1)][:1] == [count]


def test_a_connection_that_dies_while_it_repeats_is_followed_by_another(link_sender):
    link_sender.offer(Transfer(0, PREFILL, 3_000_000), 0.0)
    for millisecond in range(50):
        send_all(link_sender, millisecond / 1000)
    count = link_sender.pacer._newest_sequence + 1
    link_sender.connection_changed(0, 0.06, path_changed=True)
    for _ in range(3):
        if (repeat := link_sender.next_repeat(0.06)) is not None:
            link_sender.on_repeated(repeat, 0.06)
    assert link_sender.oldest == 0
    link_sender.connection_changed(1, 0.07, path_changed=True)
    assert link_sender.oldest == 1
    repeats, now = [], 0.07
    while link_sender._again:
        assert now < 10
        while (repeat := link_sender.next_repeat(now)) is not None:
            link_sender.on_repeated(repeat, now)
            link_sender.on_ack(repeat.sequence, now + 0.001)
            repeats.append(repeat.sequence)
        now += 0.002
    assert repeats == list(range(1, count)) and link_sender.oldest is None


def test_a_far_end_that_misses_a_chunk_is_sent_it_once_more_only_once(link_sender):
    link_sender.offer(Transfer(0, DECODE, 100), 0.0)
    send_all(link_sender, 0.0)
    assert link_sender.missing(0, 0.1)
    assert not link_sender.missing(0, 0.1)  # Said of each chunk that came too early.
    for unknown in (1, 10**9):
        assert not link_sender.missing(unknown, 0.1)
    assert link_sender.pacer.acks_refused == 2


DRAIN_S = 0.012
STEP_S = 0.02
MBPS = 1e6 / 8


def test_without_a_step_nothing_is_held():
    assert PrefillPause().until(1.0, DRAIN_S) is None


def test_prefill_goes_on_while_the_queue_runs_empty_in_time():
    hold = PrefillPause(ready_at=1.0)
    assert hold.until(1.0 - DRAIN_S - 0.001, DRAIN_S) is None
    assert hold.until(1.0 - DRAIN_S + 0.001, DRAIN_S) == pytest.approx(1.0 + LATE_S_MAX)


def test_a_step_that_is_late_is_not_waited_for_longer():
    hold = PrefillPause(ready_at=1.0)
    assert hold.until(1.0, DRAIN_S) is not None
    assert hold.until(1.0 + LATE_S_MAX, DRAIN_S) is None


def test_a_long_queue_is_not_waited_for():
    hold = PrefillPause(ready_at=1.0)
    assert hold.until(0.5, 10.0) == pytest.approx(0.5 + PAUSE_S_MAX)
    assert hold.until(0.5 + PAUSE_S_MAX, 10.0) is None


@given(st.lists(st.floats(0.001, 0.5), min_size=1, max_size=200), st.floats(0.0, 1.0))
def test_prefill_gives_up_a_bounded_share(pauses_s, drain_s):
    hold, now, held_s = PrefillPause(), 0.0, 0.0
    for pause_s in pauses_s:
        hold.ready_at = now + STEP_S
        until = hold.until(now, drain_s)
        if until is not None:
            held_s += until - now
            now = until
            assert hold.until(now, drain_s) is None
        hold.end(now)
        now += pause_s
    assert held_s <= PAUSE_S_MAX + PAUSE_S_MIN + PAUSE_SHARE_MAX * now + 1e-9


@pytest.mark.parametrize("policy", POLICIES)
def test_only_policies_that_put_decode_first_hold_prefill(policy):
    sender = LinkSender(make_queue(policy), LinkPacer(LinkMemory(1.25e7, 0.06)))
    sender.offer(Transfer(0, PREFILL, 1_000_000), 0.0)
    sender.set_decode_result_due(0.004)
    decode_first = policy in ("molink", "just_in_time", "quantum")
    assert (sender.next_chunk(0.0) is None) == decode_first
    if decode_first:
        assert sender.next_wake(0.0) == pytest.approx(0.004 + LATE_S_MAX)


def test_decode_ends_the_hold_and_prefill_follows_it():
    sender = LinkSender(PriorityQueues(), LinkPacer(LinkMemory(1.25e7, 0.06)))
    sender.offer(Transfer(0, PREFILL, 1_000_000), 0.0)
    sender.set_decode_result_due(0.004)
    assert sender.next_chunk(0.0) is None
    sender.offer(Transfer(1, DECODE, 3000), 0.003)
    sequence, chunk = sender.next_chunk(0.003)
    assert chunk.transfer_id == 1
    sender.on_sent(sequence, chunk, 3020, 0.003)
    _, chunk = sender.next_chunk(0.003)
    assert chunk.transfer_id == 0


def test_decode_in_pieces_is_woken_by_its_own_rule():
    """A cap on uploads keeps a reserve that decode may use and prefill may not."""
    budget = UploadBudget(1e6)
    sender = LinkSender(PriorityQueues(), LinkPacer(LinkMemory(20 * MBPS, 0.06), budget))
    sender.offer(Transfer(0, DECODE, 65_536), 0.0)
    now = 0.0
    while (leaving := sender.next_chunk(now)) is not None:
        sender.on_sent(*leaving, leaving[1].size_bytes, now)
    wake = sender.next_wake(now)
    assert wake is not None
    assert wake == sender.pacer.next_wake(now, urgent=True) < sender.pacer.next_wake(now)


@pytest.mark.parametrize("step_s", [0.02, 0.04])
def test_a_mild_drop_is_learned_although_prefill_makes_room(step_s):
    """20 to 14 Mbps under prefill, with a decode step every so often."""
    wire = StepWire(change_at=3.0, before=20 * MBPS, after=14 * MBPS)
    sender = LinkSender(PriorityQueues(), LinkPacer(LinkMemory(20 * MBPS, 0.06)))
    sender.offer(Transfer(0, PREFILL, 10**9), 0.0)
    acks, now, decode = [], 0.0, 1
    for millisecond in range(10_000):
        now = millisecond / 1000
        while acks and acks[0][0] <= now:
            sender.on_ack(acks.pop(0)[1], now)
        if millisecond % round(1000 * step_s) == 0:
            sender.offer(Transfer(decode, DECODE, 3000), now)
            decode += 1
            sender.set_decode_result_due(now + step_s)
        while (leaving := sender.next_chunk(now)) is not None:
            sequence, chunk = leaving
            sender.on_sent(sequence, chunk, chunk.size_bytes, now)
            acks.append((wire.carried(chunk.size_bytes, now) + 0.06, sequence))
    assert sender.rate_bytes_per_s == pytest.approx(14 * MBPS, rel=0.1)


@dataclass
class StepWire:
    """Bytes one after the other, at a rate that changes once."""

    change_at: float
    before: float
    after: float
    free_at: float = 0.0

    def carried(self, size_bytes: int, now: float) -> float:
        begins = max(now, self.free_at)
        rate = self.before if begins < self.change_at else self.after
        self.free_at = begins + size_bytes / rate
        return self.free_at


@pytest.mark.parametrize(("cap_mbps", "wait_s_max"), [(10, 0.001), (5, 0.001), (2, 0.015)])
def test_under_a_cap_far_below_the_links_rate_decode_finds_its_reserve(cap_mbps, wait_s_max):
    """100 Mbps and more prefill than the cap lets go; a chunk of the link's own 8 ms would hold
    0.5 s of a cap of 1 Mbps, and take decode's reserve with it."""
    budget = UploadBudget(cap_mbps * MBPS)
    sender = LinkSender(PriorityQueues(), LinkPacer(LinkMemory(100 * MBPS, 0.06), budget))
    sender.offer(Transfer(0, PREFILL, 10**9), 0.0)
    acks, waits, offered_at, sent_bytes = [], [], {}, 0
    for step in range(8_000):
        now = step * 0.0005
        while acks and acks[0][0] <= now:
            sender.on_ack(acks.pop(0)[1], now)
        if step % 200 == 99:
            offered_at[step] = now
            sender.offer(Transfer(step, DECODE, 8192), now)
        while True:
            sendable = sender.pacer.sendable_bytes(now, urgent=bool(offered_at))
            if (leaving := sender.next_chunk(now)) is None:
                break
            sequence, chunk = leaving
            assert chunk.size_bytes <= sendable
            sender.on_sent(sequence, chunk, chunk.size_bytes, now)
            sent_bytes += chunk.size_bytes
            acks.append((now + 0.06, sequence))
            if chunk.last and chunk.transfer_id in offered_at:
                waits.append(now - offered_at.pop(chunk.transfer_id))
    assert len(waits) == 40 and max(waits) <= wait_s_max
    assert sent_bytes >= 0.98 * 4.0 * cap_mbps * MBPS


@pytest.mark.parametrize("batch_class", BatchClass)
def test_a_cap_that_falls_while_the_link_is_quiet_slows_it_and_does_not_stop_it(batch_class):
    """No acknowledgement comes that could tell the window of the smaller chunks."""
    budget = UploadBudget(None)
    sender = LinkSender(PriorityQueues(), LinkPacer(LinkMemory(100 * MBPS, 0.06), budget))
    budget.set_cap(1 * MBPS)
    sender.offer(Transfer(0, batch_class, 3000), 0.0)
    now, left = 0.0, 3000
    while left:
        for _, chunk in send_all(sender, now):
            left -= chunk.size_bytes
        now = sender.next_wake(now) if left else now
        assert now < 0.1


JUST_IN_TIME_CASES = {
    "no forecast": (None, None, 8000),
    "cases 1 and 2: a step's result": (None, 100.0082, 8200),
    "case 3: a round": (100.1116, None, 111_600),
}


@pytest.mark.parametrize(
    ("round_due", "result_due", "size_bytes"), JUST_IN_TIME_CASES.values(), ids=JUST_IN_TIME_CASES
)
def test_both_words_of_a_stage_move_what_the_just_in_time_rule_asks(
    round_due, result_due, size_bytes
):
    """1 MB/s."""
    sender = LinkSender(make_queue("paper"), LinkPacer())
    sender.offer(Transfer(1, PREFILL, 16_000_000), 100.0)
    if round_due is not None:
        sender.set_next_decode_due(round_due)
    if result_due is not None:
        sender.set_decode_result_due(result_due)
    _, chunk = sender.next_chunk(100.0)
    assert chunk.size_bytes == size_bytes


def test_the_round_takes_over_once_a_step_has_ended():
    sender = LinkSender(make_queue("paper"), LinkPacer())
    sender.offer(Transfer(1, PREFILL, 16_000_000), 100.0)
    sender.set_decode_result_due(100.0)
    sender.set_next_decode_due(100.05)
    _, chunk = sender.next_chunk(100.0)
    assert chunk.size_bytes == 50_000


def rounds_of(pause: PrefillPause, off_s: float, count: int) -> float:
    """Rounds of 100 ms whose steps begin so late; when the next result is due by the last."""
    now = 0.0
    for number in range(count):
        now = 0.1 * number
        pause.result_leaves(now + 0.1, now)
        pause.step_begins(now + 0.1 + off_s)
    pause.result_leaves(now + 0.2, now + 0.1)
    return now + 0.2


def test_room_is_made_for_a_round_once_rounds_are_even():
    due_at = rounds_of(pause := PrefillPause(), 0.001, 12)
    assert pause.until(due_at - DRAIN_S / 2, DRAIN_S) is not None
    assert pause.until(due_at - 2 * DRAIN_S, DRAIN_S) is None


@pytest.mark.parametrize(("off_s", "count"), [(0.02, 12), (0.001, 1)])
def test_uneven_rounds_are_not_made_room_for(off_s, count):
    due_at = rounds_of(pause := PrefillPause(), off_s, count)
    assert pause.until(due_at - DRAIN_S / 2, DRAIN_S) is None


def test_a_stage_that_expects_nothing_is_not_made_room_for():
    rounds_of(pause := PrefillPause(), 0.0, 12)
    pause.result_leaves(None, 2.0)
    assert pause.until(2.0, DRAIN_S) is None
