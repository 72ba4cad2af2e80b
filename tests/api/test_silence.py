"""A stream that has nothing to say yet: headers at once, and what clients pass over in between."""

import asyncio
import json

import anthropic
import openai
import pytest
from aiohttp import web

from molink.api import answers
from molink.api.server import start_api
from molink.errors import RingError
from tests.api.scripted import ScriptedService
from tests.api.test_disconnect import post_by_hand

WITHIN_S = 20
"""Only a hung test reaches this."""

CHAT = [{"role": "user", "content": "x"}]
COMMENT, PING = b": waiting", b'data: {"type": "ping"}'
STREAMS = [
    ("/generate", {"prompt": "x"}, COMMENT),
    ("/v1/completions", {"prompt": "x", "n": 2}, COMMENT),
    ("/v1/chat/completions", {"messages": CHAT}, COMMENT),
    ("/v1/responses", {"input": "x"}, COMMENT),
    ("/v1/messages", {"messages": CHAT, "max_tokens": 20}, PING),
]


@pytest.fixture
def scripted():
    return ScriptedService()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Time as short as it can be: what is tested is the order of things."""
    monkeypatch.setattr(answers, "OPENS_AFTER_S", 0.0)
    monkeypatch.setattr(answers, "SILENCE_S", 0.005)


@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr(answers, "OPENS_AFTER_S", 10.0 * WITHIN_S)


async def lines_until(reader, wanted, count=1):
    """All lines until `wanted` has come so often."""
    lines = []
    async with asyncio.timeout(WITHIN_S):
        while lines.count(wanted) < count:
            line = await reader.readline()
            assert line, f"the stream ended: {lines}"
            lines.append(line.strip())
    return lines


@pytest.mark.parametrize(("path", "body", "kept_alive"), STREAMS)
async def test_a_stream_speaks_before_and_between_its_events(
    scripted, serve, path, body, kept_alive
):
    for events in (0, 3):
        scripted.events_before_hold = events
        url = await serve(scripted)
        reader, writer = await post_by_hand(url, path, body | {"stream": True})
        lines = await lines_until(reader, kept_alive, 3)
        assert lines[0] == b"HTTP/1.1 200 OK"
        if kept_alive is PING:
            assert lines.count(b"event: ping") == 3
        writer.close()
        async with asyncio.timeout(WITHIN_S):
            await scripted.closed.acquire()


@pytest.mark.parametrize(("path", "body", "kept_alive"), STREAMS)
async def test_a_failure_after_a_silence_is_an_event(scripted, serve, path, body, kept_alive):
    lost = asyncio.Event()

    async def fail(position):
        await lost.wait()
        raise RingError("Stage 2 was lost: try again.")

    scripted._before_event = fail
    reader, writer = await post_by_hand(await serve(scripted), path, body | {"stream": True})
    await lines_until(reader, kept_alive)
    lost.set()
    async with asyncio.timeout(WITHIN_S):
        rest = (await reader.readuntil(b"0\r\n\r\n")).decode()
    assert "Stage 2 was lost" in rest and "[DONE]" not in rest
    writer.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("path", "body", "_"), STREAMS)
async def test_what_is_refused_at_once_has_its_status(scripted, serve, http, path, body, _):
    scripted.failure = RingError("Stage 2 was lost: try again.")
    async with http.post(f"{await serve(scripted)}{path}", json=body | {"stream": True}) as answer:
        assert answer.status == 503
        assert "Stage 2" in await answer.text()


@pytest.mark.parametrize(("path", "body", "_"), STREAMS)
async def test_who_is_not_taken_yet_has_no_headers(scripted, serve, path, body, _):
    """A newcomer waits for a ring that is built anew, and may still be refused."""
    waits, refused = asyncio.Event(), asyncio.Event()

    async def until_taken():
        waits.set()
        await refused.wait()
        raise RingError("No ring came.")

    scripted.until_taken = until_taken
    reader, writer = await post_by_hand(await serve(scripted), path, body | {"stream": True})
    async with asyncio.timeout(WITHIN_S):
        await waits.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        refused.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
    writer.close()


async def test_an_old_proxy_gets_no_chunks(scripted, serve):
    """nginx asks in HTTP/1.0 unless it is told otherwise: the connection's end is the body's."""
    scripted.events_before_hold = 2
    body = json.dumps({"prompt": "x", "stream": True}).encode()
    url = await serve(scripted)
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = "POST /generate HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    lines = await lines_until(reader, COMMENT)
    writer.close()
    head, rest = lines[: lines.index(b"")], lines[lines.index(b"") + 1 :]
    assert not [line for line in head if line.lower().startswith(b"transfer-encoding")]
    assert all(not line or line.startswith((b"data: {", b":")) for line in rest)


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/messages", "/nothing", "/"])
async def test_who_asks_for_headers_gets_no_body(service, serve, method, path):
    """On one connection, so that a body would be taken for the next answer."""
    url = await serve(service)
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    get = f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n{get}".encode())
    async with asyncio.timeout(WITHIN_S):
        said = await reader.read()
    first, second = said.split(b"\r\n\r\n", 1)
    assert first.startswith(b"HTTP/1.1 ") and second.startswith(b"HTTP/1.1 200 OK")
    writer.close()


async def test_official_clients_pass_over_it(scripted, serve):
    """With a pause before each character that is longer than a silence may be."""
    beats = asyncio.Semaphore(0)
    write = answers.EventStream._write

    async def watched(stream, encoded):
        await write(stream, encoded)
        if encoded in (answers.COMMENT, answers.PING):
            beats.release()

    async def wait(position):
        await beats.acquire()

    answers.EventStream._write = watched
    scripted._before_event = wait
    scripted.says("Hello.")
    url = await serve(scripted)
    try:
        async with (
            asyncio.timeout(WITHIN_S),
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        ):
            chunks = await client.chat.completions.create(model=None, messages=CHAT, stream=True)
            said = "".join([one.choices[0].delta.content or "" async for one in chunks])
            events = await client.responses.create(input="x", stream=True)
            typed = "".join([one.delta async for one in events if hasattr(one, "delta")])
        async with (
            asyncio.timeout(WITHIN_S),
            anthropic.AsyncAnthropic(base_url=url, api_key="none") as client,
        ):
            asked = {"model": "tiny/model", "max_tokens": 20, "messages": CHAT}
            async with client.messages.stream(**asked) as stream:
                message = await stream.get_final_text()
    finally:
        answers.EventStream._write = write
    assert said == typed == message == "Hello."


async def test_no_event_goes_before_the_headers_that_are_being_sent(http):
    """What opens a stream may still be sending its headers when the first event comes."""
    opening, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request, response):
        opening.set()
        await go_on.wait()

    async def answer(request):
        async with answers.EventStream(request) as stream:
            stream.taken()
            await opening.wait()
            sending = asyncio.create_task(stream.send({"a": 1}))
            await asyncio.sleep(0)
            go_on.set()
            await sending
        return stream.response

    app = web.Application()
    app.router.add_get("/", answer)
    app.on_response_prepare.append(slow)
    runner = await start_api(app, "127.0.0.1", 0)
    try:
        async with http.get(f"http://127.0.0.1:{runner.addresses[0][1]}/") as response:
            text = await response.text()
    finally:
        await runner.cleanup()
    assert text == 'data: {"a":1}\n\ndata: [DONE]\n\n'
