"""What another coordinator is to answer is led on to it: joins, downloads, requests for its model,
and nothing else."""

import asyncio
import gzip
import json
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from molink.agents_api.app import add_join_route
from molink.api import create_app, start_api
from molink.api.callers import CALLERS
from molink.api.errors import ApiError, errors_in_shape
from molink.control.identity import KeyPair
from molink.control.messages.joining import request_to_join
from molink.control.messages.sealing import seal
from molink.control.registry.registry import Registry
from molink.control.registry.succession import Successor, set_moved, set_successor
from molink.errors import ControlError, JoinRefusedError
from molink.succession.forwarding import forwarded, short_answer
from molink.succession.pcs import JoinsLedOn, downloads_led_on
from molink.succession.users import users_led_on
from tests.api.conftest import CARD, FakeService

NEW = replace(CARD, name="new")
ASKED = {"prompt": "hi", "max_tokens": 3}


class Servers:
    """Servers in a folder, which are ended with the stack; `port` is that of the latest."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder, self._stack = folder, stack

    async def start(self, app: web.Application) -> int:
        runner = await start_api(app, "127.0.0.1", 0, data_dir=self.folder)
        self._stack.push_async_callback(runner.cleanup)
        return runner.addresses[0][1]


@pytest.fixture
async def servers():
    """In a folder whose sockets have names that are short enough."""
    with tempfile.TemporaryDirectory(prefix="m") as folder:
        async with AsyncExitStack() as stack:
            yield Servers(Path(folder), stack)


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


async def old_and_new(servers, old, new, is_handed_over=bool):
    """URL of the old one's API, which knows of the new one's."""
    port = await servers.start(create_app(new))
    after = Successor(str(servers.folder), port, 0, new.card.names)
    app = create_app(old)
    app.middlewares.append(users_led_on(lambda: after, is_handed_over))
    return f"http://127.0.0.1:{await servers.start(app)}"


async def test_each_model_is_answered_by_its_coordinator_at_one_address(servers, http):
    old, new = FakeService(), FakeService(card=NEW)
    url = await old_and_new(servers, old, new)
    for model, asked in ((CARD.name, old), ("new", new), (None, old)):
        body = ASKED | ({"model": model} if model else {})
        before = len(asked.requests)
        async with http.post(f"{url}/v1/completions", json=body) as response:
            told = await response.json()
        assert (response.status, told["choices"][0]["text"]) == (200, "abc")
        assert len(asked.requests) == before + 1
    async with http.get(f"{url}/v1/models") as response:
        assert [one["id"] for one in (await response.json())["data"]] == [CARD.name, "new"]
    async with http.get(f"{url}/v1/models/new") as response:
        assert (await response.json())["id"] == "new"


async def test_events_come_as_they_are_written_and_who_goes_away_is_missed_there_too(servers, http):
    new = FakeService(card=NEW, events_before_hold=2)
    url = await old_and_new(servers, FakeService(), new)
    body = ASKED | {"model": "new", "stream": True, "max_tokens": 20}
    async with http.post(f"{url}/v1/completions", json=body) as response:
        async with asyncio.timeout(10):
            await new.holding.acquire()
            first = await response.content.readline()
        assert first.startswith(b"data: {") and not new.goes_on.is_set()
    async with asyncio.timeout(10):
        await new.closed.acquire()


async def test_what_neither_serves_is_refused_here(servers, http):
    new = FakeService(card=NEW)
    url = await old_and_new(servers, FakeService(), new)
    async with http.post(f"{url}/v1/completions", json=ASKED | {"model": "third"}) as response:
        told = (await response.json())["error"]
    assert response.status == 404 and CARD.name in told["message"] and not new.requests


async def test_while_the_other_is_away_its_users_come_back_later(servers, http):
    after = Successor(str(servers.folder), 1, 1, ("new",))
    app = create_app(FakeService())
    app.middlewares.append(users_led_on(lambda: after, bool))
    url = f"http://127.0.0.1:{await servers.start(app)}"
    async with http.post(f"{url}/v1/completions", json=ASKED | {"model": "new"}) as response:
        assert response.status == 503
        assert "does not answer" in (await response.json())["error"]["message"]
    async with http.get(f"{url}/v1/models") as response:
        assert [one["id"] for one in (await response.json())["data"]] == [CARD.name]


async def test_a_compressed_body_is_passed_on_as_it_is_without_that_header(servers, http):
    new = FakeService(card=NEW)
    url = await old_and_new(servers, FakeService(), new)
    body = gzip.compress(json.dumps(ASKED | {"model": "new"}).encode())
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    async with http.post(f"{url}/v1/completions", data=body, headers=headers) as response:
        assert response.status == 200 and new.requests


async def test_a_name_of_both_is_answered_here_until_all_pcs_are_there(servers, http):
    left = []
    old = FakeService()
    new = FakeService(card=replace(NEW, served_names=("new", CARD.name)))
    url = await old_and_new(servers, old, new, lambda: bool(left))
    asked = ASKED | {"model": CARD.name}
    for count in ((1, 0), (1, 1)):
        async with http.post(f"{url}/v1/completions", json=asked) as response:
            assert response.status == 200
        assert (len(old.requests), len(new.requests)) == count
        left.append("all")


async def test_a_model_of_both_is_listed_once(servers, http):
    url = await old_and_new(servers, FakeService(), FakeService(card=CARD))
    async with http.get(f"{url}/v1/models") as response:
        assert [one["id"] for one in (await response.json())["data"]] == [CARD.name]


async def test_a_body_that_is_passed_on_counts_as_held_until_it_is_answered(servers, http):
    new = FakeService(card=NEW, events_before_hold=1)
    port = await servers.start(create_app(new))
    app = create_app(FakeService())
    app.middlewares.append(
        users_led_on(lambda: Successor(str(servers.folder), port, 0, NEW.names), bool)
    )
    url = f"http://127.0.0.1:{await servers.start(app)}"
    body = ASKED | {"model": "new", "stream": True, "max_tokens": 5}
    async with asyncio.timeout(10), http.post(f"{url}/v1/completions", json=body):
        await new.holding.acquire()
        assert app[CALLERS].budget.held == len(json.dumps(body))


async def _breaks_off(request):
    response = web.StreamResponse()
    response.content_length = 100
    await response.prepare(request)
    await response.write(b"abc")
    request.transport.close()
    return response


async def test_what_breaks_off_there_breaks_off_here(servers, http):
    there, here = web.Application(), web.Application(middlewares=[errors_in_shape])
    there.add_routes([web.get("/", _breaks_off)])
    port = await servers.start(there)
    here.add_routes([web.get("/", lambda request: forwarded(request, servers.folder, port))])
    url = f"http://127.0.0.1:{await servers.start(here)}/"
    async with asyncio.timeout(10), http.get(url) as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    with pytest.raises(ApiError, match="does not answer"):
        await short_answer(servers.folder, port, "GET", "/", {})


class Says:
    """Joins that are answered with one word, or refused."""

    def __init__(self, word, error=None):
        self.word, self.error = word, error

    async def join(self, sealed):
        if self.error is not None:
            raise self.error
        return self.word


async def agents_app(joins):
    app = web.Application(middlewares=[errors_in_shape])
    add_join_route(app, joins)
    app.add_routes([web.get("/weights/manifest", lambda request: _who(request))])
    return app


async def _who(request):
    return web.json_response({"asked": request.headers["Authorization"]})


@pytest.fixture
def registry(tmp_path):
    opened = Registry.open(tmp_path)
    opened.url = "https://127.0.0.1:8003"
    yield opened
    opened.close()


def admitted(registry, pair):
    invite = registry.make_invite(60.0, 1, "", 0.0)
    asked = request_to_join(invite, f"pc{pair.node_id[:4]}", "1", 0.0)
    return registry.admit(pair.public, asked, 0.0).node


def sealed(registry, pair):
    return seal(request_to_join(None, "pc", "1", 0.0), pair, registry.coordinator.public)


async def test_joins_of_moved_pcs_are_answered_by_the_other(servers, registry):
    moved, stays = KeyPair.generate(), KeyPair.generate()
    pc, _ = admitted(registry, moved), admitted(registry, stays)
    port = await servers.start(await agents_app(Says(b"there")))
    set_successor(registry, Successor(str(servers.folder), 1, port, ("new",)))
    joins = JoinsLedOn(Says(b"here"), registry)
    assert await joins.join(sealed(registry, moved)) == b"here"
    set_moved(registry, [pc.pc])
    assert await joins.join(sealed(registry, moved)) == b"there"
    assert await joins.join(sealed(registry, stays)) == b"here"


@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [
        (JoinRefusedError("This PC was removed."), JoinRefusedError, "was removed"),
        (ControlError("It has said far too much."), ControlError, "is away"),
    ],
)
async def test_what_the_other_refuses_is_refused(servers, registry, error, raised, says):
    pair = KeyPair.generate()
    set_moved(registry, [admitted(registry, pair).pc])
    port = await servers.start(await agents_app(Says(b"", error)))
    set_successor(registry, Successor(str(servers.folder), 1, port, ("new",)))
    with pytest.raises(raised, match=says):
        await JoinsLedOn(Says(b"here"), registry).join(sealed(registry, pair))


async def test_downloads_of_moved_pcs_come_from_the_other(servers, registry, http):
    nodes = [admitted(registry, KeyPair.generate()) for _ in range(2)]
    port = await servers.start(await agents_app(Says(b"")))
    set_successor(registry, Successor(str(servers.folder), 1, port, ("new",)))
    set_moved(registry, [nodes[0].pc])
    here = web.Application(middlewares=[downloads_led_on(registry)])
    here.add_routes([web.get("/weights/manifest", lambda request: _here())])
    url = f"http://127.0.0.1:{await servers.start(here)}/weights/manifest"
    told = []
    for token in (*(node.weights_token for node in nodes), "of-a-device-that-joined-there"):
        bearer = f"Bearer {token}"
        async with http.get(url, headers={"Authorization": bearer}) as response:
            told.append(json.loads(await response.read()) == {"asked": bearer})
    assert told == [True, False, True]


async def _here():
    return web.json_response({"asked": "here"})
