"""Client of the process that checks grammars.

One process, which starts with the first grammar and is asked one question at a time: most take a
millisecond. One that takes too long ends with its process, and the next question starts another.
What was answered is remembered, because an application sends the same schema with every request.
"""

import asyncio
import json
import sys
from collections import OrderedDict
from dataclasses import dataclass, field

from molink.api.errors import ApiError
from molink.serving.grammar_check import ANSWER, MODULE, QUESTION, GrammarAnswer, GrammarQuestion
from molink_scheduler.request import GRAMMAR_CHARS_MAX

CHECK_WITHIN_S = 5.0
"""The worst grammar within the library's limits takes a second; four times that on a busy PC."""

START_WITHIN_S = 60.0
"""Seconds within which the process starts; it takes 0.2 s on a free core."""

REMEMBERED_MAX = 64
"""Answers: 8 MB when all of them are as long as may be."""

LINE_BYTES_MAX = 2**20
"""Most bytes of one answer: a grammar whose every character is escaped in JSON."""

Process = asyncio.subprocess.Process


@dataclass(slots=True)
class GrammarChecker:
    """Checker of grammars; `close` ends its process."""

    check_within_s: float = CHECK_WITHIN_S
    _process: Process | None = field(init=False, default=None)
    _one_at_a_time: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _answers: OrderedDict[GrammarQuestion, GrammarAnswer] = field(
        init=False, default_factory=OrderedDict
    )

    async def grammar(self, question: GrammarQuestion, param: str, of: str = "") -> str:
        """A grammar in the form in which it travels. Raises ApiError about the field `param` when
        no tail could follow it; `of`: which part of the field it is."""
        if len(question.text) > GRAMMAR_CHARS_MAX:
            raise ApiError(
                f"'{param}' is longer than {GRAMMAR_CHARS_MAX} characters: simplify it.",
                param=param,
            )
        answer = self._answers.get(question) or await self._asked(question, param)
        self._answers[question] = answer
        self._answers.move_to_end(question)
        if len(self._answers) > REMEMBERED_MAX:
            self._answers.popitem(last=False)
        if answer.error:
            reason = f"{of}: {answer.error}" if of else answer.error
            raise ApiError(
                f"'{param}' cannot be followed ({reason}): correct or simplify it.",
                param=param,
            )
        return answer.grammar

    async def close(self) -> None:
        """End the process, if one runs; the next question starts another."""
        if self._process is not None:
            await _end(self._process)
        self._process = None

    async def _asked(self, question: GrammarQuestion, param: str) -> GrammarAnswer:
        async with self._one_at_a_time:
            process = await self._running()
            try:
                async with asyncio.timeout(self.check_within_s):
                    return await _ask(process, question)
            except TimeoutError:
                await self.close()
                raise ApiError(
                    f"'{param}' is too complex to be checked in time: simplify it.", param=param
                ) from None
            except (OSError, ValueError):  # It ran out of memory, or the library broke off.
                await self.close()
                raise ApiError(
                    f"'{param}' is too complex to be checked: simplify it.", param=param
                ) from None
            except BaseException:  # Cancelled: the answer must not be taken for the next one's.
                await asyncio.shield(self.close())
                raise

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await _started()
        return self._process


async def _ask(process: Process, question: GrammarQuestion) -> GrammarAnswer:
    """The process's answer. Raises ValueError when it has ended."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(QUESTION.write(question)).encode() + b"\n")
    await process.stdin.drain()
    return ANSWER.read(json.loads(await process.stdout.readline()))


async def _started() -> Process:
    """A process that has said that it is ready. Raises ApiError (500)."""
    failed = ApiError(
        "The server cannot check grammars: look into its log.", status=500, code="internal_error"
    )
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
        )
    except OSError:  # No memory, or too many open files.
        raise failed from None
    try:
        if await _is_ready(process):
            return process
    except BaseException:  # Cancelled: nobody would know of the process.
        await asyncio.shield(_end(process))
        raise
    await _end(process)
    raise failed


async def _is_ready(process: Process) -> bool:
    """Whether it says so in time, before it ends."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_WITHIN_S):
            return bool(await process.stdout.readline())
    except TimeoutError:
        return False


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()
