"""The queue's order under the pacer's limits, as live link and simulator drive them."""

import pytest

from molink_scheduler.batch import BatchClass
from molink_scheduler.link_facts import LinkMemory
from molink_scheduler.link_pacer import LinkPacer
from molink_scheduler.link_sender import LinkSender
from molink_scheduler.transmission import Transfer, make_transmission

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
