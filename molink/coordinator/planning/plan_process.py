"""Plans made in a process of its own: `python -m molink.coordinator.planning.plan_process`.

Reads questions as JSON, prints their answers as JSON, ends. Planning for a thousand nodes computes
for seconds; in the coordinator those would be seconds in which no message is read and no token
moves on. A thread was rejected: it leaves the interpreter to others only every few milliseconds,
and the broker's and the client's thousand messages a second each need it several times.
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence

from molink.errors import StageError
from molink.json_object import JsonObject
from molink.wire.schema import Rules, Schema
from molink_scheduler.placement import Plan, Shortage
from molink_scheduler.placement.question import PlacementQuestion

QUESTION = Schema(PlacementQuestion, Rules())
PLAN = Schema(Plan, Rules())
SHORTAGE = Schema(Shortage, Rules())

NICENESS = 5
"""Users' tokens and agents' messages come first."""

PLAN_WITHIN_S = 120.0
"""A thousand nodes take three seconds on a core of their own."""


async def plan_beside(question: PlacementQuestion) -> Plan | Shortage:
    """The answer to a question. Raises StageError when the process has failed."""
    (answer,) = await plans_beside([question])
    return answer


async def plans_beside(questions: Sequence[PlacementQuestion]) -> list[Plan | Shortage]:
    """The answers to questions, in one process; raises as `plan_beside`."""
    process = await _started()
    try:
        async with asyncio.timeout(PLAN_WITHIN_S):
            lines = await asyncio.to_thread(
                lambda: json.dumps(list(map(QUESTION.write, questions)))
            )
            answers, _ = await process.communicate(lines.encode())
    except TimeoutError:
        raise StageError(f"No plan was found within {PLAN_WITHIN_S:g} s.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise StageError(f"The process that plans has ended with code {process.returncode}.")
    return await asyncio.to_thread(lambda: list(map(answer_from_fields, json.loads(answers))))


def _written(questions: Sequence[PlacementQuestion]) -> bytes:
    return json.dumps([QUESTION.write(question) for question in questions]).encode()


async def _started() -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "molink.coordinator.planning.plan_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
    except OSError as error:  # No memory, or too many open files.
        raise StageError(f"The process that plans cannot be started: {error.strerror}.") from None


def answer_fields(found: Plan | Shortage) -> JsonObject:
    """An answer for JSON."""
    fields: JsonObject
    fields = PLAN.write(found) if isinstance(found, Plan) else SHORTAGE.write(found)
    return fields


def answer_from_fields(fields: JsonObject) -> Plan | Shortage:
    """The same answer. Raises FrameError for anything else."""
    return PLAN.read(fields) if "rings" in fields else SHORTAGE.read(fields)


def _main() -> None:
    os.nice(NICENESS)
    questions = map(QUESTION.read, json.load(sys.stdin))
    json.dump([answer_fields(question.answer()) for question in questions], sys.stdout)


if __name__ == "__main__":
    _main()
