"""Every route of the APIs, by every way in: what is open to whom, and that no route has no rule."""

from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest
from aiohttp.test_utils import TestClient, TestServer

from molink.agents_api.app import ECHO_PATH, create_agents_app
from molink.api.access import Access, scope_of
from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import KeyStore
from molink.api.metrics.route import Metrics
from molink.api.openapi.routes import DOCS_PATHS
from molink.api.page.routes import PAGE_PATHS
from molink.cli.up import _start_users_api
from molink.config.setting import settings_of
from molink.config.settings import UpSettings
from tests.api.test_admin import NODE, FakeAdmin
from tests.api.test_cell import FakeCell
from tests.golden.values_api import Desk, Shelf
from tests.scripted_server import CountingService

OPEN = {("GET", path) for path in PAGE_PATHS | DOCS_PATHS | {"/health"}}

INFERENCE = {
    ("GET", "/ring"),
    ("POST", "/generate"),
    ("GET", "/generate/{id}"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/responses/{id}/cancel"),
    ("GET", "/v1/responses/{id}"),
    ("DELETE", "/v1/responses/{id}"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files"),
    ("GET", "/v1/files/{id}"),
    ("DELETE", "/v1/files/{id}"),
    ("GET", "/v1/files/{id}/content"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches"),
    ("GET", "/v1/batches/{id}"),
    ("POST", "/v1/batches/{id}/cancel"),
}

WATCH = {("GET", f"/{name}") for name in ("catalogue", "cluster", "metrics", "plan")}
WATCH |= {("GET", f"/cluster/{name}") for name in ("requests", "events", "findings")}

ORDERS = {
    ("POST", "/cluster/nodes/{id}/{order}"),
    ("POST", "/cluster/invites"),
    ("POST", "/cluster/intake"),
    ("POST", "/cluster/cache/clear"),
    ("GET", "/cell"),
    ("POST", "/cell/confirm"),
    ("POST", "/cell/forget"),
}

ROUTES = OPEN | INFERENCE | WATCH | ORDERS

UNKNOWN = {
    *((method, "/cluster/something/new") for method in ("GET", "POST", "DELETE", "PUT", "PATCH")),
    *((method, "/cluster") for method in ("POST", "DELETE")),
    ("DELETE", "/cluster/nodes/{id}"),
    ("POST", "/metrics"),
    ("POST", "/plan"),
    ("GET", "/nothing"),
}
"""What is no route yet: who may ask is told so, and nobody else anything."""

AGENTS = {
    ("POST", "/agents/join"),
    ("POST", "/agents/echo"),
    ("GET", "/agents/given"),
    ("GET", "/agents/thanks"),
    ("*", "/{path}"),
}
AGENTS |= {("GET", "/weights/manifest"), ("GET", "/weights/files/{name}")}
"""Of the port for agents, where no key of the API opens anything."""

PROXY = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https", "Via": "1.1 nginx"}

WAYS = {
    "loopback, no key made": {},
    "loopback": {"made": True},
    "proxy, host as asked": {"headers": PROXY | {"Host": "chat.example.org"}},
    "proxy, host of the upstream": {"headers": PROXY | {"Host": "127.0.0.1:8000"}},
    "proxy, keys made": {"headers": PROXY, "made": True},
    "beyond loopback": {"required": True},
    "--no-keys": {"required": True, "no_keys": True, "made": True},
    "--no-keys, through a proxy": {"no_keys": True, "made": True, "headers": PROXY},
    "inference key": {"key": "inference"},
    "watch key": {"key": "watch"},
    "admin key": {"key": "admin"},
    "admin key, through a proxy": {"key": "admin", "headers": PROXY},
}

LET_IN = {
    "loopback, no key made": INFERENCE | WATCH,
    "--no-keys": INFERENCE,
    "--no-keys, through a proxy": INFERENCE,
    "inference key": INFERENCE,
    "watch key": WATCH,
    "admin key": INFERENCE | WATCH | ORDERS,
    "admin key, through a proxy": INFERENCE | WATCH | ORDERS,
}
"""What each way opens beside OPEN; others nothing."""


async def app_of(access, folder, monkeypatch):
    """The application of `molink up`, as it is when it is served."""
    apps = []

    async def start_api(app, *arguments, **options):
        apps.append(app)
        return SimpleNamespace(cleanup=AsyncExitStack().aclose)

    async def plan(split=None):
        raise AssertionError("nobody was to be let in so far")

    monkeypatch.setattr("molink.api.start_api", start_api)
    service = CountingService()
    cluster = SimpleNamespace(service=service, live=None, admin=FakeAdmin(), cell=FakeCell())
    service.model = SimpleNamespace(name="tiny")
    registry = SimpleNamespace(setting=lambda name: None)  # There is no other coordinator.
    parts = {"cluster": cluster, "plan": plan, "catalogue": plan, "registry": registry}
    coordinator = SimpleNamespace(**parts)
    cluster.live = SimpleNamespace(freeze=lambda: None)
    settings = settings_of(UpSettings, model="demo", data_dir=folder)
    async with AsyncExitStack() as stack:
        await _start_users_api(settings, coordinator, access, Metrics(service), 0, stack)
    return apps[0]


@pytest.fixture
def keys(tmp_path):
    store, read = KeyStore.open(tmp_path), KeyStore.open(tmp_path)
    yield store, LiveKeys(read, clock=lambda: 1.0)
    read.close()
    store.close()


def routes_of(app):
    return {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.method != "HEAD"
    }


def typed(path):
    filled = {"{id}": NODE, "{order}": "drain", "{model}": "tiny", "{name}": "a", "{path}": "x"}
    for name, value in filled.items():
        path = path.replace(name, value)
    return path


def agents_port():
    """The port for agents, as `molink up` opens it."""
    nobody = {"pc_of_token": lambda token: None, "given_by": lambda pc: {}}
    return create_agents_app(Desk(), Shelf(True), **nobody, thanks_for=lambda pc, agrees: {})


async def test_every_route_has_a_rule_here(tmp_path, monkeypatch, keys):
    """Who adds a route says here what it asks for."""
    assert routes_of(await app_of(Access(keys[1]), tmp_path, monkeypatch)) == ROUTES
    for rules, scope in ((INFERENCE, "inference"), (WATCH, "watch"), (ORDERS, "admin")):
        assert {scope_of(*route) for route in rules} == {scope}
    assert {scope_of(*route) for route in UNKNOWN} == {"admin"}, "what nobody has thought of"
    agents = agents_port()
    assert routes_of(agents) == AGENTS


@pytest.mark.parametrize("name", WAYS)
async def test_what_each_way_in_opens(tmp_path, monkeypatch, keys, name):
    way, (store, live) = WAYS[name], keys
    headers = {"Content-Type": "application/json"} | way.get("headers", {})
    if way.get("made"):
        store.create(1.0)
    if scope := way.get("key"):
        headers["Authorization"] = f"Bearer {store.create(1.0, scope=scope)[1]}"
    names = frozenset({"chat.example.org"})
    access = Access(live, way.get("required", False), names, no_keys=way.get("no_keys", False))
    app = await app_of(access, tmp_path, monkeypatch)
    statuses = {}
    async with TestClient(TestServer(app)) as client:
        for method, path in sorted(ROUTES | UNKNOWN):
            data = None if method == "GET" else b"not JSON"
            answer = await client.request(method, typed(path), headers=headers, data=data)
            statuses[method, path] = answer.status
    let_in = {route for route, status in statuses.items() if status not in (401, 403)}
    opened = LET_IN.get(name, set())
    assert let_in == OPEN | opened | (UNKNOWN if opened >= INFERENCE else set())
    assert {statuses[one] for one in UNKNOWN & let_in} <= {404, 405}
    assert len(ROUTES | UNKNOWN) >= 40


@pytest.mark.parametrize("scope", ["inference", "watch", "admin"])
async def test_no_key_of_the_api_opens_the_port_for_agents(keys, scope):
    store, _ = keys
    headers = {"Authorization": f"Bearer {store.create(1.0, scope=scope)[1]}"}
    app = agents_port()
    async with TestClient(TestServer(app)) as client:
        for method, path in sorted(AGENTS - {("*", "/{path}"), ("POST", ECHO_PATH)}):
            answer = await client.request(method, typed(path), headers=headers)
            assert answer.status in (400, 401, 403), path
        for path in ("/cluster/invites", "/generate", "/cluster"):
            assert (await client.post(path, headers=headers)).status == 404
