"""A client that goes away takes its sequences with it."""

import asyncio
import json
import logging

import pytest
from aiohttp import ClientPayloadError, web
from aiohttp.test_utils import TestServer

from molink.api.errors import errors_in_shape

N = 3
REQUESTS = [
    ("/generate", {"prompt": "x"}, 1),
    ("/v1/completions", {"prompt": "x", "n": N}, N),
    ("/v1/completions", {"prompt": ["x", "y"]}, 2),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": N}, N),
    ("/v1/responses", {"input": "x"}, 1),
    ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 20}, 1),
]
LIMIT_S = 20
"""Only a hung test reaches this."""


async def post_by_hand(url, path, body):
    """Send a request and give the open connection."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    raw = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw)}\r\n\r\n"
    )
    writer.write(head.encode() + raw)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("events", [0, 2])
@pytest.mark.parametrize(("path", "body", "sequences"), REQUESTS)
async def test_disconnect_closes_every_sequence(
    service, serve, path, body, sequences, events, stream
):
    service.events_before_hold = events
    url = await serve(service)
    _, writer = await post_by_hand(url, path, body | {"stream": stream})
    async with asyncio.timeout(LIMIT_S):
        for _ in range(sequences):
            await service.holding.acquire()
        assert service.closed.locked(), "nothing is closed while the client waits"
        writer.close()
        for _ in range(sequences):
            await service.closed.acquire()


async def test_disconnect_of_one_leaves_the_others(service, serve, http):
    service.events_before_hold = 1
    url = await serve(service)
    async with http.post(f"{url}/generate", json={"prompt": "x", "stream": True}) as response:
        await response.content.readline()
        _, writer = await post_by_hand(url, "/generate", {"prompt": "y"})
        async with asyncio.timeout(LIMIT_S):
            await service.holding.acquire()
            await service.holding.acquire()
            writer.close()
            await service.closed.acquire()
        assert service.closed.locked(), "the first request goes on"


async def test_shutting_down_closes_open_answers(service, serve, http):
    from molink.api import create_app, start_api

    service.events_before_hold = 1
    runner = await start_api(create_app(service), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    _, writer = await post_by_hand(url, "/generate", {"prompt": "x", "stream": True})
    async with asyncio.timeout(LIMIT_S):
        await service.holding.acquire()
        await runner.cleanup()
        await service.closed.acquire()
    assert service.closed.locked(), "the one that was open"
    writer.close()


async def test_who_leaves_during_an_answer_is_no_fault_in_the_log(http, caplog):
    """It leaves between two pieces, before the loop has told the handler."""
    left = asyncio.Event()

    async def handle(request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        request.transport.close()
        left.set()
        await answer.write(b"for nobody")

    app = web.Application(middlewares=[errors_in_shape])
    app.router.add_get("/", handle)
    async with TestServer(app) as server, http.get(server.make_url("/")) as answer:
        await left.wait()
        with pytest.raises(ClientPayloadError):
            await answer.read()
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
