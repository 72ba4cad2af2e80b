"""Clients that others wrote, unchanged, against `molink serve demo`: the same text from each, and a
ring that is idle again when one of them goes away."""

import asyncio
import os

import aiohttp
import anthropic
import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

MODEL = "demo"
QUESTION = "What is MoLink?"
ASKED = [{"role": "user", "content": QUESTION}]
TOKENS = 24
LONG = 2000
"""More tokens than a client that goes away waits for."""


class Person(BaseModel):
    age: int


@pytest.fixture(scope="module")
def server(tools):
    with tools.serving(MODEL, "--nodes", "2") as server:
        yield server


@pytest.fixture
async def clients(server):
    """OpenAI's and Anthropic's."""
    base = {"api_key": "none", "max_retries": 0}
    async with (
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", **base) as ours,
        anthropic.AsyncAnthropic(base_url=server.url, **base) as theirs,
    ):
        yield ours, theirs


async def by_responses(client) -> str:
    async with client.responses.stream(
        model=MODEL, input=QUESTION, temperature=0, max_output_tokens=TOKENS
    ) as stream:
        return "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])


async def by_messages(client) -> str:
    async with client.messages.stream(
        model=MODEL, messages=ASKED, max_tokens=TOKENS, extra_body={"temperature": 0}
    ) as stream:
        return "".join([piece async for piece in stream.text_stream])


async def by_litellm(url: str) -> str:
    stream = await litellm.acompletion(
        model=f"openai/{MODEL}",
        api_base=f"{url}/v1",
        api_key="none",
        messages=ASKED,
        temperature=0,
        max_tokens=TOKENS,
        stream=True,
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def by_langchain(url: str) -> str:
    model = ChatOpenAI(
        model=MODEL, base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=TOKENS
    )
    return "".join([piece.text async for piece in model.astream(QUESTION)])


async def test_each_client_streams_the_same_text(server, clients):
    ours, theirs = clients
    whole = await ours.chat.completions.create(
        model=MODEL, messages=ASKED, temperature=0, max_tokens=TOKENS
    )
    text = whole.choices[0].message.content
    assert len(text) > TOKENS
    answers = await asyncio.gather(
        by_responses(ours), by_messages(theirs), by_litellm(server.url), by_langchain(server.url)
    )
    assert answers == [text] * 4


async def test_a_schema_holds_for_each_client(clients):
    ours, theirs = clients
    answer = await ours.responses.parse(
        model=MODEL, input=QUESTION, text_format=Person, temperature=0, max_output_tokens=200
    )
    message = await theirs.messages.parse(
        model=MODEL, messages=ASKED, output_format=Person, max_tokens=200
    )
    assert isinstance(answer.output_parsed, Person) and isinstance(message.parsed_output, Person)


async def test_token_ids_are_those_that_the_ring_counts(server, clients, tools):
    _, theirs = clients
    _, told = await tools.post(server.url, "/tokenize", {"messages": ASKED})
    counted = await theirs.messages.count_tokens(model=MODEL, messages=ASKED)
    answer = await theirs.messages.create(model=MODEL, messages=ASKED, max_tokens=1)
    assert told["count"] == counted.input_tokens == answer.usage.input_tokens
    _, text = await tools.post(server.url, "/detokenize", {"tokens": told["tokens"]})
    assert QUESTION in text["prompt"]


async def is_idle(tools, server) -> bool:
    """Whether no request is live, and no stage holds anything of one."""
    report = await tools.get(server.url, "/cluster/requests")
    cluster = await tools.get(server.url, "/cluster")
    holds_nothing = not any(stage["kv_tokens_used"] for stage in cluster["stages"])
    return holds_nothing and all(request["state"] == "ended" for request in report["requests"])


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/generate", {"prompt": QUESTION, "max_tokens": LONG}),
        ("/v1/completions", {"prompt": QUESTION, "max_tokens": LONG, "n": 2}),
        ("/v1/chat/completions", {"messages": ASKED, "max_tokens": LONG, "n": 2}),
        ("/v1/responses", {"input": QUESTION, "max_output_tokens": LONG}),
        ("/v1/messages", {"messages": ASKED, "max_tokens": LONG}),
    ],
)
async def test_a_stream_that_is_closed_frees_its_memory_in_each_dialect(server, tools, path, asked):
    body = asked | {"stream": True, "ignore_eos": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url + path, json=body) as answer,
    ):
        assert answer.status == 200
        await answer.content.readline()

        async def is_held():
            cluster = await tools.get(server.url, "/cluster")
            return all(stage["kv_tokens_used"] for stage in cluster["stages"])

        assert await tools.eventually(is_held)
    assert await tools.eventually(lambda: is_idle(tools, server))


async def test_clients_that_go_away_leave_the_ring_idle(server, clients, tools):
    ours, theirs = clients
    endless = {"model": MODEL, "stream": True, "extra_body": {"ignore_eos": True}}
    response = await ours.responses.create(input=QUESTION, max_output_tokens=LONG, **endless)
    message = await theirs.messages.create(messages=ASKED, max_tokens=LONG, **endless)
    await anext(aiter(response))
    await anext(aiter(message))
    assert not await is_idle(tools, server)
    await response.close()
    await message.close()
    await tools.eventually(lambda: is_idle(tools, server))


async def test_clients_that_run_out_of_time_leave_the_ring_idle(server, clients, tools):
    ours, theirs = clients
    endless = {"model": MODEL, "timeout": 0.2, "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.APITimeoutError):
        await ours.responses.create(input=QUESTION, max_output_tokens=LONG, **endless)
    with pytest.raises(anthropic.APITimeoutError):
        await theirs.messages.create(messages=ASKED, max_tokens=LONG, **endless)
    await tools.eventually(lambda: is_idle(tools, server))
