"""Queues and busiest seconds from byte counts, and the kernel's counts of real connections."""

import socket
import sys

import pytest

from tools.experiments.harness.tcp_counters import TcpCounters
from tools.experiments.harness.traffic import busiest_second, queueing_s

PERIOD_S = 0.01
ONE_WAY_S = 0.03


def hop(queue_s, periods=400, bytes_each=1000):
    """Counts of a hop that sends in every period and delivers after its delay and a queue."""
    times = [number * PERIOD_S for number in range(periods)]
    sent = [number * bytes_each for number in range(periods)]
    behind = round((ONE_WAY_S + queue_s) / PERIOD_S)
    return times, sent, [0] * behind + sent[: periods - behind]


@pytest.mark.parametrize("queue_s", [0.0, 0.05, 0.5])
def test_a_queue_is_what_bytes_take_over_the_delay(queue_s):
    found = queueing_s(*hop(queue_s), ONE_WAY_S)
    assert len(found) == pytest.approx(400 - (ONE_WAY_S + queue_s) / PERIOD_S, abs=2)
    assert all(delay == pytest.approx(queue_s, abs=PERIOD_S) for _, delay in found[1:])


def test_an_idle_hop_has_no_queue():
    times, sent, received = hop(0.0)
    sent[200:], received[205:] = [sent[200]] * 200, [sent[200]] * 195
    assert all(delay <= PERIOD_S for _, delay in queueing_s(times, sent, received, ONE_WAY_S))


def test_a_burst_counts_for_as_long_as_its_queue_stands():
    times, _, _ = hop(0.0)
    sent = [0] * 100 + [100_000] * 300
    received = [0] * 103 + [1000 * number for number in range(101)] + [100_000] * 196
    found = dict(queueing_s(times, sent, received, ONE_WAY_S))
    assert found[times[100]] == pytest.approx(1.0, abs=2 * PERIOD_S)
    assert found[times[150]] == pytest.approx(0.5, abs=2 * PERIOD_S)
    assert found[times[250]] == 0 and found[times[50]] == 0


def test_the_busiest_second_may_begin_anywhere():
    times = [number * 0.1 for number in range(41)]
    sent = [0] * 15 + [100 * (number + 1) for number in range(10)] + [1000] * 16
    assert busiest_second(times, sent) == pytest.approx(1000)
    assert busiest_second(times, list(range(41))) == pytest.approx(10)
    assert busiest_second([0.0, 0.5], [0, 100]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="netlink is Linux's")
def test_the_kernel_counts_both_directions():
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        near.sendall(bytes(70_000))
        far.recv(70_000, socket.MSG_WAITALL)
        ports = near.getsockname()[1], far.getsockname()[1]
        with TcpCounters() as counters:
            counted = counters.now()
        near.close(), far.close()
    assert counted[ports].sent_bytes == pytest.approx(70_000, abs=1)
    assert counted[ports[::-1]].received_bytes == 70_000
