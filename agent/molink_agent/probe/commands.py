"""Ask another program, without ever waiting for it longer than its answer is worth.

Desktops, drivers and Windows are asked through small programs of theirs: each may be missing, hang
or print pages. So each is a process of its own that is ended, with what it started, once its time
is up. Calling their libraries in our process was rejected: one that hangs would hang the agent.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process, SubprocessStreamProtocol
from collections.abc import Awaitable, Callable

Ask = Callable[..., Awaitable[str | None]]
"""The shape of `answer_of`, for doubles."""

ANSWER_WITHIN_S = 5.0
"""PowerShell takes about two seconds to start on a slow disk; everything else answers at once."""

ANSWER_BYTES_MAX = 65_536
"""Most bytes of an answer: all that is asked for is a number or a line."""

END_WITHIN_S = 1.0
"""Seconds to wait for the end of a killed process, which ends at once; only a process that fled to
a session of its own holds the pipe longer, and is not waited for."""


async def answer_of(*command: str, timeout_s: float = ANSWER_WITHIN_S) -> str | None:
    """Text that `command` prints; None when it is missing, fails, prints too much or takes too
    long."""
    loop = asyncio.get_running_loop()
    try:
        transport, protocol = await loop.subprocess_exec(
            lambda: SubprocessStreamProtocol(ANSWER_BYTES_MAX, loop),
            *command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    process = Process(transport, protocol, loop)
    try:
        async with asyncio.timeout(timeout_s):
            return await _whole_answer(process)
    except TimeoutError:
        return None
    finally:
        await _end(process)
        transport.close()  # Its pipe too, which one that fled may hold for hours.


async def _whole_answer(process: Process) -> str | None:
    assert process.stdout is not None
    output = b""
    while len(output) <= ANSWER_BYTES_MAX:
        data = await process.stdout.read(ANSWER_BYTES_MAX)
        if not data:
            failed = await process.wait() != 0
            return None if failed else output.decode("utf-8", errors="replace")
        output += data
    return None


async def _end(process: Process) -> None:
    """End a process and all that it started: they share its session. Its pipe is emptied, since
    asyncio does not believe in the end of a process before the end of its pipe."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_WITHIN_S):
            await _rest(process)


async def _rest(process: Process) -> None:
    assert process.stdout is not None
    while await process.stdout.read(ANSWER_BYTES_MAX):
        pass
    await process.wait()
