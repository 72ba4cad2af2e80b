"""Responses in the background: they outlive their connection, and are read on by their id."""

import asyncio
import json
from dataclasses import replace

import openai
import pytest

from molink.api.openai.responses import background
from molink.serving.service import GenerationRequest
from molink.serving.timeline import RequestTimeline
from molink_scheduler.request import SamplingParams
from tests.api.test_kept import MODEL, KeepingService, live  # noqa: F401 - a fixture


@pytest.fixture
def service():
    service = KeepingService()
    service.says("Hello there.")
    return service


@pytest.fixture
async def url(service, serve, live):  # noqa: F811
    return await serve(service, live=live)


@pytest.fixture
async def client(url):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def events_of(http, url, **query):
    async with http.get(url, params={"stream": "true", **query}) as response:
        assert response.status == 200, await response.text()
        lines = (await response.text()).splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


async def begun(client, service, count, **more):
    """A stream in the background of which `count` tokens came, and its events so far."""
    service.events_before_hold = count
    stream = await client.responses.create(
        model=MODEL, input="hi", stream=True, background=True, extra_body=more
    )
    await service.holding.acquire()
    return stream, [await anext(stream) for _ in range(4 + count)]


async def test_it_goes_on_without_a_reader_and_is_read_on_behind_the_last_event(
    client, service, http, url
):
    stream, seen = await begun(client, service, 5)
    await stream.close()
    name, last = seen[0].response.id, seen[-1].sequence_number
    there = f"{url}/v1/responses/{name}"
    reading = asyncio.create_task(events_of(http, there, starting_after=last))
    await asyncio.sleep(0.05)
    service.goes_on.set()
    rest = await reading
    assert [one["sequence_number"] for one in rest] == list(range(last + 1, last + 1 + len(rest)))
    assert rest[-1]["type"] == "response.completed" and rest[-1]["molink"]["attempts"]
    text = [one.delta for one in seen if one.type == "response.output_text.delta"]
    text += [one["delta"] for one in rest if one["type"] == "response.output_text.delta"]
    assert "".join(text) == "Hello there."
    again = await events_of(http, there)
    assert again[last + 1 :][:-1] == rest[:-1], "the same from its file"
    assert (await client.responses.retrieve(name)).to_dict()["background"] is True


async def test_without_a_stream_it_is_given_as_far_as_it_is(client, service):
    service.events_before_hold = 5
    answer = await client.responses.create(model=MODEL, input="hi", background=True)
    assert answer.status == "in_progress"
    service.goes_on.set()
    async with asyncio.timeout(5):
        while (answer := await client.responses.retrieve(answer.id)).status == "in_progress":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert answer.output_text == "Hello there."


async def test_a_cancelled_one_ends_and_its_readers_are_told(client, service):
    stream, seen = await begun(client, service, 5)
    ended = await client.responses.cancel(seen[0].response.id)
    assert (ended.status, ended.output_text) == ("cancelled", "Hello")
    kinds = [event.type async for event in stream]
    assert kinds[-1] == "response.cancelled"
    await service.closed.acquire()


@pytest.mark.parametrize("linger_s", [0, 0.2])
async def test_one_that_nobody_reads_ends_after_it_has_lingered(client, service, linger_s):
    stream, seen = await begun(client, service, 5, linger_s=linger_s)
    await stream.close()
    async with asyncio.timeout(5):
        await service.closed.acquire()
    assert (await client.responses.retrieve(seen[0].response.id)).status == "cancelled"


async def test_a_reader_who_comes_back_in_time_keeps_it(client, service, http, url):
    stream, seen = await begun(client, service, 5, linger_s=0.3)
    await stream.close()
    there = f"{url}/v1/responses/{seen[0].response.id}"
    reading = asyncio.create_task(events_of(http, there))
    await asyncio.sleep(0.5)
    service.goes_on.set()
    assert (await reading)[-1]["type"] == "response.completed"


async def test_one_of_an_earlier_coordinator_is_read_as_it_grows(
    client,
    service,
    http,
    url,
    live,  # noqa: F811
    monkeypatch,
):
    """Nothing of it is known here but its file, which another goes on with."""
    monkeypatch.setattr(background, "READ_EVERY_S", 0.02)
    service.events_before_hold = 5
    stream = await client.responses.create(model=MODEL, input="hi", stream=True)
    await service.holding.acquire()
    seen = [await anext(stream) for _ in range(9)]
    reading = asyncio.create_task(events_of(http, f"{url}/v1/responses/{seen[0].response.id}"))
    await asyncio.sleep(0.1)
    assert not reading.done()
    service.goes_on.set()
    events = [*seen, *[event async for event in stream]]
    assert [one["type"] for one in await reading] == [event.type for event in events]


async def test_one_of_an_earlier_coordinator_is_cancelled_and_forgotten(
    client,
    service,
    live,  # noqa: F811
):
    asked = json.dumps({"model": MODEL, "input": "hi", "background": True})
    live.log("resp_a", "", asked, GenerationRequest((1,), SamplingParams(20))).begin()
    assert await live.find("", "resp_a") is not None
    (kept,) = live.unfinished()
    request = replace(kept, timeline=RequestTimeline(MODEL, 1, 20))
    service.events_before_hold = 5

    async def go_on():
        async for _ in service.generate(request):
            pass

    task = asyncio.create_task(go_on())
    live.going_on(request, task)
    async with asyncio.timeout(5):
        await service.holding.acquire()
    answer = await client.responses.cancel("resp_a")
    assert (answer.status, answer.output_text) == ("cancelled", "Hello")
    assert task.cancelled(), "the ring computes it no more"
    await client.responses.delete("resp_a")
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_a")


async def test_what_is_refused_has_its_status(client, service, http, url):
    service.unready_reason = "The stages are loading."
    for stream in (True, False):
        with pytest.raises(openai.InternalServerError, match="loading"):
            await client.responses.create(model=MODEL, input="hi", background=True, stream=stream)
    service.unready_reason = None
    done = await client.responses.create(model=MODEL, input="hi")
    for wrong in ("-1", "x", "1" * 10):
        there = f"{url}/v1/responses/{done.id}"
        async with http.get(there, params={"starting_after": wrong}) as response:
            assert response.status == 400
    with pytest.raises(openai.NotFoundError):
        await client.responses.cancel("resp_1")


async def test_there_are_not_more_than_there_may_be(client, service, monkeypatch):
    monkeypatch.setattr(background, "ANSWERS_MAX", 1)
    await begun(client, service, 5)
    with pytest.raises(openai.RateLimitError, match="under way in the background"):
        await client.responses.create(model=MODEL, input="hi", background=True)


async def test_an_answer_goes_on_with_the_text_before_it(client, service):
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once"}]
    await client.responses.create(
        model=MODEL, input=said, extra_body={"continue_final_message": True}
    )
    assert service.prompts[-1] == "<user>hi<assistant>Once"
