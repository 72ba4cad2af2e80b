"""GET /plan: what would be best, and what another split would give."""

import asyncio
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from molink.api.cluster_routes import PLAN_FRESH_S, add_plan_route
from molink.api.errors import errors_in_shape
from molink.coordinator.planning.plan_process import answer_from_fields
from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement import Goal, Network, NodeFacts
from molink_scheduler.placement.question import PlacementQuestion

QUESTION = PlacementQuestion.of(
    ModelCost((10**8,) * 4, 100, 100),
    (NodeFacts("a", 10**9, 1e-3, 1e-5, 1e-5), NodeFacts("b", 10**9, 1e-3, 1e-5, 1e-5)),
    Network(),
    Goal(),
)


@pytest.fixture
async def client():
    asked, may_answer = [], asyncio.Event()
    may_answer.set()

    async def find(split):
        asked.append(split)
        await may_answer.wait()
        nodes = () if split is None else QUESTION.nodes
        return replace(QUESTION, nodes=nodes, split=split or "planned").answer()

    app = web.Application(middlewares=[errors_in_shape])
    now = [0.0]
    add_plan_route(app, "m", find, clock=lambda: now[0])
    async with TestClient(TestServer(app)) as one:
        one.asked, one.may_answer, one.now = asked, may_answer, now
        yield one


async def test_a_split_may_be_asked_for(client):
    async with client.get("/plan?split=even") as response:
        told = await response.json()
    (ring,) = answer_from_fields(told["plan"]).rings
    assert [stage.layers for stage in ring.stages] == [(0, 2), (2, 4)]
    assert (told["model"], client.asked) == ("m", ["even"])


async def test_what_is_missing_is_said(client):
    async with client.get("/plan") as response:
        assert "no PC lends anything" in (await response.json())["shortage"]
    assert client.asked == [None]


async def test_one_plan_is_made_at_a_time(client):
    client.may_answer.clear()
    first = asyncio.ensure_future(client.get("/plan"))
    async with asyncio.timeout(5):
        while not client.asked:  # noqa: ASYNC110 - the server takes it by itself
            await asyncio.sleep(0)
    async with client.get("/plan") as response:
        assert response.status == 503 and "Retry-After" in response.headers
        assert "Another plan is being made" in (await response.json())["error"]["message"]
    client.may_answer.set()
    async with await first as response:
        assert response.status == 200


async def test_a_plan_is_told_again_for_some_seconds(client):
    asked = []
    for at_s, split in ((0, ""), (1, ""), (1, "?split=even"), (PLAN_FRESH_S, ""), (9, "")):
        client.now[0] = at_s
        async with client.get(f"/plan{split}") as response:
            assert response.status == 200
        asked.append(len(client.asked))
    assert asked == [1, 1, 2, 3, 3]


async def test_an_unknown_split_is_refused(client):
    async with client.get("/plan?split=odd") as response:
        assert response.status == 400
        told = (await response.json())["error"]
    assert told["param"] == "split" and "planned, even" in told["message"]
    assert not client.asked


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/agents/join"), ("GET", "/weights/manifest"), ("GET", "/weights/files/x")],
)
async def test_what_is_for_agents_is_not_at_the_users_port(service, serve, http, method, path):
    async with http.request(method, f"{await serve(service)}{path}", json={}) as response:
        assert response.status == 404
