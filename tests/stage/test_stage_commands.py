"""What a stage process does with the lines of its supervisor."""

import io
import os
import queue
import subprocess
import sys
import threading

import pytest

from molink.stage.stage_process import EXIT_FAILED, SupervisorPipe
from molink.stage_protocol.messages import (
    JoinRing,
    LoadStage,
    MovePath,
    PathMoved,
    SetAllowed,
    StageReady,
    StageWork,
    decode_line,
    encode_line,
)
from molink_scheduler.head.settings import RingTerms

LOAD = LoadStage("demo", StageWork((0, 4), "cpu", "auto"), "127.0.0.1")
JOIN = JoinRing(1, "tcp://a:1", None, RingTerms(64, None, (1,), None, "molink"), None)
KEYS = [SetAllowed((character * 40,)) for character in "abc"]
MOVES = [MovePath("next", "tcp://a:1"), MovePath("coordinator", "tcp://b:1")]


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
        threading.Thread(target=lambda fact=fact: [pipes.stage.report(fact) for _ in range(200)])
        for fact in facts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = pipes.facts.getvalue().splitlines()
    assert len(lines) == 400 and all(decode_line(line) in facts for line in lines)


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
