"""A ring whose hole nobody else can fill: a neighbour takes the layers beside its own."""

import pytest

from molink.control.messages.assignment import Extend, Hold, Load
from molink.control.messages.payloads import StageFact
from molink.coordinator.upkeep.ring_supervisor import RingState
from molink_scheduler.resume import Resume
from tests.coordinator.examples import HERE
from tests.coordinator.upkeep.test_recovery import ANNA, BERT, CARL, end_stage, serving_three, told
from tests.coordinator.upkeep.world import World, world


def switch_off(w: World, name: str) -> None:
    w.say(name, HERE.model_copy(update={"name": name, "online": False}))


async def test_the_stage_before_takes_what_is_lost(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        (client,), (ring,) = w.clients, w.manager.rings
        switch_off(w, BERT)
        await w.until(lambda: client.went_on)
        assert w.manager.rings == [ring] and ring.state is RingState.SERVING
        (load, join), (carl,) = (told(w, name) for name in (ANNA, CARL))
        assert load.command == Extend(work=load.work) and load.work.layers == (0, 2)
        listed = ((4, 7), (5, 30))
        resumes = [one.command.resume for one in (join, carl)]
        assert resumes == [Resume(listed)] * 2, "nobody is fed over a link"
        assert carl.work.layers == (2, 3), "who is not extended loads nothing"
        places = [(one.work.layers, one.stage, one.stages) for one in (join, carl)]
        assert places == [((0, 2), 0, 2), ((2, 3), 1, 2)]
        assert join.command.terms.micro_batch_candidates == (1, 2, 3, 4)
        assert w.allowed[CARL] == w.allowed[ANNA]
        assert [one.work.layers for one in ring.plan.stages] == [(0, 2), (2, 3)]
        held = [name for name, one in w.told if isinstance(one.command, Hold)]
        assert held == [CARL], "the extended one holds its links by what it is told to load"


async def test_behind_a_lost_head_the_next_one_takes_its_layers_and_its_place(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        switch_off(w, ANNA)
        await w.until(lambda: w.clients[0].went_on)
        (load, join), (carl,) = (told(w, name) for name in (BERT, CARL))
        assert load.work.layers == (0, 2) and (load.stage, join.stage) == (0, 0)
        assert join.command.resume == Resume(((4, 7), (5, 30)), held=())
        assert carl.command.resume == Resume(((4, 7), (5, 30)))


async def test_where_the_one_before_has_no_room_the_one_behind_is_fed(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        w.planner.small = {ANNA}
        switch_off(w, BERT)
        await w.until(lambda: w.clients[0].went_on)
        (anna,), (load, join) = told(w, ANNA), told(w, CARL)
        assert load.work.layers == (1, 3)
        assert anna.command.resume == Resume(((4, 7), (5, 30)), next_held=())
        assert join.command.resume.fresh


@pytest.mark.parametrize("why", ["room", "time", "fails"])
async def test_where_no_neighbour_can_the_ring_ends(monkeypatch, why):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        (ring,) = w.manager.rings
        if why == "room":
            w.planner.small = {ANNA, CARL}
        elif why == "time":
            w.planner.fetches = {ANNA: 90.0, CARL: 90.0}
        else:
            w.broken |= {ANNA, CARL}
        switch_off(w, BERT)
        await w.until(lambda: ring.state is RingState.ENDED)
        assert not w.clients[0].went_on


async def test_what_two_neighbours_lose_together_one_takes(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        switch_off(w, BERT)
        switch_off(w, CARL)
        await w.until(lambda: w.clients[0].went_on)
        (ring,) = w.serving
        assert [stage.layers for stage in ring.stages] == [(0, 3)]


async def test_a_ring_that_has_lost_a_place_loses_the_next_stage_as_any_other(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        switch_off(w, BERT)
        await w.until(lambda: len(w.clients[0].went_on) == 1)
        w.told.clear()
        end_stage(w, ANNA)
        await w.until(lambda: len(w.clients[0].went_on) == 2)
        load, join = told(w, ANNA)
        assert load.command == Load(work=load.work) and load.work.layers == (0, 2), (
            "in a new process"
        )
        assert join.command.resume.fresh
        (ring,) = w.serving
        assert [stage.layers for stage in ring.stages] == [(0, 2), (2, 3)]


async def test_one_that_is_lost_while_a_neighbour_loads_leaves_that_to_go_on(monkeypatch):
    async with world(monkeypatch, size=4) as w:
        w.survives, dora = True, "d" * 16
        w.join(ANNA, BERT, CARL, dora)
        await w.until(lambda: w.serving)
        w.told.clear()
        w.stuck.add(ANNA)
        switch_off(w, BERT)
        await w.until(lambda: told(w, ANNA))
        end_stage(w, dora)
        w.stuck.clear()
        first = told(w, ANNA)[0]
        revision = w.book.node(ANNA).assignment.revision
        line = {"port": 5000, "coordinator_port": 5001, "device": "cpu", "dtype": "float32"}
        line |= {"kv_tokens_capacity": 64, "weights_bytes": 1}
        w.say(ANNA, StageFact(revision=revision, kind="loaded", line=line))
        await w.until(lambda: w.clients[0].went_on)
        (ring,) = w.serving
        assert first.work.layers == (0, 2)
        assert [stage.layers for stage in ring.stages] == [(0, 2), (2, 3), (3, 4)]
