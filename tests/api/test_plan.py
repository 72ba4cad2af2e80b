"""GET /plan: what would be best, and what another split would give."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from molink.api.errors import errors_in_openai_shape
from molink.api.plan import add_plan_route
from molink_scheduler.placement import Goal, ModelCost, Network, NodeFacts
from molink_scheduler.placement.fields import PlacementQuestion, plan_from_fields

QUESTION = PlacementQuestion(
    ModelCost((10**8,) * 4, 100, 100),
    (NodeFacts("a", 10**9, 1e-3, 1e-5, 1e-5), NodeFacts("b", 10**9, 1e-3, 1e-5, 1e-5)),
    Network(),
    Goal(),
)


@pytest.fixture
async def client():
    asked = []

    async def find(split):
        asked.append(split)
        nodes = () if split is None else QUESTION.nodes
        question = PlacementQuestion(
            QUESTION.model, nodes, QUESTION.network, QUESTION.goal, split or "planned"
        )
        return question.answer()

    app = web.Application(middlewares=[errors_in_openai_shape])
    add_plan_route(app, "m", find)
    async with TestClient(TestServer(app)) as one:
        one.asked = asked
        yield one


async def test_a_split_may_be_asked_for(client):
    async with client.get("/plan?split=even") as response:
        told = await response.json()
    (ring,) = plan_from_fields(told["plan"]).rings
    assert [stage.layers for stage in ring.stages] == [(0, 2), (2, 4)]
    assert (told["model"], client.asked) == ("m", ["even"])


async def test_what_is_missing_is_said(client):
    async with client.get("/plan") as response:
        assert "no PC lends anything" in (await response.json())["shortage"]
    assert client.asked == [None]


async def test_an_unknown_split_is_refused(client):
    async with client.get("/plan?split=odd") as response:
        assert response.status == 400
        told = (await response.json())["error"]
    assert told["param"] == "split" and "planned, even" in told["message"]
    assert not client.asked
