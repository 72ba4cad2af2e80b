"""What acknowledgements tell: the rate, the bare round trip, the queue; and what they must not."""

import pytest

from molink_scheduler.link.estimator import ForeignUpload, LinkEstimator
from molink_scheduler.link.facts import RATE_MAX_BYTES_PER_S, LinkMemory

MEMORY = LinkMemory(rate_bytes_per_s=1e6, rtt_s=0.05)


def saturate(estimator, rate, rtt_s, start, end, window_s=0.01, size=4000):
    """Chunks back to back in a window that keeps a link of `rate` busy; returns when it ended."""
    now, flights = start, []
    while now < end:
        while estimator.in_flight_bytes < rate * (rtt_s + window_s):
            departure = estimator.on_sent(size, now, paused=not flights)
            wire_free_at = max(now, flights[-1][1] - rtt_s if flights else now) + size / rate
            flights.append((departure, wire_free_at + rtt_s))
        departure, now = flights.pop(0)
        estimator.on_ack(departure, now)
    for departure, at in flights:
        now = at
        estimator.on_ack(departure, at)
    return now


def test_a_busy_link_shows_its_rate_and_its_bare_round_trip():
    estimator = LinkEstimator(MEMORY)
    saturate(estimator, 2e6, 0.03, 0.0, 3.0)
    assert estimator.rate_bytes_per_s == pytest.approx(2e6, rel=0.05)
    assert estimator.base_rtt_s == pytest.approx(0.03, abs=0.001)
    assert estimator.queueing_delay_s < 0.012


def test_the_round_trip_holds_no_wire_time_of_the_chunk_even_after_the_rate_rose():
    estimator = LinkEstimator(MEMORY)
    ended = saturate(estimator, 0.5e6, 0.03, 0.0, 3.0)
    saturate(estimator, 5e6, 0.03, ended, ended + 1)
    assert estimator.base_rtt_s == pytest.approx(0.03, abs=0.001)


def test_queueing_is_what_is_beyond_the_round_trip_and_the_wire():
    estimator = LinkEstimator(MEMORY)
    ended = saturate(estimator, 2e6, 0.03, 0.0, 3.0)
    departure = estimator.on_sent(4000, ended, paused=True)
    estimator.on_ack(departure, ended + 0.03 + 0.002 + 0.1)
    assert estimator.queueing_delay_s == pytest.approx(0.1, abs=0.003)


def test_a_sender_that_pauses_measures_itself():
    estimator = LinkEstimator(MEMORY)
    now = saturate(estimator, 2e6, 0.03, 0.0, 3.0)
    for _ in range(500):
        now += 0.05
        departure = estimator.on_sent(500, now, paused=True)
        now += 0.031
        estimator.on_ack(departure, now)
    assert estimator.rate_bytes_per_s == pytest.approx(2e6, rel=0.05)


def test_a_paused_sender_may_still_raise_the_estimate():
    estimator = LinkEstimator(MEMORY)
    saturate(estimator, 0.5e6, 0.03, 0.0, 3.0)
    departure = estimator.on_sent(100_000, 4.0, paused=True)
    estimator.on_ack(departure, 4.05)
    assert estimator.rate_bytes_per_s == pytest.approx(2e6)


def test_a_long_queue_makes_old_maxima_history_at_once():
    estimator = LinkEstimator(MEMORY)
    now = saturate(estimator, 4e6, 0.03, 0.0, 3.0)
    departures = [estimator.on_sent(16_000, now, paused=index == 0) for index in range(30)]
    for departure in departures:
        now += 16_000 / 1e6
        estimator.on_ack(departure, now)
    assert estimator.rate_bytes_per_s == pytest.approx(1e6, rel=0.1)


def test_one_stall_of_the_far_end_is_no_drop():
    estimator = LinkEstimator(MEMORY)
    now = saturate(estimator, 4e6, 0.03, 0.0, 3.0)
    departures = [estimator.on_sent(16_000, now, paused=index == 0) for index in range(10)]
    for departure in departures:
        estimator.on_ack(departure, now + 0.15)
    assert estimator.queueing_delay_s > 0.1
    assert estimator.rate_bytes_per_s == pytest.approx(4e6, rel=0.05)


def test_a_burst_of_late_acknowledgements_raises_nothing():
    """1 MB/s leaves and comes back; twenty acknowledgements are held up and come at once."""
    estimator = LinkEstimator(MEMORY)
    flights = [(estimator.on_sent(4000, i * 0.004, paused=False), i) for i in range(1)]
    for i in range(1, 200):
        if i >= 10 and not 100 <= i < 120:
            while flights and flights[0][1] <= i - 10:
                estimator.on_ack(flights.pop(0)[0], i * 0.004)
        flights.append((estimator.on_sent(4000, i * 0.004, paused=False), i))
    assert estimator.rate_bytes_per_s < 1.15e6


def test_headroom_is_seen_when_chunks_come_back_sooner_than_the_rate_allows():
    estimator = LinkEstimator(MEMORY)
    now = saturate(estimator, 0.5e6, 0.03, 0.0, 3.0)
    assert not estimator.headroom
    departure = estimator.on_sent(8_000, now, paused=True)
    estimator.on_ack(departure, now + 0.030 + 8_000 / 5e6 - 0.02)
    assert estimator.headroom


def test_impossibly_early_acknowledgements_are_believed_up_to_a_limit():
    estimator = LinkEstimator(MEMORY)
    for _ in range(100):
        departure = estimator.on_sent(65_536, 1.0, paused=False)
        estimator.on_ack(departure, 1.0)
    assert 0 < estimator.rate_bytes_per_s <= RATE_MAX_BYTES_PER_S
    assert estimator.base_rtt_s > 0


def test_a_new_connection_forgets_the_flight_and_keeps_the_estimate():
    estimator = LinkEstimator(MEMORY)
    saturate(estimator, 2e6, 0.03, 0.0, 3.0)
    rate = estimator.rate_bytes_per_s
    estimator.on_sent(4000, 4.0, paused=True)
    estimator.forget_in_flight(5.0)
    assert estimator.in_flight_bytes == 0
    assert estimator.rate_bytes_per_s == rate


def test_a_foreign_upload_is_noticed_and_cleared_only_by_what_lasts():
    foreign = ForeignUpload()
    for tick in range(15):
        foreign.observe(0.2 if tick % 5 else 0.0, 0.0, tick * 0.1, starved=True)
    assert not foreign.noticed
    for tick in range(15, 30):
        foreign.observe(0.2, 0.0, tick * 0.1, starved=True)
    assert foreign.noticed
    foreign.observe(0.0, 0.0, 3.0, starved=False)
    assert foreign.noticed
    for tick in range(31, 40):
        foreign.observe(0.0, 0.0, tick * 0.1, starved=False)
    assert not foreign.noticed


@pytest.mark.parametrize(("queue_s", "own_s", "starved"), [(0.2, 0.19, True), (0.2, 0.0, False)])
def test_our_own_queue_and_an_unharmed_rate_blame_nobody(queue_s, own_s, starved):
    foreign = ForeignUpload()
    for tick in range(50):
        foreign.observe(queue_s, own_s, tick * 0.1, starved=starved)
    assert not foreign.noticed


@pytest.mark.parametrize(("rate", "rtt_s"), [(0, 0.1), (1e6, 0), (float("nan"), 0.1), (1e6, -1)])
def test_a_memory_must_make_sense(rate, rtt_s):
    with pytest.raises(ValueError, match="above 0"):
        LinkMemory(rate, rtt_s)
