"""An operator's orders over HTTP: what is asked, what is refused, and by whose leave."""

import time
from contextlib import closing
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from molink.api.access import Access
from molink.api.admin import add_admin_routes
from molink.api.app import create_app
from molink.api.keys.live_keys import run_live_keys
from molink.api.keys.store import KeyStore
from molink.control.registry.rules import check_wishes
from molink.coordinator.admin import UnknownNodeError
from molink.errors import ControlError, UserError
from molink.report.orders import CachesCleared, IntakeChanged, InviteMade, NodeOrdered
from tests.api.conftest import FakeService

NODE = "a" * 16


@dataclass
class FakeAdmin:
    """Notes what was ordered by whom; may fail."""

    given: list = field(default_factory=list)
    failure: Exception | None = None

    async def _note(self, *order):
        if self.failure is not None:
            raise self.failure
        self.given.append(order)

    async def drain(self, node_id, by):
        await self._note("drain", node_id, by)
        return NodeOrdered(node_id, "anna", "drain")

    async def resume(self, node_id, by):
        await self._note("resume", node_id, by)
        return NodeOrdered(node_id, "anna", "resume")

    async def remove(self, node_id, by):
        await self._note("remove", node_id, by)
        return NodeOrdered(node_id, "anna", devices=1, invite="i7", invite_usable=True)

    async def invite(self, expires_s, uses, name, by):
        check_wishes(expires_s, uses, name)
        await self._note("invite", expires_s, uses, name, by)
        return InviteMade("i7", "molink agent join molink1-x", uses, 1e9 + expires_s)

    def pause_intake(self, paused, by):
        self.given.append(("intake", paused, by))
        return IntakeChanged(paused)

    def clear_caches(self, by):
        self.given.append(("clear", by))
        return CachesCleared(2)


@pytest.fixture
def admin():
    return FakeAdmin()


@pytest.fixture
async def client(admin, tmp_path):
    """It sends an admin key with each request."""
    with closing(KeyStore.open(tmp_path)) as store:
        made, secret = store.create(time.time(), scope="admin")
    async with run_live_keys(tmp_path) as keys:
        app = create_app(FakeService(), Access(keys))
        add_admin_routes(app, admin)
        headers = {"Authorization": f"Bearer {secret}"}
        async with TestClient(TestServer(app), headers=headers) as one:
            one.key_id = made.key_id
            yield one


async def post(client, path, body=None, **more):
    headers = {"Content-Type": "application/json"} | more.pop("headers", {})
    data = None if body is None else body if isinstance(body, str) else web.json_response(body).text
    async with client.post(path, data=data, headers=headers, **more) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("order", ["drain", "resume", "remove"])
async def test_orders_about_a_node(client, admin, order):
    status, told = await post(client, f"/cluster/nodes/{NODE}/{order}")
    removed = {"devices": 1, "invite": "i7", "invite_usable": True}
    ending = removed if order == "remove" else {"state": order}
    assert (status, told) == (200, {"id": NODE, "name": "anna", **ending})
    assert admin.given == [(order, NODE, client.key_id)]


async def test_another_order_is_not_there(client):
    assert (await post(client, f"/cluster/nodes/{NODE}/melt"))[0] == 404


async def test_an_invite_has_the_usual_wishes_or_others(client, admin):
    await post(client, "/cluster/invites")
    await post(client, "/cluster/invites", {"expires_s": 60, "uses": 1, "name": "x"})
    assert [order[1:4] for order in admin.given] == [(86400.0, 5, ""), (60.0, 1, "x")]


async def test_more_seconds_than_a_float_holds_are_refused_like_others_out_of_range(client, admin):
    status, told = await post(client, "/cluster/invites", f'{{"expires_s": 1{"0" * 400}}}')
    assert (status, admin.given) == (400, []) and "at most a year" in told["error"]["message"]


async def test_the_intake(client, admin):
    assert await post(client, "/cluster/intake", {"paused": True}) == (200, {"paused": True})
    assert admin.given == [("intake", True, client.key_id)]


async def test_the_caches(client, admin):
    assert await post(client, "/cluster/cache/clear") == (200, {"rings": 2})
    assert admin.given == [("clear", client.key_id)]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/cluster/cache/clear", {"ring": 1}, "ring"),
        ("/cluster/cache/clear", "[]", None),
        ("/cluster/intake", {}, "paused"),
        ("/cluster/intake", {"paused": 1}, "paused"),
        ("/cluster/intake", {"paused": True, "why": ""}, "why"),
        ("/cluster/invites", {"uses": True}, "uses"),
        ("/cluster/invites", {"uses": 1.5}, "uses"),
        ("/cluster/invites", {"expires_s": "1h"}, "expires_s"),
        (f"/cluster/nodes/{NODE}/drain", {"force": True}, "force"),
        ("/cluster/intake", "[]", None),
        ("/cluster/intake", "{", None),
        ("/cluster/intake", '{"paused": NaN}', None),
    ],
)
async def test_bad_bodies_are_refused_and_nothing_is_done(client, admin, path, body, param):
    status, told = await post(client, path, body)
    assert (status, told["error"]["param"], admin.given) == (400, param, [])


async def test_a_long_body_is_refused(client):
    assert (await post(client, "/cluster/intake", '{"paused": true}' + " " * 5000))[0] == 413


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (UnknownNodeError("No such node."), 404),
        (UserError("An invite has 1 to 1000 uses."), 400),
        (ControlError("The disk is full."), 503),
    ],
)
async def test_failures_are_sentences(client, admin, failure, status):
    admin.failure = failure
    found, told = await post(client, f"/cluster/nodes/{NODE}/remove")
    assert (found, told["error"]["message"]) == (status, str(failure))


async def test_a_web_page_cannot_give_orders(client, admin):
    path = "/cluster/intake"
    page = {"Origin": "http://evil.example", "Authorization": ""}
    assert (await post(client, path, {"paused": True}, headers=page))[0] == 401
    plain = {"Content-Type": "text/plain"}
    assert (await post(client, path, {"paused": True}, headers=plain))[0] == 415
    assert not admin.given


async def test_only_an_admin_key_opens_them(tmp_path, admin):
    with closing(KeyStore.open(tmp_path)) as store:
        _, user = store.create(time.time(), name="user")
        made, boss = store.create(time.time(), name="boss", scope="admin")
    async with run_live_keys(tmp_path) as keys:
        app = create_app(FakeService(), Access(keys, required=True))
        add_admin_routes(app, admin)
        async with TestClient(TestServer(app)) as client:
            for secret, status in ((None, 401), (user, 403), (boss, 200)):
                headers = {"Authorization": f"Bearer {secret}"} if secret else {}
                found, told = await post(
                    client, "/cluster/intake", {"paused": True}, headers=headers
                )
                assert found == status
                assert found == 200 or "--scope admin" in told["error"]["message"]
    assert admin.given == [("intake", True, made.key_id)]
