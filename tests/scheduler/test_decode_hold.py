"""Prefill stops for a decode step under way: late enough, and never for long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.batch import BatchClass
from molink_scheduler.decode_hold import (
    HOLD_S_MAX,
    HOLD_S_MIN,
    HOLD_SHARE_MAX,
    LATE_S_MAX,
    DecodeHold,
)
from molink_scheduler.link_facts import LinkMemory
from molink_scheduler.link_pacer import LinkPacer
from molink_scheduler.link_sender import LinkSender
from molink_scheduler.transmission import POLICIES, Transfer, make_transmission

DRAIN_S = 0.012
STEP_S = 0.02
DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL


def test_without_a_step_nothing_is_held():
    assert DecodeHold().until(1.0, DRAIN_S) is None


def test_prefill_goes_on_while_the_queue_runs_empty_in_time():
    hold = DecodeHold(ready_at=1.0)
    assert hold.until(1.0 - DRAIN_S - 0.001, DRAIN_S) is None
    assert hold.until(1.0 - DRAIN_S + 0.001, DRAIN_S) == pytest.approx(1.0 + LATE_S_MAX)


def test_a_step_that_is_late_is_not_waited_for_longer():
    hold = DecodeHold(ready_at=1.0)
    assert hold.until(1.0, DRAIN_S) is not None
    assert hold.until(1.0 + LATE_S_MAX, DRAIN_S) is None


def test_a_long_queue_is_not_waited_for():
    hold = DecodeHold(ready_at=1.0)
    assert hold.until(0.5, 10.0) == pytest.approx(0.5 + HOLD_S_MAX)
    assert hold.until(0.5 + HOLD_S_MAX, 10.0) is None


@given(st.lists(st.floats(0.001, 0.5), min_size=1, max_size=200), st.floats(0.0, 1.0))
def test_prefill_gives_up_a_bounded_share(pauses_s, drain_s):
    hold, now, held_s = DecodeHold(), 0.0, 0.0
    for pause_s in pauses_s:
        hold.ready_at = now + STEP_S
        until = hold.until(now, drain_s)
        if until is not None:
            held_s += until - now
            now = until
            assert hold.until(now, drain_s) is None
        hold.end(now)
        now += pause_s
    assert held_s <= HOLD_S_MAX + HOLD_S_MIN + HOLD_SHARE_MAX * now + 1e-9


@pytest.mark.parametrize("policy", POLICIES)
def test_only_policies_that_put_decode_first_hold_prefill(policy):
    sender = LinkSender(make_transmission(policy), LinkPacer(LinkMemory(1.25e7, 0.06)))
    sender.offer(Transfer(0, PREFILL, 1_000_000, 100), 0.0)
    sender.hold.ready_at = 0.004
    decode_first = policy in ("molink", "just_in_time", "quantum")
    assert (sender.next_chunk(0.0) is None) == decode_first
    if decode_first:
        assert sender.next_wake(0.0) == pytest.approx(0.004 + LATE_S_MAX)


def test_decode_ends_the_hold_and_prefill_follows_it():
    sender = LinkSender(make_transmission(), LinkPacer(LinkMemory(1.25e7, 0.06)))
    sender.offer(Transfer(0, PREFILL, 1_000_000, 100), 0.0)
    sender.hold.ready_at = 0.004
    assert sender.next_chunk(0.0) is None
    sender.offer(Transfer(1, DECODE, 3000, 1), 0.003)
    sequence, chunk = sender.next_chunk(0.003)
    assert chunk.transfer_id == 1
    sender.sent(sequence, chunk, 3020, 0.003)
    _, chunk = sender.next_chunk(0.003)
    assert chunk.transfer_id == 0
