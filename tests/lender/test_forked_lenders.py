"""Lenders that are forked from a process which has imported torch."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import psutil
import pytest

from molink.engine_protocol.lender import LentKv, LentLayer
from molink.lender.client import LenderClient
from molink.lender.starting import ForkedLenders

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="lenders are forked on Linux alone")

KV, PLACES, BLOCK_BYTES = LentKv((LentLayer(0, 2, 4, 4),), "float32", "auto"), 8, 16 * 2 * 8 * 4
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def lenders() -> Iterator[ForkedLenders]:
    forked = ForkedLenders()
    yield forked
    assert forked._server is not None
    forked._server.close()


def started(lenders: ForkedLenders) -> tuple[LenderClient, psutil.Process]:
    """A lender that is ready, and its process."""
    before = children()
    client = lenders.start()
    client.hold(KV, PLACES)
    (process,) = (one for one in children() - before if is_lender(one))
    return client, process


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def is_lender(process: psutil.Process) -> bool:
    """Whether this is a fork; the process that forks is a child of ours."""
    return process.is_running() and process.ppid() != os.getpid()


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def holds(client: LenderClient, value: int) -> bool:
    """Whether it gives back what it is given."""
    client.put([3], np.full((1, BLOCK_BYTES), value, np.uint8))
    return bool((client.take(0, [3]) == value).all())


def test_each_has_blocks_of_its_own(lenders):
    (one, _), (other, _) = started(lenders), started(lenders)
    assert holds(one, 7) and holds(other, 9)
    assert (one.take(0, [3]) == 7).all()
    assert one._incarnation != other._incarnation
    one.link.close()
    assert holds(other, 8), "it ends alone"
    other.link.close()


def test_one_that_stands_still_is_ended_when_it_is_given_up(lenders):
    client, process = started(lenders)
    process.suspend()
    client._lost("it stands")
    eventually(lambda: has_ended(process))


def test_one_that_has_ended_is_lost_and_another_takes_its_place(lenders):
    client, process = started(lenders)
    process.kill()
    eventually(lambda: client.is_lost)
    again, _ = started(lenders)
    assert holds(again, 5)
    again.link.close()


def test_without_the_process_that_forks_its_lenders_go_on_and_others_come(lenders):
    client, process = started(lenders)
    server = psutil.Process(process.ppid())
    server.kill()
    server.wait()
    assert holds(client, 4)
    again, other = started(lenders)
    assert holds(again, 6) and other.ppid() != server.pid
    for one in (client, again):
        one.link.close()


def test_they_end_with_their_stage():
    """Its end of the link closes with the stage's process, whatever ends that."""
    lenders = ForkedLenders()
    _, process = started(lenders)
    server = psutil.Process(process.ppid())
    process.send_signal(signal.SIGSTOP)
    assert lenders._server is not None
    lenders._server.close()
    eventually(lambda: has_ended(process) and has_ended(server))
