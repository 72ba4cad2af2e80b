"""A real lender whose process ends while nobody asks it: the stage sees it by itself."""

import socket
import threading
import time
from collections.abc import Callable

import pytest

from molink.engine.local_engine import STARTS_MAX, LocalEngine
from molink.engine_protocol.lender import Lender
from molink.engine_protocol.values import Held
from molink.lender.client import LenderClient
from molink.lender.starting import start_lender
from molink.stage_protocol.cache_room import CacheRoom
from molink.stage_protocol.messages import LoadStage, StageWork
from molink_scheduler.resume import Resume
from molink_scheduler.stage.replay_log import ReplayLog
from tests.engine.step.test_lending import NearLender
from tests.engine.tiny_models import save_tiny

OWN, LENT, WITHIN_S = 1024, 512, 120.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    save_tiny("llama", path)
    return path


def load(directory, layers: tuple[int, int], own: int) -> LoadStage:
    work = StageWork(layers, "cpu", "float32", own, kv_host_tokens=LENT)
    return LoadStage(str(directory), work, "127.0.0.1", cache_room=CacheRoom(ram_bytes=2**30))


def prepared(directory, lender_of: Callable[[StageWork], Lender]) -> LocalEngine:
    engine = LocalEngine(lender_of=lender_of)
    engine.prepare(load(directory, (0, 2), OWN), lambda fraction: None)
    return engine


def until_whole(engine: LocalEngine) -> None:
    deadline = time.monotonic() + WITHIN_S
    while engine.report(watched=False).kv_blocks < (OWN + LENT) // 16:
        assert time.monotonic() < deadline, "nobody has taken its place"


def kill(lender: LenderClient) -> None:
    assert lender.process is not None
    lender.process.kill()
    lender.process.wait()


def test_a_lender_that_ends_while_idle_is_reported_and_replaced(directory):
    started = []

    def lender_of(work: StageWork) -> LenderClient:
        started.append(start_lender(work.threads))
        return started[-1]

    engine = prepared(directory, lender_of)
    report = engine.report(watched=False)
    assert (report.kv_blocks, report.lender_is_lost) == ((OWN + LENT) // 16, False)
    kill(started[0])
    assert engine.report(watched=False).lender_is_lost
    assert engine.rows_kept(Resume(()), {}, lambda *given: True).blocks == OWN // 16
    until_whole(engine)
    assert len(started) == 2 and not engine.report(watched=False).lender_is_lost
    kill(started[1])
    assert engine.report(watched=False).lender_is_lost, "the second one is watched as the first"


def test_a_stage_of_two_parts_has_all_of_its_room_again(directory):
    """Meanwhile the ring has counted with less, and the other part has held that."""
    lenders, is_late = [], threading.Event()

    def lender_of(work: StageWork) -> NearLender:
        lenders.append(NearLender())
        if len(lenders) == 3:
            is_late.wait()
        return lenders[-1]

    engine = prepared(directory, lender_of)
    taken = load(directory, (2, 4), OWN + LENT)
    engine.prepare(taken, lambda fraction: None, Held(ReplayLog(1e9), {}))
    lenders[0].is_lost = True
    assert engine.report(watched=False).lender_is_lost
    kept = engine.rows_kept(Resume(()), {}, lambda *given: True)
    assert kept.blocks == OWN // 16
    engine.hold(kept.blocks)
    is_late.set()
    until_whole(engine)


def test_one_that_comes_soon_is_there_in_the_next_epoch(directory):
    """Then nobody waits for room that has to be offered again."""
    lenders = []

    def lender_of(work: StageWork) -> NearLender:
        lenders.append(NearLender())
        return lenders[-1]

    engine = prepared(directory, lender_of)
    lenders[0].is_lost = True
    assert engine.rows_kept(Resume(()), {}, lambda *given: True).blocks == (OWN + LENT) // 16
    assert len(lenders) == 2 and not engine.report(watched=False).lender_is_lost


@pytest.mark.parametrize("lost", [1, STARTS_MAX])
def test_a_lender_that_is_lost_while_it_starts_is_tried_again(directory, lost):
    tries = []

    def lender_of(work: StageWork) -> LenderClient:
        tries.append(start_lender(work.threads))
        if len(tries) <= lost:
            kill(tries[-1])
        return tries[-1]

    engine = prepared(directory, lender_of)
    lent = 0 if lost == STARTS_MAX else LENT
    assert len(tries) == min(lost + 1, STARTS_MAX)
    assert engine.report(watched=False).kv_blocks == (OWN + lent) // 16
    for one in tries:
        one.link.close()


def test_a_link_that_says_something_unasked_is_not_taken_for_one_that_ended():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = LenderClient(ours)
        assert not client.is_lost
        theirs.sendall(b"late")
        assert not client.is_lost
    assert client.is_lost
