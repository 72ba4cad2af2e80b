"""Prefill stops for a decode step under way: late enough, and never for long."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.batch import BatchClass
from molink_scheduler.link.facts import LinkMemory
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.sender import (
    LATE_S_MAX,
    PAUSE_S_MAX,
    PAUSE_S_MIN,
    PAUSE_SHARE_MAX,
    LinkSender,
    PrefillPause,
)
from molink_scheduler.link.transmission import POLICIES, Transfer, make_transmission
from molink_scheduler.link.upload_budget import UploadBudget

DRAIN_S = 0.012
STEP_S = 0.02
DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL
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
    sender = LinkSender(make_transmission(policy), LinkPacer(LinkMemory(1.25e7, 0.06)))
    sender.offer(Transfer(0, PREFILL, 1_000_000, 100), 0.0)
    sender.set_decode_result_due(0.004)
    decode_first = policy in ("molink", "just_in_time", "quantum")
    assert (sender.next_chunk(0.0) is None) == decode_first
    if decode_first:
        assert sender.next_wake(0.0) == pytest.approx(0.004 + LATE_S_MAX)


def test_decode_ends_the_hold_and_prefill_follows_it():
    sender = LinkSender(make_transmission(), LinkPacer(LinkMemory(1.25e7, 0.06)))
    sender.offer(Transfer(0, PREFILL, 1_000_000, 100), 0.0)
    sender.set_decode_result_due(0.004)
    assert sender.next_chunk(0.0) is None
    sender.offer(Transfer(1, DECODE, 3000, 1), 0.003)
    sequence, chunk = sender.next_chunk(0.003)
    assert chunk.transfer_id == 1
    sender.sent(sequence, chunk, 3020, 0.003)
    _, chunk = sender.next_chunk(0.003)
    assert chunk.transfer_id == 0


def test_decode_in_pieces_is_woken_by_its_own_rule():
    """A cap on uploads keeps a reserve that decode may use and prefill may not."""
    budget = UploadBudget(1e6)
    sender = LinkSender(make_transmission(), LinkPacer(LinkMemory(20 * MBPS, 0.06), budget))
    sender.offer(Transfer(0, DECODE, 65_536, 8), 0.0)
    now = 0.0
    while (leaving := sender.next_chunk(now)) is not None:
        sender.sent(*leaving, leaving[1].size_bytes, now)
    wake = sender.next_wake(now)
    assert wake is not None
    assert wake == sender.pacer.next_wake(now, urgent=True) < sender.pacer.next_wake(now)


@pytest.mark.parametrize("step_s", [0.02, 0.04])
def test_a_mild_drop_is_learned_although_prefill_makes_room(step_s):
    """20 to 14 Mbps under prefill, with a decode step every so often."""
    wire = StepWire(change_at=3.0, before=20 * MBPS, after=14 * MBPS)
    sender = LinkSender(make_transmission(), LinkPacer(LinkMemory(20 * MBPS, 0.06)))
    sender.offer(Transfer(0, PREFILL, 10**9, 1), 0.0)
    acks, now, decode = [], 0.0, 1
    for millisecond in range(10_000):
        now = millisecond / 1000
        while acks and acks[0][0] <= now:
            sender.acknowledged(acks.pop(0)[1], now)
        if millisecond % round(1000 * step_s) == 0:
            sender.offer(Transfer(decode, DECODE, 3000, 1), now)
            decode += 1
            sender.set_decode_result_due(now + step_s)
        while (leaving := sender.next_chunk(now)) is not None:
            sequence, chunk = leaving
            sender.sent(sequence, chunk, chunk.size_bytes, now)
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
