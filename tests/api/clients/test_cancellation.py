"""Official clients that stop reading, or run out of time: their sequence ends with them."""

import asyncio
from functools import partial

import anthropic
import openai
import pytest

from tests.api.scripted import ScriptedService

MODEL = "tiny/model"
HELLO = [{"role": "user", "content": "hi"}]
LIMIT_S = 20
"""Only a hung test reaches this."""


def chat_call(url, **options):
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, **options)
    return client, partial(client.chat.completions.create, model=MODEL, messages=HELLO)


def responses_call(url, **options):
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, **options)
    return client, partial(client.responses.create, model=MODEL, input="hi")


def messages_call(url, **options):
    client = anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, **options)
    return client, partial(client.messages.create, model=MODEL, messages=HELLO, max_tokens=200)


calls = pytest.mark.parametrize("call", [chat_call, responses_call, messages_call])


def service(events_before_hold):
    return ScriptedService(events_before_hold=events_before_hold)


@calls
async def test_a_client_that_stops_reading_stops_the_sequence(serve, call):
    held = service(3)
    client, create = call(await serve(held))
    async with asyncio.timeout(LIMIT_S), client:
        stream = await create(stream=True)
        await anext(aiter(stream))
        await held.holding.acquire()
        assert held.closed.locked(), "nothing is closed while the client reads"
        await stream.close()
        await held.closed.acquire()


@calls
@pytest.mark.parametrize("events", [0, 3])
async def test_a_client_that_runs_out_of_time_stops_the_sequence(serve, call, events):
    held = service(events)
    client, create = call(await serve(held), timeout=0.2)
    async with asyncio.timeout(LIMIT_S), client:
        with pytest.raises((openai.APITimeoutError, anthropic.APITimeoutError)):
            await create()
        await held.closed.acquire()
