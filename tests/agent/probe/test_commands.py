"""Other programs are asked, and ended when they do not answer."""

import asyncio
import sys
import time

import psutil

from molink_agent.probe.commands import ANSWER_BYTES_MAX, answer_of


async def test_what_is_printed_is_the_answer():
    assert await answer_of("echo", "42") == "42\n"


async def test_a_missing_program_has_no_answer():
    assert await answer_of("no-such-program-anywhere") is None


async def test_a_program_that_fails_has_no_answer():
    assert await answer_of("sh", "-c", "echo 42; exit 3") is None


async def test_a_program_that_says_too_much_is_ended():
    endless = f"while True: print('x' * {ANSWER_BYTES_MAX})"
    assert await answer_of(sys.executable, "-c", endless) is None


async def test_a_program_that_hangs_is_ended_with_what_it_started(tmp_path):
    note = tmp_path / "pid"
    hangs = f"sleep 600 & echo $! > {note}; wait"
    started = time.monotonic()
    assert await answer_of("sh", "-c", hangs, timeout_s=0.3) is None
    assert time.monotonic() - started < 5
    child = int(note.read_text())
    assert has_ended(child)


def has_ended(pid):
    """Whether `pid` is gone, or is a zombie, or becomes one: the kernel ends a killed process when
    it runs again, which on a busy machine is not at once."""
    try:
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE:
            process.wait(timeout=10)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


async def test_a_program_that_flees_is_not_waited_for(tmp_path):
    note = tmp_path / "pid"
    flees = f"setsid sh -c 'echo $$ > {note}; exec sleep 600' & wait"
    started, before = time.monotonic(), psutil.Process().num_fds()
    assert await answer_of("sh", "-c", flees, timeout_s=0.3) is None
    assert time.monotonic() - started < 5
    await asyncio.sleep(0)  # The loop closes what was let go.
    assert psutil.Process().num_fds() == before
    psutil.Process(int(note.read_text())).kill()
