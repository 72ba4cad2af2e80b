"""The process that checks grammars: asked once, ended when it takes too long, started again."""

import asyncio
from contextlib import asynccontextmanager

import psutil
import pytest

from molink.api.errors import ApiError
from molink.api.grammars import checker as checker_module
from molink.api.grammars.checker import GrammarChecker
from molink.serving.grammar_check import GrammarQuestion

GOOD = GrammarQuestion("regex", "a+")
BAD = GrammarQuestion("regex", "(a")
LONG = GrammarQuestion(
    "json",
    '{"type": "object", "properties": {'
    + ",".join(f'"{number}": {{"type": "string"}}' for number in range(2000))
    + "}}",
)
"""Takes hundreds of milliseconds: far longer than no time at all."""

LIMIT_S = 20
"""Only a hung test reaches this."""


@asynccontextmanager
async def checking(**options):
    checker = GrammarChecker(**options)
    try:
        yield checker
    finally:
        await checker.close()


def children() -> set[int]:
    found = psutil.Process().children()
    return {one.pid for one in found if "molink.serving.grammar_check" in one.cmdline()}


async def test_one_process_answers_and_ends_with_its_checker():
    before = children()
    async with checking() as checker:
        assert children() == before
        assert "/a+/" in await checker.grammar(GOOD, "guided_regex")
        (process,) = children() - before
        with pytest.raises(ApiError, match="correct or simplify it"):
            await checker.grammar(BAD, "guided_regex")
        assert children() - before == {process}
    assert children() == before


async def test_what_was_answered_is_not_asked_again():
    async with checking() as checker:
        first = await checker.grammar(GOOD, "guided_regex")
        await checker.close()
        assert await checker.grammar(GOOD, "guided_regex") == first
        assert not children()


async def test_one_that_takes_too_long_is_refused_and_the_next_is_checked():
    async with checking() as checker:
        await checker.grammar(GOOD, "guided_regex")
        checker.check_within_s = 0.0
        with pytest.raises(ApiError, match="too complex to be checked in time") as refused:
            await checker.grammar(LONG, "guided_json")
        assert (refused.value.status, refused.value.param) == (400, "guided_json")
        assert not children()
        checker.check_within_s = 60.0
        with pytest.raises(ApiError, match="unclosed group"):
            await checker.grammar(BAD, "guided_regex")


async def test_a_process_that_dies_is_the_grammars_fault_and_not_the_servers():
    async with checking() as checker:
        await checker.grammar(GOOD, "guided_regex")
        asked = asyncio.create_task(checker.grammar(LONG, "guided_json"))
        await asyncio.sleep(0)
        for pid in children():
            psutil.Process(pid).kill()
        with pytest.raises(ApiError, match="too complex to be checked: simplify"):
            await asked


async def test_an_answer_that_nobody_waits_for_is_not_the_next_ones():
    async with checking() as checker:
        await checker.grammar(GOOD, "guided_regex")
        asked = asyncio.create_task(checker.grammar(LONG, "guided_json"))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        with pytest.raises(ApiError, match="unclosed group"):
            await checker.grammar(BAD, "guided_regex")


async def test_no_process_is_left_of_a_question_that_is_given_up_while_it_starts(monkeypatch):
    before, made, create = children(), asyncio.Event(), asyncio.create_subprocess_exec

    async def noted(*args, **options):
        process = await create(*args, **options)
        made.set()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    async with checking() as checker:
        asked = asyncio.create_task(checker.grammar(GOOD, "guided_regex"))
        async with asyncio.timeout(LIMIT_S):
            await made.wait()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert children() == before
        assert "/a+/" in await checker.grammar(GOOD, "guided_regex")


async def test_a_server_that_cannot_check_says_so(monkeypatch):
    monkeypatch.setattr(checker_module, "MODULE", "molink.serving.no_such_module")
    async with checking() as checker:
        with pytest.raises(ApiError) as refused:
            await checker.grammar(GOOD, "guided_regex")
        assert refused.value.status == 500
