"""LangChain's OpenAI client, unchanged, over chat completions and over responses."""

import asyncio

import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.api.scripted import CALL, SCHEMA, ScriptedService

MODEL = "tiny/model"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
LIMIT_S = 20
"""Only a hung test reaches this."""


class Weather(BaseModel):
    """What is asked for."""

    city: str


@pytest.fixture
def service():
    return ScriptedService()


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
async def connect(request, service, serve):
    """Makes a chat model of a server; options are LangChain's."""
    url = await serve(service)

    def connect(**options) -> ChatOpenAI:
        given = {"model": MODEL, "base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}
        return ChatOpenAI(**{**given, "use_responses_api": request.param, **options})

    return connect


async def test_text(connect, service):
    answer = await connect(temperature=0.5).ainvoke([("system", "be kind"), ("human", "hi")])
    assert answer.text == "Hello there."
    assert service.prompts == ["<system>be kind<user>hi<assistant>"]
    assert answer.usage_metadata["input_tokens"] == len(service.prompts[0])
    assert answer.usage_metadata["output_tokens"] == 12


async def test_a_stream(connect):
    pieces = [piece async for piece in connect(stream_usage=True).astream("hi")]
    assert "".join(piece.text for piece in pieces) == "Hello there."
    assert len(pieces) >= 12
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert whole.usage_metadata["output_tokens"] == 12


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_and_its_result(connect, service, stream):
    service.says(f"Look.{CALL}")
    model = connect(streaming=stream).bind_tools([TOOL])
    answer = await model.ainvoke("hi")
    (call,) = answer.tool_calls
    assert (answer.text, call["name"], call["args"]) == ("Look.", "weather", {"city": "Oslo"})
    service.says("Rain.")
    result = ToolMessage("rain", tool_call_id=call["id"])
    again = await model.ainvoke([HumanMessage("hi"), answer, result])
    assert again.text == "Rain."
    assert service.prompts[1] == (
        '[weather]<user>hi<assistant>Look.<tool_call>weather {"city": "Oslo"}</tool_call>'
        "<tool>rain<assistant>"
    )


async def test_an_answer_in_the_shape_of_a_schema(connect, service):
    service.says('{"city": "Oslo"}')
    model = connect().with_structured_output(Weather, method="json_schema")
    assert await model.ainvoke("hi") == Weather(city="Oslo")
    assert "city" in service.requests[0].sampling.grammar


async def test_errors(connect, service):
    with pytest.raises(openai.NotFoundError, match="not served here"):
        await connect(model="gpt-9").ainvoke("hi")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await connect(temperature=-1).ainvoke("hi")
    service.unready_reason = "The ring is loading: try again soon."
    with pytest.raises(openai.InternalServerError, match="loading"):
        await connect().ainvoke("hi")


async def test_a_client_that_runs_out_of_time_stops_the_sequence(connect, service):
    service.events_before_hold = 0
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises((openai.APITimeoutError, TimeoutError)):
            await connect(timeout=0.2).ainvoke("hi")
        await service.closed.acquire()


async def test_a_client_that_stops_reading_stops_the_sequence(connect, service):
    service.events_before_hold = 3
    async with asyncio.timeout(LIMIT_S):
        stream = connect().astream("hi")
        async for piece in stream:
            if piece.text:
                break
        await service.holding.acquire()
        assert service.closed.locked(), "nothing is closed while the client reads"
        await stream.aclose()
        await service.closed.acquire()
