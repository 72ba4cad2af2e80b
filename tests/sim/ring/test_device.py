"""Stages that share a PC's cores: compute time, worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_sim.clock import Clock
from molink_sim.ring.device import SharedDevice


class Worker:
    """Computes for so many seconds from a moment on."""

    def __init__(self, clock, device, starts_at, work_s):
        self.clock, self.device, self.work_s = clock, device, work_s
        self.ended_at = None
        clock.at(starts_at, self._begin)

    def _begin(self, _):
        self.device.begin()
        self.device.at(self.device.now + self.work_s, self._end, None)

    def _end(self, _):
        self.ended_at = self.clock.now
        self.device.end()


def run(slowdown, *jobs):
    clock = Clock()
    device = SharedDevice(clock, slowdown)
    workers = [Worker(clock, device, *job) for job in jobs]
    clock.run(1e6)
    return [worker.ended_at for worker in workers]


def test_one_alone_takes_its_time():
    assert run((1.0, 2.0), (3.0, 0.5)) == pytest.approx([3.5])


def test_two_at_once_take_longer_while_both_compute():
    # Alone until 1, at half speed together until the first is done at 3, then alone again.
    assert run((1.0, 2.0), (0.0, 2.0), (1.0, 1.5)) == pytest.approx([3.0, 3.5])


def test_two_cores_do_not_notice_two():
    assert run((1.0, 1.0, 1.5), (0.0, 2.0), (0.0, 2.0)) == pytest.approx([2.0, 2.0])


def test_three_on_two_cores():
    assert run((1.0, 1.0, 1.5), *[(0.0, 2.0)] * 3) == pytest.approx([3.0] * 3)


def test_more_than_were_measured_wait_in_proportion():
    assert run((1.0, 1.5), *[(0.0, 2.0)] * 4) == pytest.approx([6.0] * 4)


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 5)), min_size=1, max_size=8),
    st.lists(st.floats(0.0, 1.0), min_size=0, max_size=4),
)
def test_everybody_ends_neither_sooner_than_alone_nor_later_than_in_the_worst_crowd(jobs, more):
    slowdown = [1.0]
    for part in more:
        slowdown.append(slowdown[-1] + part)
    ends = run(tuple(slowdown), *jobs)
    worst = slowdown[-1] * max(1.0, len(jobs) / len(slowdown))
    for (starts_at, work_s), ended_at in zip(jobs, ends, strict=True):
        assert starts_at + work_s - 1e-9 <= ended_at <= starts_at + worst * work_s + 1e-9


def test_a_chunk_takes_a_core_for_a_while_at_each_end():
    clock = Clock()
    device = SharedDevice(clock, (1.0, 2.0), chunk_s=0.5)
    worker = Worker(clock, device, 0.0, 2.0)
    for at in (0.5, 1.5):
        clock.at(at, lambda _: device.handle_chunk())
    clock.run(1e6)
    # Twice a quarter of a second of a core, of which the worker has half meanwhile.
    assert worker.ended_at == pytest.approx(2.5)


def test_chunks_that_cost_nothing_are_in_nobodys_way():
    clock = Clock()
    device = SharedDevice(clock, (1.0, 2.0))
    worker = Worker(clock, device, 0.0, 2.0)
    clock.at(0.5, lambda _: device.handle_chunk())
    clock.run(1e6)
    assert worker.ended_at == pytest.approx(2.0)


@pytest.mark.parametrize(("computing", "took_s"), [(0, 0.01), (1, 0.01), (2, 0.01), (3, 0.015)])
def test_who_wakes_up_waits_for_its_turn_where_all_cores_are_taken(computing, took_s):
    clock = Clock()
    device = SharedDevice(clock, (1.0, 1.0, 1.5), hop_s=0.01)
    for _ in range(computing):
        Worker(clock, device, 0.0, 2.0)
    came = []
    clock.at(0.5, lambda _: device.wake(lambda what: came.append((what, clock.now)), "rows"))
    clock.run(1e6)
    assert came == [("rows", pytest.approx(0.5 + took_s))]


def test_messages_that_wake_a_process_keep_their_order():
    clock = Clock()
    device = SharedDevice(clock, (1.0, 1.0, 1.5), chunk_s=0.004, hop_s=0.01)
    for number in range(3):
        Worker(clock, device, 0.2 * number, 0.5)
    came = []
    for number in range(40):
        clock.at(0.02 * number, lambda n: device.take_in(came.append, n), number)
    clock.run(1e6)
    assert came == list(range(40))
