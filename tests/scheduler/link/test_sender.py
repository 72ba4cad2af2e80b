"""The queue's order under the pacer's limits, as live link and simulator drive them."""

import pytest

from molink_scheduler.batch import BatchClass
from molink_scheduler.link.facts import LinkMemory
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.sender import LinkSender
from molink_scheduler.link.transmission import Transfer, make_transmission

DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL


@pytest.fixture
def link_sender():
    return LinkSender(make_transmission(), LinkPacer(LinkMemory(1.25e7, 0.06)))


def send_all(sender, now):
    sent = []
    while (leaving := sender.next_chunk(now)) is not None:
        sequence, chunk = leaving
        sender.sent(sequence, chunk, chunk.size_bytes + 20, now)
        sent.append((sequence, chunk))
    return sent


def test_nothing_leaves_and_nobody_wakes_when_nothing_waits(link_sender):
    assert link_sender.next_chunk(0.0) is None
    assert link_sender.next_wake(0.0) is None and not link_sender.is_waiting


def test_prefill_stops_at_the_window_and_decode_still_leaves(link_sender):
    link_sender.offer(Transfer(0, PREFILL, 50_000_000, 3000), 0.0)
    for millisecond in range(200):
        send_all(link_sender, now := millisecond / 1000)
    assert link_sender.next_chunk(now) is None and link_sender.is_waiting
    link_sender.offer(Transfer(1, DECODE, 8192, 1), now)
    [(_, chunk)] = send_all(link_sender, now)
    assert chunk.transfer_id == 1 and chunk.last


def test_acknowledgements_make_room_and_numbers_rise(link_sender):
    link_sender.offer(Transfer(0, PREFILL, 3_000_000, 300), 0.0)
    numbers, under_way, now = [], [], 0.0
    while link_sender.is_waiting:
        now += 0.001
        while under_way and under_way[0][0] <= now:
            link_sender.acknowledged(under_way.pop(0)[1], now)
        for sequence, _ in send_all(link_sender, now):
            numbers.append(sequence)
            under_way.append((now + 0.06, sequence))
        assert now < 10
    assert numbers == list(range(len(numbers)))


def test_after_another_connection_the_unacknowledged_leave_first_under_their_numbers(link_sender):
    link_sender.offer(Transfer(0, PREFILL, 3_000_000, 300), 0.0)
    for millisecond in range(50):
        send_all(link_sender, millisecond / 1000)
    count = link_sender.pacer._newest_sequence + 1
    assert link_sender.acknowledged(1, 0.05) and link_sender.oldest == 2
    link_sender.connected_anew(4, 0.06, other_way=False)
    repeated, now = [], 0.06
    while link_sender.is_repeating:
        assert link_sender.next_chunk(now) is None and now < 1
        while (repeat := link_sender.next_repeat(now)) is not None:
            link_sender.repeated(repeat, now)
            repeated.append(repeat.sequence)
        now += 0.001
    assert repeated == list(range(4, count))
    link_sender.acknowledged(count - 1, now)
    assert [sequence for sequence, _ in send_all(link_sender, now + 0.1)][:1] == [count]


def test_a_connection_that_dies_while_it_repeats_is_followed_by_another(link_sender):
    link_sender.offer(Transfer(0, PREFILL, 3_000_000, 300), 0.0)
    for millisecond in range(50):
        send_all(link_sender, millisecond / 1000)
    count = link_sender.pacer._newest_sequence + 1
    link_sender.connected_anew(0, 0.06, other_way=True)
    for _ in range(3):
        if (repeat := link_sender.next_repeat(0.06)) is not None:
            link_sender.repeated(repeat, 0.06)
    assert link_sender.oldest == 0
    link_sender.connected_anew(1, 0.07, other_way=True)
    assert link_sender.oldest == 1
    repeats, now = [], 0.07
    while link_sender.is_repeating:
        assert now < 10
        while (repeat := link_sender.next_repeat(now)) is not None:
            link_sender.repeated(repeat, now)
            link_sender.acknowledged(repeat.sequence, now + 0.001)
            repeats.append(repeat.sequence)
        now += 0.002
    assert repeats == list(range(1, count)) and link_sender.oldest is None


def test_a_far_end_that_misses_a_chunk_is_sent_it_once_more_only_once(link_sender):
    link_sender.offer(Transfer(0, DECODE, 100, 1), 0.0)
    send_all(link_sender, 0.0)
    assert link_sender.missing(0, 0.1)
    assert not link_sender.missing(0, 0.1)  # Said of each chunk that came too early.
    for unknown in (1, 10**9):
        assert not link_sender.missing(unknown, 0.1)
    assert link_sender.pacer.acks_refused == 2
