"""Plans that take their time: nothing until they are made, and none that is out of date."""

import asyncio
import errno
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from molink.coordinator.nodes.node import Node
from molink.coordinator.planning import cluster_plan
from molink.coordinator.planning.cluster_plan import (
    ClusterPlan,
    PlanCache,
    PlannedRing,
    PlannedStage,
)
from molink.coordinator.planning.plan_process import plan_beside
from molink.errors import StageError
from molink.tasks import background_tasks
from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement import Goal, Network, NodeFacts
from molink_scheduler.placement.question import PlacementQuestion
from tests.coordinator.examples import PROFILE, WORK

A, B, C = Node("a"), Node("b"), Node("c")


def plan_of(*nodes):
    stages = tuple(PlannedStage(node.node_id, WORK) for node in nodes)
    return ClusterPlan((PlannedRing(stages),))


@dataclass
class SlowPlanner:
    """Answers what is put into `answers`, once it is there."""

    asked: list = field(default_factory=list)
    answers: asyncio.Queue = field(default_factory=asyncio.Queue)

    async def plan(self, nodes):
        self.asked.append(tuple(nodes))
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


@asynccontextmanager
async def plans():
    made = asyncio.Event()
    async with background_tasks() as tasks:
        one = PlanCache(SlowPlanner(), made, tasks)
        yield one, one.planner, made


async def answered(planner, made, answer):
    made.clear()
    planner.answers.put_nowait(answer)
    async with asyncio.timeout(5):
        await made.wait()
    await asyncio.sleep(0)


async def test_a_plan_is_handed_out_once_it_is_made():
    async with plans() as (one, planner, made):
        assert one.take("x", [A, B]) is None
        await asyncio.sleep(0)
        assert one.take("x", [A, B]) is None
        assert planner.asked == [(A, B)], "one is in the making"
        await answered(planner, made, plan_of(A))
        assert one.take("x", [A, B, C]) == plan_of(A), "a newcomer is for the next one"
        assert one.take("x", [A, B, C]) is None
        await asyncio.sleep(0)
        assert planner.asked == [(A, B), (A, B, C)]


async def test_a_plan_waits_for_the_profile_of_an_agent_that_has_started_anew():
    """Its presence came, and while the plan was to be made a profile without step times."""
    async with plans() as (one, planner, made):
        node = Node("d", profile=PROFILE)
        assert one.take("x", [node]) is None
        node.profile = PROFILE.model_copy(update={"steps": None})
        await asyncio.wait_for(made.wait(), 5)
        assert planner.asked == [], "only measured nodes are planned"
        node.profile = PROFILE
        assert one.take("x", [node]) is None
        await answered(planner, made, plan_of(node))
        assert one.take("x", [node]) == plan_of(node)


async def test_a_plan_with_somebody_who_has_gone_is_made_anew():
    async with plans() as (one, planner, made):
        one.take("x", [A, B])
        await answered(planner, made, plan_of(A, B))
        assert one.take("x", [A]) is None
        await answered(planner, made, plan_of(A))
        assert one.take("x", [A]) == plan_of(A)


async def test_that_there_is_no_ring_holds_only_for_those_who_were_asked_for():
    """Else two nodes that came one after the other would never be planned for together."""
    async with plans() as (one, planner, made):
        one.take("x", [A])
        await answered(planner, made, ClusterPlan((), {}, "2 GiB are missing."))
        assert one.take("x", [A, B]) is None
        await answered(planner, made, plan_of(A, B))
        assert one.take("x", [A, B]) == plan_of(A, B)
        one.take("x", [A])
        await answered(planner, made, ClusterPlan((), {}, "2 GiB are missing."))
        assert one.take("x", [A]).shortage


async def test_each_purpose_has_a_plan_of_its_own():
    async with plans() as (one, planner, made):
        one.take("x", [A])
        await answered(planner, made, plan_of(A))
        assert one.take("y", [B]) is None
        assert one.take("x", [A]) == plan_of(A)
        await answered(planner, made, plan_of(B))
        assert one.take("y", [B]) == plan_of(B)


async def test_a_plan_that_nobody_fetched_is_forgotten(monkeypatch):
    monkeypatch.setattr(cluster_plan, "FRESH_S", -1.0)
    async with plans() as (one, planner, made):
        one.take("x", [A])
        await answered(planner, made, plan_of(A))
        assert one.take("x", [A]) is None
        await asyncio.sleep(0)
        assert len(planner.asked) == 2


@pytest.mark.parametrize("error", [StageError("The process that plans has ended."), KeyError("a")])
async def test_a_plan_that_failed_is_tried_again(monkeypatch, error):
    monkeypatch.setattr(cluster_plan, "RETRY_FIRST_S", 0.0)
    async with plans() as (one, planner, made):
        one.take("x", [A])
        await answered(planner, made, error)
        assert one.take("x", [A]) is None
        await answered(planner, made, plan_of(A))
        assert one.take("x", [A]) == plan_of(A)


def question(*names):
    nodes = tuple(NodeFacts(name, 10**9, 1e-3, 1e-5, 1e-5) for name in names)
    return PlacementQuestion.of(ModelCost((10**8,) * 4, 100, 100), nodes, Network(), Goal())


async def test_a_process_beside_finds_the_same_plan():
    assert await plan_beside(question("a", "b")) == question("a", "b").answer()


@pytest.mark.parametrize("shortage", [errno.EMFILE, errno.ENOMEM])
async def test_a_process_that_cannot_be_started_is_one_sentence(monkeypatch, shortage):
    async def refuse(*command, **options):
        raise OSError(shortage, "there is none left")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with pytest.raises(StageError, match="cannot be started: there is none left"):
        await plan_beside(question("a"))


async def test_a_process_that_fails_is_one_sentence(capfd):
    with pytest.raises(StageError, match="has ended with code 1"):
        await plan_beside(question("a", "a"))
    assert "same id" in capfd.readouterr().err
