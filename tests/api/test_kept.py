"""Answers that are read again by their id are what their clients got, and nobody else's."""

import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from dataclasses import dataclass

import openai
import pytest

from molink.api.access import Access
from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import KeyStore
from molink.api.openai.responses import endpoint
from molink.errors import StageError
from molink.serving.answer_log import Ending
from molink.serving.answers.live_state import LiveState
from molink.serving.service import GenerationRequest
from molink.serving.token_events import TokenEvent
from tests.api.scripted import CALL, SCHEMA, ScriptedService

MODEL = "tiny/model"
TOOL = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
REASONED = f"<think>Where?</think>Well. {CALL}"


@dataclass
class KeepingService(ScriptedService):
    """Keeps what it answers, as a cluster does."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        if request.log is not None:
            request.log.begin()
        try:
            async with aclosing(super().generate(request)) as events:
                async for event in events:
                    if request.log is not None:
                        request.log.took(event)
                    yield event
        except BaseException as error:
            if request.log is not None:
                why = str(error) if isinstance(error, StageError) else ""
                request.log.ended(Ending(time.time(), None, None, why))
            raise


@pytest.fixture
def service():
    return KeepingService()


@pytest.fixture
def live(tmp_path):
    with closing(LiveState.open(tmp_path, MODEL, time.time())) as opened:
        yield opened


@pytest.fixture
async def url(service, serve, live):
    return await serve(service, live=live)


@pytest.fixture
async def client(url):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def get(http, url):
    async with http.get(url) as response:
        return response.status, await response.json()


ASKED = [
    {"input": "hi"},
    {"input": "hi", "max_output_tokens": 5, "metadata": {"run": "7"}, "instructions": "be kind"},
    {"input": "weather?", "tools": [TOOL]},
    {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    {"input": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]},
]


@pytest.mark.parametrize("place", range(len(ASKED)))
async def test_a_response_is_read_again_as_it_was_answered(client, service, place):
    service.says(REASONED if "tools" in ASKED[place] else "Hello there.")
    answered = await client.responses.create(model=MODEL, **ASKED[place])
    again = await client.responses.retrieve(answered.id)
    before, after = answered.to_dict(), again.to_dict()
    assert abs((before.pop("completed_at", 0) or 0) - (after.pop("completed_at", 0) or 0)) <= 1
    assert abs(before.pop("created_at") - after.pop("created_at")) <= 1
    assert after == before
    assert answered.to_dict()["store"] is True


async def test_a_stream_is_read_again_as_a_whole(client, service):
    service.says(REASONED)
    async with client.responses.stream(model=MODEL, input="hi", tools=[TOOL]) as stream:
        async for _ in stream:
            pass
        streamed = await stream.get_final_response()
    again = await client.responses.retrieve(streamed.id)
    kinds = ["reasoning", "message", "function_call"]
    assert [item.type for item in again.output] == kinds
    assert again.output[2].call_id == streamed.output[2].call_id


async def test_an_answer_under_way_is_read_as_far_as_it_is(client, service):
    service.events_before_hold = 5
    stream = await client.responses.create(model=MODEL, input="hi", stream=True)
    await service.holding.acquire()
    events = [await anext(stream) for _ in range(8)]
    name = events[0].response.id
    there = await client.responses.retrieve(name)
    assert (there.status, there.output_text) == ("in_progress", "Hello")
    assert there.output[0].status == "in_progress"
    await stream.close()
    await service.closed.acquire()
    assert (await client.responses.retrieve(name)).status == "cancelled"


async def test_a_generated_answer_is_read_again(url, http, service):
    asked = {"prompt": "hi", "logprobs": 1, "max_tokens": 4}
    headers = {"X-Request-Id": "one/two three"}
    async with http.post(f"{url}/generate", json=asked, headers=headers) as response:
        answered = await response.json()
        assert response.headers["X-Request-Id"] == "one/two three"
    assert (await get(http, f"{url}/generate/gen-one/two three"))[0] == 404, "the kept id is drawn"
    status, again = await get(http, f"{url}/generate/{answered['id']}")
    assert status == 200 and again["status"] == "incomplete"
    assert again.pop("timing")["total_s"] >= 0 and answered.pop("timing")
    assert again | {"status": None} == answered | {"status": None}


async def test_a_failed_answer_says_why(url, http, service):
    service.failure, service.events_before_failure = StageError("A PC is gone."), 3
    asked, headers = {"prompt": "hi", "stream": True}, {"X-Request-Id": "x"}
    async with http.post(f"{url}/generate", json=asked, headers=headers) as response:
        first = await response.content.readline()
        await response.read()
    name = json.loads(first.removeprefix(b"data: "))["id"]
    _, again = await get(http, f"{url}/generate/{name}")
    assert again["status"] == "failed" and again["error"] == {"message": "A PC is gone."}
    assert again["text"] == "Hel"


async def test_what_is_not_stored_is_not_found(client, service):
    answered = await client.responses.create(model=MODEL, input="hi", store=False)
    assert answered.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError, match="no answer 'resp_"):
        await client.responses.retrieve(answered.id)


async def test_only_the_key_that_asked_reads_an_answer(tmp_path, service, serve, live, http):
    with closing(KeyStore.open(tmp_path)) as store:
        mine, other, admin = (
            store.create(1.0, scope=scope)[1] for scope in ("inference", "inference", "admin")
        )
        keys = LiveKeys(KeyStore.open(tmp_path), clock=lambda: 1.0)
        url = await serve(service, access=Access(keys, required=True), live=live)
        headers = {"Authorization": f"Bearer {mine}", "X-Request-Id": "x"}
        async with http.post(f"{url}/generate", json={"prompt": "hi"}, headers=headers) as response:
            name = (await response.json())["id"]
        found = {}
        for key in (mine, other, admin, "none"):
            headers = {"Authorization": f"Bearer {key}"}
            async with http.get(f"{url}/generate/{name}", headers=headers) as response:
                found[key] = response.status, (await response.json()).get("error", {}).get("code")
        keys.store.close()
    assert found == {
        mine: (200, None),
        other: (404, "answer_not_found"),
        admin: (404, "answer_not_found"),
        "none": (401, "invalid_api_key"),
    }


async def test_a_conversation_goes_on_with_a_kept_answer(client, service):
    service.says(REASONED)
    first = await client.responses.create(model=MODEL, input="weather?", tools=[TOOL])
    service.says("Rain.")
    result = {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "rain"}
    second = await client.responses.create(
        model=MODEL, input=[result], tools=[TOOL], previous_response_id=first.id
    )
    third = await client.responses.create(
        model=MODEL, input="thanks", previous_response_id=second.id, stream=False
    )
    assert service.prompts[1] == (
        "[weather]<user>weather?<assistant><think>Where?</think>Well."
        '<tool_call>weather {"city": "Oslo"}</tool_call><tool>rain<assistant>'
    )
    assert service.prompts[2].endswith("<tool>rain<assistant>Rain.<user>thanks<assistant>")
    assert third.previous_response_id == second.id
    again = await client.responses.retrieve(third.id)
    assert again.output_text == "Rain." and again.previous_response_id == second.id


async def test_a_conversation_goes_on_with_nothing_that_is_not_kept(client, service):
    with pytest.raises(openai.NotFoundError, match="no answer 'resp_1'"):
        await client.responses.create(model=MODEL, input="a", previous_response_id="resp_1")
    assert not service.requests


async def test_a_response_is_forgotten(client):
    answer = await client.responses.create(model=MODEL, input="hi")
    await client.responses.delete(answer.id)
    for call in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="There is no answer"):
            await call(answer.id)


async def test_an_empty_previous_response_is_none(client, service):
    answer = await client.responses.create(model=MODEL, input="hi", previous_response_id="")
    assert answer.output_text == "Hello there." and service.prompts == ["<user>hi<assistant>"]


async def test_tokens_are_counted_of_the_whole_conversation(client, service, http, url):
    first = await client.responses.create(model=MODEL, input="hi")
    body = {"input": "more", "previous_response_id": first.id}
    async with http.post(f"{url}/v1/responses/input_tokens", json=body) as response:
        counted = (await response.json())["input_tokens"]
    await client.responses.create(model=MODEL, **body)
    assert counted == len(service.prompts[-1])


async def test_a_chain_that_outgrows_a_request_is_told_so(client, service, monkeypatch):
    monkeypatch.setattr(endpoint, "MESSAGES_MAX", 4)
    first = await client.responses.create(model=MODEL, input="hi")
    second = await client.responses.create(model=MODEL, input="a", previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError, match="has become too long"):
        await client.responses.create(model=MODEL, input="b", previous_response_id=second.id)
    assert (await client.responses.retrieve(second.id)).output_text == "Hello there."


async def test_payloads_that_nobody_reads_do_not_fill_a_chain(client, monkeypatch):
    monkeypatch.setattr(endpoint, "BODY_BYTES_MAX", 2000)
    picture = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 3000}
    seen = {"type": "function_call_output", "call_id": "c", "output": [picture]}
    first = await client.responses.create(
        model=MODEL, input=[seen, {"type": "compaction", "encrypted_content": "A" * 3000}]
    )
    second = await client.responses.create(model=MODEL, input="a", previous_response_id=first.id)
    assert second.output_text == "Hello there."
