"""How much of a request is read, how long the server waits for it, and who waits for whom."""

import asyncio
import json
import threading
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from molink.agents_api.app import add_join_route
from molink.api import create_app, start_api
from molink.api.answers import EventStream
from molink.api.body import BODY_BYTES_MAX, DEPTH_MAX, body_pieces, parse_json_object
from molink.api.callers import (
    BODIES_BYTES_MAX,
    BODIES_PART,
    CALLERS,
    SEQUENCES_MAX,
    BodyBudget,
    Caller,
    Callers,
)
from molink.api.errors import ApiError, errors_in_shape
from molink.api.keys.store import ApiKey
from molink.control.messages.sealing import SEALED_BYTES_MAX
from molink.coordinator.ring.client import REQUESTS_MAX
from tests.api.scripted import ScriptedService, card

JSON = {"Content-Type": "application/json"}


async def test_a_prompt_of_128k_tokens_fits(service, serve, http):
    ids = json.dumps({"prompt_token_ids": [99_999] * 131_072, "max_tokens": 1})
    assert len(ids) < BODY_BYTES_MAX
    async with http.post(f"{await serve(service)}/generate", data=ids, headers=JSON) as response:
        told = (await response.json())["error"]
    assert (response.status, told["param"]) == (400, "prompt_token_ids")


async def test_an_agents_megabyte_of_tools_and_400_turns_are_let_through(serve, http):
    service = ScriptedService(card=replace(card(), model_len_max=10**8))
    fields = {f"field_{one}": {"type": "string", "description": "d" * 160} for one in range(8)}
    parameters = {"type": "object", "properties": fields, "required": ["field_1"]}
    tools = [
        {"type": "function", "function": {"name": f"t{one}", "parameters": parameters}}
        for one in range(1000)
    ]
    turns = [{"role": role, "content": "w" * 5000} for role in ("user", "assistant") * 200]
    body = json.dumps({"messages": [*turns, {"role": "user", "content": "?"}], "tools": tools})
    assert len(body) > 3 * 2**20 and BODY_BYTES_MAX * BODIES_PART <= BODIES_BYTES_MAX
    url = f"{await serve(service)}/v1/chat/completions"
    async with http.post(url, data=body, headers=JSON) as response:
        assert response.status == 200, await response.text()


async def test_what_is_announced_too_long_is_not_waited_for(service, serve):
    """The refusal comes though not one byte of the body does."""
    host, port = (await serve(service)).removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {BODY_BYTES_MAX + 1}\r\n\r\n".encode()
    )
    assert b" 413 " in await reader.readline()
    writer.close()


async def test_what_is_not_announced_is_counted(service, serve, http):
    async def endless():
        while True:
            yield b" " * 2**16

    url = await serve(service)
    async with http.post(f"{url}/generate", data=endless(), headers=JSON) as response:
        assert response.status == 413


@pytest.mark.parametrize(
    "body",
    [
        '{"prompt": [' + "[]," * 100_000 + "[]]}",
        '{"prompt": "\\\\", "a": [' + "{}," * 100_000 + "{}]}",
        "[" * 100_000,
    ],
    ids=["lists", "objects", "depth"],
)
def test_too_many_lists_are_not_made(body, monkeypatch):
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(ApiError, match="too many lists and objects"):
        parse_json_object(body.encode())


@pytest.mark.parametrize("kind", [("[", "]"), ('{"a":', "}")], ids=["lists", "objects"])
async def test_what_is_nested_too_deeply_is_refused_at_once(kind, service, serve, http):
    """Even where Python could parse it: the answer would hold it once more."""
    url = await serve(service)
    for depth, status in [(DEPTH_MAX - 3, 200), (DEPTH_MAX - 2, 400), (900, 400)]:
        tool = '{"type": "function", "name": "f", "a": %s}' % (
            kind[0] * depth + "1" + kind[1] * depth
        )
        body = f'{{"input": "hi", "stream": true, "tools": [{tool}], "tool_choice": "none"}}'
        async with http.post(f"{url}/v1/responses", data=body, headers=JSON) as response:
            assert response.status == status, depth
            assert ("within one another" in await response.text()) == (status == 400)


async def test_a_stream_does_not_begin_with_what_cannot_be_written():
    stream = EventStream(make_mocked_request("POST", "/generate"))
    with pytest.raises(TypeError):
        async with stream:
            await stream.send({"text": object()})
    assert not stream.response.prepared


@pytest.mark.parametrize("text", ["[" * 200_000, "{[" * 90_000 + '"\\', '\\"[{' * 60_000])
def test_brackets_in_a_text_are_no_lists(text):
    assert parse_json_object(json.dumps({"prompt": text}).encode()) == {"prompt": text}


@pytest.fixture
async def reading():
    """A server that reads a body of 100 bytes at most, and has little patience."""

    async def read(request):
        return web.Response(
            body=b"".join([piece async for piece in body_pieces(request, 100, within_s=0.01)])
        )

    app = web.Application(middlewares=[errors_in_shape])
    app.router.add_post("/", read)
    runner = await start_api(app, "127.0.0.1", 0)
    yield runner.addresses[0][1]
    await runner.cleanup()


async def test_a_body_that_does_not_come_is_not_waited_for(reading):
    reader, writer = await asyncio.open_connection("127.0.0.1", reading)
    writer.write(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 20\r\n\r\nhalf")
    assert b" 408 " in await reader.readline()
    writer.close()


async def test_a_long_body_is_parsed_beside_the_loop(service, serve, http, monkeypatch):
    parsed_in = []
    loads = json.loads

    def watched(*arguments, **options):
        parsed_in.append(threading.current_thread().name)
        return loads(*arguments, **options)

    url = await serve(service)
    monkeypatch.setattr(json, "loads", watched)
    for chars in (10, 100_000):
        body = json.dumps({"prompt": "x" * chars})
        async with http.post(f"{url}/generate", data=body, headers=JSON):
            pass
    assert parsed_in[0] == "MainThread" and parsed_in[1].startswith("api-worker")


async def test_bodies_under_way_are_bounded_together_and_given_back(service, serve_app, http):
    url, app = serve_app
    budget = app[CALLERS].budget = BodyBudget(bytes_max=400)
    body = json.dumps({"prompt": "x" * 90})
    async with http.post(f"{url}/generate", data=body, headers=JSON) as response:
        assert response.status == 429
        assert (await response.json())["error"]["code"] == "bodies_too_large"
    assert budget.held == 0
    async with http.post(f"{url}/generate", json={"prompt": "x"}) as response:
        assert response.status == 200
    assert budget.held == 0


@pytest.fixture
async def serve_app(service):
    app = create_app(service)
    runner = await start_api(app, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", app
    await runner.cleanup()


def test_one_caller_leaves_room_for_the_others():
    budget = BodyBudget(bytes_max=80)
    callers = [Caller(str(number)) for number in range(BODIES_PART + 1)]
    for caller in callers[:BODIES_PART]:
        budget.take(caller, 20)
    with pytest.raises(ApiError) as own:
        budget.take(callers[0], 1)
    with pytest.raises(ApiError) as others:
        budget.take(callers[-1], 1)
    assert (own.value.status, others.value.status) == (429, 503)
    budget.give_back(callers[0], 20)
    budget.take(callers[-1], 20)


def test_nobody_who_has_gone_is_remembered():
    callers = Callers()
    first = callers.find("192.0.2.1")
    assert callers.find("192.0.2.1") is first
    key = ApiKey("192", "", False, None, 0.0, None, None)
    assert callers.find("192.0.2.1", key) is not first
    first.sequences = 7
    del first
    assert callers.find("192.0.2.1").sequences == 0


async def test_one_caller_cannot_take_every_place(service, serve_app, http):
    """A quarter of a ring's places, which one request may fill."""
    assert SEQUENCES_MAX * 4 <= REQUESTS_MAX
    url, app = serve_app
    everything = {"prompt": ["x"] * 64, "n": 16, "max_tokens": 1}
    async with http.post(f"{url}/v1/completions", json=everything) as response:
        assert response.status == 200
    me = app[CALLERS].find("127.0.0.1")
    with me.generating(1):
        async with http.post(f"{url}/v1/completions", json=everything) as response:
            assert (response.status, "Retry-After" in response.headers) == (429, True)
            assert (await response.json())["error"]["code"] == "too_many_sequences"
        async with http.post(f"{url}/v1/completions", json={"prompt": "x"}) as response:
            assert response.status == 200
    assert me.sequences == 0


class Desk:
    async def join(self, body: bytes) -> bytes:
        return b"%d" % len(body)


async def test_a_request_to_join_is_short(service, serve_app, http):
    url, app = serve_app
    for size, status in ((SEALED_BYTES_MAX, 200), (SEALED_BYTES_MAX + 1, 413)):
        app = web.Application(middlewares=[errors_in_shape])
        add_join_route(app, Desk())
        runner = await start_api(app, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/agents/join"
        async with http.post(url, data=b"x" * size) as response:
            assert response.status == status
        await runner.cleanup()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\xef\xbb\xbf" + '{"a": "\u00fc"}'.encode(), None),
        (b'\r\n\t{"a": "\xc3\xbc"}\r\n', None),
        ('{"a": "\u00fc"}'.encode("utf-16"), "it is UTF-16, not UTF-8"),
        ('{"a": "\u00fc"}'.encode("utf-16-le"), "it is UTF-16, not UTF-8"),
        ('{"a": "\u00fc"}'.encode("latin-1"), "it is Latin-1 or alike, not UTF-8"),
        (b'{"a": ' + b"1" * 5000 + b"}", "a number in it is too long"),
    ],
)
def test_bodies_that_windows_wrote(raw, said):
    if said is None:
        assert parse_json_object(raw) == {"a": "\u00fc"}
    else:
        with pytest.raises(ApiError, match=said):
            parse_json_object(raw)
