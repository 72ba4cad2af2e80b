"""curl, as the guides use it: streams, schemas, tools, errors, time-outs and cancellation."""

import asyncio
import json
import shutil

import pytest

from tests.api.conftest import FakeService
from tests.api.scripted import CALL, SCHEMA, ScriptedService

CURL = shutil.which("curl")
pytestmark = pytest.mark.skipif(CURL is None, reason="curl is not installed (apt-get install curl)")

LIMIT_S = 20
"""Only a hung test reaches this."""

TIMED_OUT = 28
"""curl's exit status when `--max-time` is over."""


async def started(url, body, *options):
    """curl, posting to chat completions."""
    return await asyncio.create_subprocess_exec(
        CURL,
        *("--silent", "--no-buffer", "--noproxy", "*", f"{url}/v1/chat/completions"),
        *("--header", "Content-Type: application/json", "--data", json.dumps(body)),
        *options,
        stdout=asyncio.subprocess.PIPE,
    )


async def curl(url, body, *options):
    """Exit status, and what it printed."""
    process = await started(url, body, *options)
    async with asyncio.timeout(LIMIT_S):
        printed, _ = await process.communicate()
    return process.returncode, printed.decode()


def chat(**fields):
    return {"model": "tiny/model", "messages": [{"role": "user", "content": "hi"}], **fields}


async def test_a_stream(serve):
    url = await serve(ScriptedService())
    status, printed = await curl(url, chat(stream=True))
    *events, last = [line.removeprefix("data: ") for line in printed.split("\n\n") if line]
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    assert status == 0 and last == "[DONE]"
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hello there."


async def test_a_tool_is_called(serve):
    url = await serve(ScriptedService(script=CALL))
    tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    status, printed = await curl(url, chat(tools=[tool]))
    (call,) = json.loads(printed)["choices"][0]["message"]["tool_calls"]
    assert status == 0 and call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}


async def test_a_schema_reaches_who_computes(serve):
    service = ScriptedService(script='{"city": "Oslo"}')
    url = await serve(service)
    wanted = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    status, printed = await curl(url, chat(response_format=wanted))
    assert status == 0
    assert json.loads(printed)["choices"][0]["message"]["content"] == '{"city": "Oslo"}'
    assert "city" in service.requests[0].sampling.grammar


async def test_a_refusal_is_json_with_one_sentence(serve):
    url = await serve(FakeService())
    status, printed = await curl(url, chat(max_tokens="5"), "--write-out", "\n%{http_code}")
    answer, code = printed.rsplit("\n", 1)
    assert (status, code) == (0, "400")
    assert json.loads(answer)["error"]["param"] == "max_tokens"


async def test_who_runs_out_of_patience_ends_the_answer(serve):
    service = FakeService(events_before_hold=0)
    status, _ = await curl(await serve(service), chat(stream=True), "--max-time", "0.5")
    assert status == TIMED_OUT
    async with asyncio.timeout(LIMIT_S):
        await service.closed.acquire()


async def test_who_is_stopped_ends_the_answer(serve):
    service = FakeService(events_before_hold=2)
    process = await started(await serve(service), chat(stream=True))
    async with asyncio.timeout(LIMIT_S):
        await service.holding.acquire()
        process.terminate()
        await process.wait()
        await service.closed.acquire()
    assert len(service.requests) == 1
