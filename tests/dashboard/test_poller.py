"""A poller and orders against a server that answers from a script."""

from dataclasses import dataclass, field

import pytest
from aiohttp import web

from molink.client import api_client
from molink.client.api_client import ApiClient
from molink.dashboard.actions import Actions
from molink.dashboard.poller import Poller
from molink.errors import UserError
from tests.dashboard.scenes import cluster, event, timeline


@dataclass
class Server:
    """Answers by path; a number is a status."""

    answers: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)

    async def answer(self, request):
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.method, request.path_qs, body))
        answer = self.answers.get(request.path, 404)
        if isinstance(answer, int):
            return web.json_response({"error": {"message": f"no\x1b[2J {answer}"}}, status=answer)
        if isinstance(answer, str):
            return web.Response(text=answer, content_type="text/html")
        return web.json_response(answer)


@pytest.fixture
async def server():
    one, app = Server(), web.Application()
    app.router.add_route("*", "/{path:.*}", one.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    one.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield one
    await runner.cleanup()


@pytest.fixture
async def client(server):
    async with ApiClient(server.url, "k") as one:
        yield one


async def test_one_look_takes_all_three(server, client):
    server.answers = {
        "/cluster": cluster(),
        "/cluster/requests": {"requests": [timeline(1)]},
        "/cluster/events": {"events": [event(4), event(9)], "next": 10},
    }
    poller = Poller(client, lambda: 5.0)
    seen = await poller.first()
    assert (seen.at_s, len(seen.requests), len(seen.events), seen.trouble) == (5.0, 1, 2, "")
    await poller.look()
    assert server.asked[2][1] == "/cluster/events?after=0"
    assert server.asked[-1][1] == "/cluster/events?after=10"


async def test_lists_that_a_server_lacks_are_asked_for_once(server, client):
    server.answers = {"/cluster": cluster()}
    poller = Poller(client)
    assert (await poller.first()).requests is None
    seen = await poller.look()
    assert (seen.requests, seen.events, seen.trouble) == (None, None, "")
    assert [path for _, path, _ in server.asked].count("/cluster/requests") == 1


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_a_refusal_is_the_servers_sentence(server, client, status):
    server.answers = {"/cluster": status}
    poller = Poller(client)
    with pytest.raises(UserError, match=f"{status}"):
        await poller.first()
    assert (await poller.look()).trouble == f"no\ufffd[2J {status}"


@pytest.mark.parametrize("answer", ["<html>a printer</html>", [], {"stages": 5}, "{", "[" * 90_000])
async def test_what_is_no_molink_server_is_told(server, client, answer):
    server.answers = {"/cluster": answer}
    with pytest.raises(UserError, match=r"is no MoLink server|is not MoLink's"):
        await Poller(client).first()


async def test_an_answer_without_end_is_not_held(server, client, monkeypatch):
    monkeypatch.setattr(api_client, "ANSWER_BYTES_MAX", 10_000)
    server.answers = {"/cluster": "x" * 100_000}
    with pytest.raises(UserError, match="not MoLink's"):
        await Poller(client).first()


async def test_a_coordinator_that_is_gone_is_trouble_until_it_is_back(server):
    async with ApiClient("http://127.0.0.1:9", None) as nobody:
        trouble = (await Poller(nobody).look()).trouble
    assert trouble.startswith("No answer from the coordinator: cannot reach")


async def test_looks_go_on_after_trouble(server, client):
    server.answers = {"/cluster": 500}
    looks = Poller(client).looks(period_s=0.05)
    assert (await anext(looks)).trouble
    server.answers = {"/cluster": cluster()}
    assert not (await anext(looks)).trouble
    await looks.aclose()


async def test_after_trouble_all_events_are_asked_for_as_the_coordinator_may_be_another(
    server, client
):
    events = {"/cluster/events": {"events": [event(9)], "next": 10}}
    server.answers = {"/cluster": cluster(), **events}
    poller = Poller(client)
    await poller.first()
    server.answers = {}
    assert (await poller.look()).trouble
    server.answers = {"/cluster": cluster(), **events}
    assert len((await poller.look()).events) == 1
    assert server.asked[-1][1] == "/cluster/events?after=0"


async def test_orders_are_posts(server, client):
    node = "a" * 16
    server.answers = {
        f"/cluster/nodes/{node}/drain": {"name": "anna\x07"},
        f"/cluster/nodes/{node}/resume": {"name": "anna"},
        f"/cluster/nodes/{node}/remove": {"name": "anna", "invite": "i7", "invite_usable": True},
        "/cluster/invites": {"command": "molink agent join molink1-x", "uses": 5},
        "/cluster/intake": {"paused": True},
    }
    actions = Actions(client)
    assert await actions.drain(node) == "anna\ufffd drains."
    assert await actions.resume(node) == "anna may serve again."
    assert "molink invite revoke i7 prevents that" in await actions.remove(node)
    made = await actions.invite()
    assert (made.command, made.uses) == ("molink agent join molink1-x", 5)
    assert await actions.pause_intake(True) == "New requests are refused."
    assert server.asked[-1] == ("POST", "/cluster/intake", {"paused": True})


async def test_an_order_that_is_refused_raises_the_sentence(server, client):
    server.answers = {"/cluster/intake": 403}
    with pytest.raises(UserError, match="403"):
        await Actions(client).pause_intake(True)


async def test_an_id_cannot_lead_elsewhere(server, client):
    with pytest.raises(UserError):
        await Actions(client).drain("../../v1/x?y")
    assert server.asked[-1][1] == "/cluster/nodes/..%2F..%2Fv1%2Fx%3Fy/drain"


async def test_an_ended_request_is_news_once(server, client):
    ended = timeline(2, state="ended")
    server.answers = {
        "/cluster": cluster(),
        "/cluster/requests": {"requests": [timeline(1), ended]},
    }
    poller = Poller(client)
    assert len((await poller.first()).requests) == 2
    assert [one["state"] for one in (await poller.look()).requests] == ["decode"]
