"""What a stage process does with the lines of its supervisor."""

import io
import json
import os
import queue
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from molink.stage.stage_process import (
    EXIT_FAILED,
    FACTS_WAITING_MAX,
    SupervisorPipe,
    borrowing,
)
from molink.stage_protocol.health import StageHealth
from molink.stage_protocol.lan_lease import LanLease
from molink.stage_protocol.messages import (
    Borrow,
    JoinRing,
    LoadStage,
    MovePath,
    PathMoved,
    SetAllowed,
    SetRoom,
    StageReady,
    StageWork,
    decode_line,
    encode_line,
)
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.resume import Resume
from tests.coordinator.upkeep.world import REPORT

LOAD = LoadStage("demo", StageWork((0, 4), "cpu", "auto"), "127.0.0.1")
JOIN = JoinRing(1, "tcp://a:1", None, RingTerms(64, None, (1,), None), None)
KEYS = [SetAllowed((character * 40,)) for character in "abc"]
MOVES = [MovePath("next", "tcp://a:1"), MovePath("coordinator", "tcp://b:1")]

LAST = replace(REPORT, steps=999)


class Pipes:
    """Both standard streams of a stage, from the side of its supervisor."""

    def __init__(self) -> None:
        end, self._input = os.pipe()  # Never closed: that would end this process.
        self.facts = io.BytesIO()
        self.stage = SupervisorPipe(os.fdopen(end, "rb"), self.facts)

    def say(self, *commands) -> None:
        for command in commands:
            os.write(self._input, encode_line(command))


@pytest.fixture
def pipes():
    return Pipes()


def test_steering_is_obeyed_at_once_and_never_taken_for_the_next_step(pipes):
    obeyed: queue.SimpleQueue = queue.SimpleQueue()
    pipes.say(LOAD)
    assert pipes.stage.expect_load() == LOAD
    pipes.stage.steer(obeyed.put)
    pipes.say(KEYS[0], JOIN, MOVES[0])
    assert obeyed.get(timeout=30) == KEYS[0]
    assert pipes.stage.expect_join() == JOIN
    assert obeyed.get(timeout=30) == MOVES[0]


def test_of_what_came_before_there_were_links_the_last_of_each_kind_counts(pipes):
    obeyed: list[object] = []
    pipes.say(KEYS[0], MOVES[0], KEYS[1], MOVES[1], KEYS[2], LOAD)
    pipes.stage.expect_load()
    pipes.stage.steer(obeyed.append)
    assert sorted(map(repr, obeyed)) == sorted(map(repr, [KEYS[2], *MOVES]))


def test_facts_of_two_threads_do_not_mix(pipes):
    facts = [StageReady(), PathMoved("next", "tcp://a:1" * 500, True, "")]
    threads = [
        threading.Thread(target=lambda fact=fact: [pipes.stage.report(fact) for _ in range(100)])
        for fact in facts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipes.stage.flush()
    lines = pipes.facts.getvalue().splitlines()
    assert len(lines) == 200 and all(decode_line(line) in facts for line in lines)


def test_what_a_stage_logs_are_records_where_a_program_reads_them():
    command = [sys.executable, "-m", "molink.stage.stage_process", "--log-format=json"]
    ended = subprocess.run(
        command, input=b"nonsense\n", capture_output=True, timeout=60, check=False
    )
    (record,) = [json.loads(line) for line in ended.stderr.splitlines()]
    assert (record["level"], record["logger"]) == ("error", "molink.stage")
    assert "not a line between a stage and its supervisor" in record["exception"]


def test_a_supervisor_that_does_not_read_holds_nobody_up():
    """Minutes of health reports, far more than a pipe holds; then it reads what counts."""
    end, _ = os.pipe()
    unread, facts = os.pipe()
    stage = SupervisorPipe(os.fdopen(end, "rb"), os.fdopen(facts, "wb"))
    moved = PathMoved("next", "tcp://a:1", True, "")

    def report():
        for number in range(1000):
            stage.report(replace(REPORT, steps=number))
            if number == 500:
                stage.report(moved)

    reporting = threading.Thread(target=report, daemon=True)
    reporting.start()
    reporting.join(30)
    assert not reporting.is_alive()
    with os.fdopen(unread, "rb") as lines:
        read = [decode_line(line) for line in iter(lines.readline, encode_line(LAST))]
    steps = [fact.steps for fact in read if isinstance(fact, StageHealth)]
    assert steps == sorted(steps) and len(steps) < 999
    assert read.count(moved) == 1


def test_of_facts_that_nobody_reads_the_oldest_are_dropped():
    end, _ = os.pipe()
    unread, facts = os.pipe()
    stage = SupervisorPipe(os.fdopen(end, "rb"), os.fdopen(facts, "wb"))
    moves = [PathMoved("next", f"tcp://{number}:1", False, "x" * 2000) for number in range(1000)]
    for moved in moves:
        stage.report(moved)
    with os.fdopen(unread, "rb") as lines:
        read = [decode_line(line) for line in iter(lines.readline, encode_line(moves[-1]))]
    assert FACTS_WAITING_MAX - 1 <= len(read) < 500
    assert read[1 - FACTS_WAITING_MAX :] == moves[-FACTS_WAITING_MAX:-1]


@pytest.mark.parametrize(
    ("lines", "code"), [(b"", 0), (b"nonsense\n", EXIT_FAILED), (b'{"kind": "stage_ready"}\n', 3)]
)
def test_a_stage_ends_with_its_input_and_on_what_is_no_command(lines, code):
    program = (
        "import sys, threading; from molink.stage.stage_process import SupervisorPipe;"
        "SupervisorPipe(sys.stdin.buffer, sys.stdout.buffer); threading.Event().wait()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], input=lines, capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == code


def test_a_stage_that_has_joined_is_told_that_its_ring_goes_on(pipes):
    obeyed: queue.SimpleQueue = queue.SimpleQueue()
    pipes.say(LOAD, JOIN)
    pipes.stage.expect_load()
    pipes.stage.steer(obeyed.put)
    assert pipes.stage.expect_join() == JOIN
    assert pipes.stage.next_command() is None
    epochs = [replace(JOIN, epoch=epoch, resume=Resume(((1, 5),))) for epoch in (2, 3)]
    pipes.say(*epochs)
    assert [obeyed.get(timeout=30) for _ in epochs] == epochs
    assert pipes.stage.next_command() == epochs[-1], "an epoch that is over is not entered"
    pipes.say(epochs[0], LOAD, *epochs)
    assert [obeyed.get(timeout=30) for _ in range(4)][1] == LOAD
    assert [pipes.stage.next_command() for _ in range(3)] == [LOAD, epochs[-1], None]


def test_what_is_to_be_borrowed_goes_to_the_engine_and_never_to_the_loop(pipes):
    """Of each kind of command about room the last one counts."""

    steered: queue.SimpleQueue = queue.SimpleQueue()
    pipes.stage.steer(steered.put)
    lease = LanLease("127.0.0.1", 4000, 7, "0a" * 32, 1, 2**20)
    lent, room = [Borrow(tokens, lease) for tokens in (64, 128)], SetRoom(320)
    pipes.say(lent[0], lent[1], room)
    assert [steered.get(timeout=5) for _ in range(3)] == [*lent, room]
    given: list[Borrow] = []
    engine = SimpleNamespace(borrow=given.append)
    next_command = borrowing(engine, pipes.stage.next_command)
    assert [next_command(), next_command()] == [room, None]
    assert given == [lent[1]]
