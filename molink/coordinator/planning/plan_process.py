"""A plan made in a process of its own: `python -m molink.coordinator.planning.plan_process`.

Reads one question as JSON, prints the answer as JSON, ends. Planning for a thousand nodes computes
for seconds; in the coordinator those would be seconds in which nobody is heard and no token moves
on. A thread was rejected: it leaves the interpreter to others only every few milliseconds, and the
broker's and the client's thousand messages a second each need it several times.
"""

import asyncio
import json
import os
import sys

from molink.errors import StageError
from molink_scheduler.placement import Plan, Shortage
from molink_scheduler.placement.fields import (
    PlacementQuestion,
    fields_of,
    found_from_fields,
    question_from_fields,
)

__all__ = ["plan_beside"]

NICENESS = 5
"""Users' tokens and agents' messages come first."""

PLAN_WITHIN_S = 120.0
"""A thousand nodes take three seconds on a core of their own."""


async def plan_beside(question: PlacementQuestion) -> Plan | Shortage:
    """The answer to a question. Raises StageError when the process has failed."""
    process = await _started()
    try:
        async with asyncio.timeout(PLAN_WITHIN_S):
            asked = await asyncio.to_thread(lambda: json.dumps(fields_of(question)).encode())
            told, _ = await process.communicate(asked)
    except TimeoutError:
        raise StageError(f"No plan was found within {PLAN_WITHIN_S:g} s.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise StageError(f"The process that plans has ended with code {process.returncode}.")
    return await asyncio.to_thread(lambda: found_from_fields(json.loads(told)))


async def _started() -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "molink.coordinator.planning.plan_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
    except OSError as error:  # No memory, or too many open files.
        raise StageError(f"The process that plans cannot be started: {error.strerror}.") from None


def _main() -> None:
    os.nice(NICENESS)
    question = question_from_fields(json.load(sys.stdin))
    json.dump(fields_of(question.answer()), sys.stdout)


if __name__ == "__main__":
    _main()
