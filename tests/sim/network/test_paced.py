"""The core's sender over a wire, as the live link drives it: decode alone, of any size."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.batch import BatchClass
from molink_scheduler.link.priority_queues import PriorityQueues
from molink_sim.clock import Clock
from molink_sim.network.line import BYTES_PER_MEGABIT, Line
from molink_sim.network.paced import PacedLink
from molink_sim.outcome import BusyTimes
from molink_sim.scenario import LinkSpec

MESSAGES = 60


@dataclass
class Stream:
    """Many users' rows in each message, one message each round, a share of what fits."""

    mbps: float
    one_way_s: float
    every_s: float
    share: float

    def run(self):
        clock, arrivals = Clock(), []
        line = Line(
            LinkSpec(self.mbps, self.one_way_s), BusyTimes("wire", 0.0, 1e9), random.Random(0)
        )
        link = PacedLink.over(
            clock, line, PriorityQueues(), lambda sent_at: arrivals.append(clock.now - sent_at)
        )
        self.wire_s = self.share * self.every_s
        size_bytes = max(1, int(self.wire_s * self.mbps * BYTES_PER_MEGABIT))

        def send(_):
            link.offer(clock.now, BatchClass.DECODE, size_bytes, 1)

        for number in range(MESSAGES):
            clock.at(number * self.every_s, send)
        clock.run(MESSAGES * self.every_s + 10)
        assert len(arrivals) == MESSAGES
        self.late_s = max(arrivals) - self.wire_s - self.one_way_s
        estimator = link.sender.pacer.estimator
        self.rate_share = estimator.rate_bytes_per_s / (self.mbps * BYTES_PER_MEGABIT)
        assert estimator.base_rtt_s >= 2 * self.one_way_s - 0.01
        return self


@pytest.mark.parametrize(
    "stream",
    [
        Stream(mbps=5.0, one_way_s=0.03125, every_s=0.25, share=0.5),
        Stream(mbps=5.0, one_way_s=0.015625, every_s=0.125, share=0.5),
        Stream(mbps=6.0, one_way_s=0.005, every_s=0.05, share=0.85),
    ],
)
def test_decode_on_a_slow_link_neither_waits_nor_spoils_the_estimate(stream):
    """Pieces of 16 KB and more made messages 36, 62 and 450 ms late here."""
    stream.run()
    assert stream.late_s <= 0.012 and stream.rate_share >= 0.9


@settings(max_examples=40, deadline=None)
@given(st.floats(5, 200), st.floats(0.001, 0.1), st.floats(0.02, 0.3), st.floats(0.02, 0.85))
def test_decode_that_fills_much_of_a_link_neither_waits_nor_spoils_the_estimate(
    mbps, one_way_s, every_s, share
):
    """Of 3,000 streams one was 28 ms late and one was believed to have 0.66 of its rate: nothing
    leaves for a moment after a burst beyond the window, which counts as the link's rate at times.
    """
    stream = Stream(mbps, one_way_s, every_s, share).run()
    assert stream.late_s <= 0.25 * stream.wire_s + 0.02
    assert stream.rate_share >= 0.6


def test_chunks_and_their_acknowledgements_wake_whom_they_reach():
    clock, woken, arrived = Clock(), [], []
    line = Line(LinkSpec(20.0, 0.03), BusyTimes("wire", 0.0, 1e9), random.Random(0))
    link = PacedLink.over(clock, line, PriorityQueues(), lambda _: arrived.append(clock.now))

    def wake(action, argument):
        woken.append(clock.now)
        clock.at(clock.now + 0.005, action, argument)

    link.wake = wake
    link.offer("rows", BatchClass.DECODE, 1500, 1)
    clock.run(1.0)
    sent_s = (1500 + 23) / (20 * BYTES_PER_MEGABIT)
    assert arrived == [pytest.approx(sent_s + 0.03 + 0.005)]
    assert woken == [pytest.approx(sent_s + 0.03), pytest.approx(arrived[0] + 0.03)]
