"""litellm, unchanged, with MoLink as an OpenAI-compatible provider and as Anthropic's."""

import asyncio
import json
import os

import pytest
from pydantic import BaseModel

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

from tests.api.scripted import CALL, SCHEMA, ScriptedService

HELLO = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
LIMIT_S = 20
"""Only a hung test reaches this."""


class Weather(BaseModel):
    city: str


@pytest.fixture
def service():
    return ScriptedService()


@pytest.fixture(params=["openai", "anthropic"])
async def asked(request, service, serve):
    """Arguments of a call, by way of either provider."""
    url = await serve(service)
    is_openai = request.param == "openai"
    return {
        "model": f"{request.param}/tiny/model",
        "api_base": f"{url}/v1" if is_openai else url,
        "api_key": "none",
        "messages": HELLO,
        "max_tokens": 200,
        "num_retries": 0,
        "max_retries": 0,
    }


async def test_text(asked, service):
    answer = await litellm.acompletion(**asked)
    assert answer.choices[0].message.content == "Hello there."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == len(service.prompts[0])
    assert answer.usage.completion_tokens == 12


async def test_a_stream(asked):
    stream = await litellm.acompletion(**asked, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == "Hello there." and len(pieces) > 5


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_and_its_result(asked, service, stream):
    service.says(f"Look.{CALL}")
    answer = await litellm.acompletion(**asked, tools=[TOOL], stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder([chunk async for chunk in answer])
    message = answer.choices[0].message
    (call,) = message.tool_calls
    assert (message.content, answer.choices[0].finish_reason) == ("Look.", "tool_calls")
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "weather",
        {"city": "Oslo"},
    )
    service.says("Rain.")
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    messages = [*HELLO, message.model_dump(exclude_none=True), result]
    again = await litellm.acompletion(**{**asked, "messages": messages}, tools=[TOOL])
    assert again.choices[0].message.content == "Rain."
    assert service.prompts[1] == (
        '[weather]<user>hi<assistant>Look.<tool_call>weather {"city": "Oslo"}</tool_call>'
        "<tool>rain<assistant>"
    )


async def test_an_answer_in_the_shape_of_a_schema(service, serve):
    url = await serve(service)
    service.says('{"city": "Oslo"}')
    answer = await litellm.acompletion(
        model="openai/tiny/model",
        api_base=f"{url}/v1",
        api_key="none",
        messages=HELLO,
        response_format=Weather,
    )
    assert Weather.model_validate_json(answer.choices[0].message.content).city == "Oslo"
    assert "city" in service.requests[0].sampling.grammar


async def test_errors(asked, service):
    with pytest.raises(litellm.NotFoundError, match="not served here"):
        await litellm.acompletion(**{**asked, "model": f"{asked['model']}-9"})
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        await litellm.acompletion(**asked, temperature=-1)
    service.unready_reason = "The ring is loading: try again soon."
    with pytest.raises((litellm.ServiceUnavailableError, litellm.InternalServerError)) as caught:
        await litellm.acompletion(**asked)
    assert "loading" in str(caught.value)


async def test_a_client_that_runs_out_of_time_stops_the_sequence(asked, service):
    service.events_before_hold = 0
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(litellm.Timeout):
            await litellm.acompletion(**asked, timeout=0.2)
        await service.closed.acquire()


async def test_a_cancelled_call_stops_the_sequence(asked, service):
    service.events_before_hold = 3
    async with asyncio.timeout(LIMIT_S):
        call = asyncio.create_task(litellm.acompletion(**asked))
        await service.holding.acquire()
        assert service.closed.locked(), "nothing is closed while the client waits"
        call.cancel()
        await service.closed.acquire()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_anthropics_messages_by_way_of_litellm(service, serve):
    """Streams of it need litellm's proxy."""
    answer = await litellm.anthropic.messages.acreate(
        model="anthropic/tiny/model",
        api_base=await serve(service),
        api_key="none",
        messages=HELLO,
        max_tokens=200,
    )
    assert answer["content"][0]["text"] == "Hello there."
