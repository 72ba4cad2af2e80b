"""The real pacer over a link in virtual time: rate, queue, delay, rivals, and hostile peers."""

import itertools
import math
from random import Random
from statistics import quantiles

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.batch import DECODE, PREFILL
from molink_scheduler.link.facts import CAUTIOUS, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, LinkMemory
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.priority_queues import PriorityQueues
from molink_scheduler.link.sender import LinkSender
from molink_scheduler.link.transmission import Transfer
from molink_scheduler.link.upload_budget import UploadBudget
from tests.scheduler.link.paced_link import MBPS, ComputingFarEnd, FakeLink

rates_mbps = st.floats(1, 200)
delays_s = st.floats(0.001, 0.1)
seeded = settings(max_examples=15, deadline=None, derandomize=True)


@seeded
@given(rates_mbps, rates_mbps, delays_s)
def test_the_estimate_follows_any_step_within_three_seconds(before, after, one_way_s):
    link = FakeLink([(0, before), (4, after)], one_way_s).run(9)
    assert link.converged_at(0, 4, before) <= 3
    assert link.converged_at(4, 9, after) <= 3


@pytest.mark.parametrize(("before", "after"), [(1, 200), (200, 1), (20, 15), (98, 160)])
@pytest.mark.parametrize("one_way_s", [0.001, 0.1])
def test_the_estimate_follows_the_extreme_steps(before, after, one_way_s):
    link = FakeLink([(0, before), (4, after)], one_way_s).run(9)
    assert link.converged_at(4, 9, after) <= 3


@seeded
@given(st.floats(4, 200), delays_s)
def test_a_saturated_link_is_busy_and_its_queue_short(mbps, one_way_s):
    link = FakeLink([(0, mbps)], one_way_s).run(6)
    # The ramp from a cautious start takes its rounds, and the first guess of 8 Mbps is believed for
    # two seconds; then no more than four chunks of 8 ms queue.
    settled = max(2.3, 1.5 + 15 * one_way_s)
    assert max(link.queues_ms(settled, 6)) < 33
    assert link.goodput_mbps(settled, 6) >= 0.9 * mbps


def test_below_4_mbps_the_queue_is_three_of_the_smallest_chunks():
    """Two that the window holds, and one that found a piece of it left."""
    link = FakeLink([(0, 1)], 0.03).run(6)
    assert max(link.queues_ms(2, 6)) <= 3 * CHUNK_BYTES_MIN / MBPS * 1e3 + 1e-6
    assert link.goodput_mbps(2, 6) >= 0.9


def test_the_link_that_changes():
    """20 Mbps, at 20 s 5 Mbps, at 40 s 20 Mbps, with decode all along: the benchmark's numbers."""
    link = FakeLink([(0, 20), (20, 5), (40, 20)], 0.03, urgent_every_s=0.05, urgent_bytes=2500)
    link.run(60)
    for start, end, mbps in ((0, 20, 20), (20, 40, 5), (40, 60, 20)):
        assert link.converged_at(start, end, mbps) <= (0.5 if mbps == 5 else 2)
        assert max(link.queues_ms(start + 1, end)) < 30
        assert link.goodput_mbps(start + 1, end) >= 0.9 * mbps
    assert max(delay for _, delay in link.urgent_delays) < 0.35


def test_urgent_messages_barely_notice_saturating_bulk():
    link = FakeLink([(0, 20)], 0.03, urgent_every_s=0.05).run(30)
    delays = [delay for when, delay in link.urgent_delays if when > 2]
    assert len(delays) > 500
    # 30 ms, 4 on the wire, a chunk of 8, a probe of 4, and the rest of a chunk for which no more
    # than a quarter of the window was left: 6.
    assert quantiles(delays, n=100)[98] <= 0.052
    assert link.goodput_mbps(2, 30) >= 0.9 * 20


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("mbps", [20, 100])
@pytest.mark.parametrize("met_before", [False, True])
def test_late_acknowledgements_neither_lower_nor_raise_the_estimate(mbps, seed, met_before):
    memory = LinkMemory(mbps * MBPS, 0.06) if met_before else None
    link = ComputingFarEnd([(0, mbps)], 0.03, memory, seed=seed).run(20)
    assert min(link.estimates(5, 20)) >= 0.7 * mbps
    assert max(link.estimates(0, 20)) < 1.4 * mbps
    assert link.goodput_mbps(5, 20) >= 0.8 * mbps


def test_a_prompt_after_idle_finds_the_estimate_and_does_not_flood_the_queue():
    link = FakeLink([(0, 20)], 0.03, demand=[(0, 5), (65, 70)], urgent_every_s=0.5)
    link.run(70)
    assert all(19 <= mbps <= 21 for mbps in link.estimates(3, 70))
    assert max(link.queues_ms(65, 70)) < 30
    assert link.goodput_mbps(65.1, 70) >= 0.9 * 20


def test_decode_alone_never_lowers_the_estimate():
    link = FakeLink([(0, 20)], 0.03, demand=[(0, 5)], urgent_every_s=0.05).run(60)
    assert min(link.estimates(3, 60)) >= 19
    assert quantiles([d for when, d in link.urgent_delays if when > 6], n=100)[98] < 0.0345


def test_a_remembered_link_starts_at_full_rate():
    link = FakeLink([(0, 50)], 0.03, LinkMemory(50 * MBPS, 0.06)).run(2)
    assert link.goodput_mbps(0.1, 2) >= 0.9 * 50
    assert max(link.queues_ms(0, 2)) < 30
    estimator = link.pacer.estimator
    assert estimator.rate_bytes_per_s == pytest.approx(50 * MBPS, rel=0.05)
    assert estimator.base_rtt_s == pytest.approx(0.06, rel=0.05)


@pytest.mark.parametrize("remembered_mbps", [2, 200])
def test_a_wrong_memory_is_corrected(remembered_mbps):
    link = FakeLink([(0, 20)], 0.03, LinkMemory(remembered_mbps * MBPS, 0.06)).run(5)
    assert link.converged_at(0, 5, 20) <= 2


def test_a_foreign_upload_is_noticed_shown_and_does_not_starve_us():
    link = FakeLink([(0, 20)], 0.03, foreign=(5, 20, 1_000_000))
    seen = []
    link.at(4.9, lambda: seen.append(link.pacer.foreign_upload))
    link.at(9.0, lambda: seen.append(link.pacer.foreign_upload))
    link.at(19.9, lambda: seen.append(link.pacer.foreign_upload))
    link.run(30)
    assert [*seen, link.pacer.foreign_upload] == [False, True, True, False]
    assert link.goodput_mbps(10, 20) >= 2.5  # a sender that only keeps delay low: 0.25
    assert link.goodput_mbps(24, 30) >= 0.9 * 20


@seeded
@given(rates_mbps, rates_mbps, delays_s)
def test_a_change_of_rate_is_not_taken_for_a_foreign_upload(before, after, one_way_s):
    link = FakeLink([(0, before), (3, after)], one_way_s)
    noticed = []
    for tick in range(60):
        link.at(tick / 10, lambda: noticed.append(link.pacer.foreign_upload))
    link.run(6)
    assert not any(noticed)


def test_an_upload_cap_holds_in_every_second_and_decode_passes():
    budget = UploadBudget(1e6)
    link = FakeLink([(0, 50)], 0.03, budget=budget, urgent_every_s=0.05).run(10)
    for start, _ in link.sends:
        assert sum(size for at, size in link.sends if start <= at < start + 1) <= 1.05e6
    assert sum(size for at, size in link.sends if at < 10) >= 0.95 * 10 * 1e6
    delays = [delay for when, delay in link.urgent_delays if when > 2]
    assert quantiles(delays, n=100)[98] <= 0.05


@pytest.mark.parametrize("cap_bytes_per_s", [2_000.0, 50_000.0])
def test_a_tiny_cap_slows_but_never_stops(cap_bytes_per_s):
    memory = LinkMemory(200 * MBPS, 0.02)
    link = FakeLink([(0, 200)], 0.01, memory, UploadBudget(cap_bytes_per_s)).run(10)
    assert sum(size for _, size in link.sends) >= 0.9 * 10 * cap_bytes_per_s


def busy_sender(memory=None):
    """A link with more prefill than it can carry."""
    sender = LinkSender(PriorityQueues(), LinkPacer(memory))
    sender.offer(Transfer(0, PREFILL, 10**9), 0.0)
    return sender


def send_all(sender, now):
    """The chunks that may leave now."""
    chunks = []
    while (leaving := sender.next_chunk(now)) is not None:
        sequence, chunk = leaving
        sender.on_sent(sequence, chunk, chunk.size_bytes, now)
        chunks.append(chunk)
    return chunks


@seeded
@given(st.lists(st.integers(-5, 60), max_size=80))
def test_hostile_acknowledgements_are_dropped_and_counted(acks):
    sender = busy_sender()
    pacer = sender.pacer
    sent = refused = 0
    open_from = 0
    for step, sequence in enumerate(acks):
        now = step * 0.01
        sent += len(send_all(sender, now))
        sender.on_ack(sequence, now)
        if open_from <= sequence < sent:
            open_from = sequence + 1
        else:
            refused += 1
        assert pacer.acks_refused == refused
        assert pacer.in_flight_bytes >= 0
        assert CHUNK_BYTES_MIN <= pacer.chunk_bytes <= CHUNK_BYTES_MAX
        assert math.isfinite(pacer.estimator.rate_bytes_per_s)


def drain_wakes(sender, now, until):
    """Send whenever the link asks to be woken; how many chunks left, and when it is."""
    count = 0
    while now < until:
        count += len(send_all(sender, now))
        now = max(now + 1e-6, sender.next_wake(now))
    return count, now


def test_without_acknowledgements_the_window_fills_then_waits_longer_and_longer():
    sender = busy_sender(LinkMemory(20 * MBPS, 0.06))
    pacer = sender.pacer
    _, now = drain_wakes(sender, 0.0, until=0.9)
    product = 20 * MBPS * 0.06
    assert product <= pacer.in_flight_bytes <= product + 2 * pacer.chunk_bytes
    extra_at = []
    for _ in range(400):
        now = max(now + 1e-6, sender.next_wake(now))
        extra_at += [now for _ in send_all(sender, now)]
    gaps = [b - a for a, b in itertools.pairwise(extra_at)]
    assert len(extra_at) >= 3 and all(b > 1.9 * a for a, b in itertools.pairwise(gaps))


def test_a_late_acknowledgement_stands_for_all_before_it():
    sender = busy_sender(LinkMemory(20 * MBPS, 0.06))
    count, now = drain_wakes(sender, 0.0, until=0.9)
    assert sender.on_ack(count - 1, now)
    assert sender.pacer.in_flight_bytes == 0 and sender.pacer.acks_refused == 0
    assert not sender.on_ack(count - 2, now)
    assert sender.pacer.acks_refused == 1
    assert sender.next_chunk(now + 1) is not None


def test_what_is_taken_back_is_no_longer_in_flight_and_the_estimate_stays():
    link = FakeLink([(0, 20)], 0.03).run(3)
    pacer = link.pacer
    before = pacer.estimator.rate_bytes_per_s
    newest, oldest = pacer._newest_sequence, pacer.oldest
    in_flight_bytes = pacer.in_flight_bytes
    repeats = pacer.take_unacknowledged(oldest, 3.0)
    assert pacer.in_flight_bytes == 0 and pacer.oldest is None
    assert sum(repeat.size_bytes for repeat in repeats) == in_flight_bytes
    assert [repeat.sequence for repeat in repeats] == list(range(oldest, newest + 1))
    assert pacer.estimator.rate_bytes_per_s == before
    assert pacer.sendable_bytes(3.0) > 0
    assert not pacer.on_ack(newest, 3.1)
    assert pacer.acks_refused == 1
    for repeat in repeats:
        pacer.on_sent(repeat.sequence, repeat.size_bytes, 3.2)
    assert pacer.on_ack(newest, 3.3) and pacer.in_flight_bytes == 0


def test_decode_overdraws_a_full_window_but_not_without_end():
    sender = busy_sender(LinkMemory(20 * MBPS, 0.06))
    _, now = drain_wakes(sender, 0.0, until=0.5)
    sender.offer(Transfer(1, DECODE, 10**6), now)
    extra = sum(chunk.size_bytes for chunk in send_all(sender, now))
    assert 16 * 1024 <= extra <= 3 * sender.pacer.chunk_bytes
    assert sender.next_chunk(now) is None


@seeded
@given(st.floats(5, 200), delays_s, st.floats(0.02, 0.3), st.floats(0.02, 0.85))
def test_messages_with_pauses_between_neither_wait_nor_spoil_what_is_known(
    mbps, one_way_s, every_s, share
):
    """Decode with many users: a message of many chunks each round, and nothing else."""
    known = LinkMemory(mbps * MBPS, 2 * one_way_s)
    size_bytes = max(1, int(share * every_s * mbps * MBPS))
    link = FakeLink(
        [(0, mbps)],
        one_way_s,
        memory=known,
        demand=[],
        urgent_every_s=every_s,
        urgent_bytes=size_bytes,
    ).run(8)
    assert link.pacer.estimator.rate_bytes_per_s >= 0.85 * known.rate_bytes_per_s
    assert link.pacer.estimator.base_rtt_s >= 0.85 * known.rtt_s
    bare_s = size_bytes / known.rate_bytes_per_s + one_way_s
    assert max(delay for _, delay in link.urgent_delays) <= bare_s + 0.02


def test_a_ramp_that_began_at_a_low_rate_lets_prefill_go_at_a_high_one():
    """A busy PC acknowledges late, then promptly: a piece of the larger chunk outgrew the ramp's
    window, and with nothing in flight no acknowledgement came to widen it."""
    pacer = LinkPacer(LinkMemory(0.5 * MBPS, 0.02))
    for sequence, (size_bytes, round_trip_s) in enumerate([(2000, 0.002), (4000, 0.0004)]):
        pacer.on_sent(sequence, size_bytes, float(sequence))
        assert pacer.on_ack(sequence, sequence + round_trip_s)
    assert pacer.chunk_bytes == CHUNK_BYTES_MAX and pacer.in_flight_bytes == 0
    assert pacer.sendable_bytes(2.0) > 0 and pacer.next_wake(2.0) is None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_with_nothing_in_flight_something_may_leave_soon(seed):
    """Whatever messages of a ring, pauses and a loaded machine have made the pacer believe."""
    random, pacer, now = Random(seed), LinkPacer(), 0.0
    for sequence in range(600):
        now += random.random() * random.choice([0.0005, 0.01, 0.3])
        if not pacer.sendable_bytes(now):
            now = pacer.next_wake(now)
            assert now < math.inf and pacer.sendable_bytes(now + 1e-6)
        size_bytes = min(pacer.chunk_bytes, random.choice([300, 2_000, 8_000]))
        pacer.on_sent(sequence, size_bytes, now)
        now += random.random() * random.choice([0.0003, 0.002, 0.05, 0.6])
        pacer.on_ack(sequence, now)


@pytest.mark.parametrize(("known_mbps", "begins_mbps"), [(100, 8), (2, 2)])
def test_on_another_way_a_link_begins_as_to_a_peer_never_met(known_mbps, begins_mbps):
    pacer = LinkPacer(LinkMemory(known_mbps * MBPS, 0.01))
    pacer.on_sent(0, 1000, 1.0)
    pacer.on_ack(0, 1.01)
    pacer.path_changed(2.0)
    assert pacer.estimator.rate_bytes_per_s == begins_mbps * MBPS
    assert pacer.estimator.base_rtt_s == CAUTIOUS.rtt_s
    pacer.on_sent(1, 1000, 2.0)
    pacer.on_ack(1, 2.5)
    assert pacer.estimator.base_rtt_s == pytest.approx(0.5, abs=0.01)
    assert pacer.estimator.queueing_delay_s == 0 and pacer.acks_refused == 0


@seeded
@given(rates_mbps, delays_s, rates_mbps, delays_s)
def test_a_link_that_took_another_way_learns_it_like_a_new_one(mbps, one_way_s, after, later_s):
    """No memory of the old way keeps the rate away from the new one's."""
    link = FakeLink([(0, mbps)], one_way_s).run(3)
    moved = FakeLink([(0, after)], later_s)
    if link.pacer.in_flight_bytes:
        link.sender.on_ack(link.pacer._newest_sequence, 3.5)
    link.pacer.path_changed(0.0)
    moved.sender = link.sender
    moved.run(4)
    assert moved.converged_at(0, 4, after) <= 3
