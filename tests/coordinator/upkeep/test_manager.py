"""The manager's loop over nodes that answer at once: rings come, go and are handed over."""

import asyncio
import math
import time
from dataclasses import replace

import pytest

from molink.control.messages.assignment import Join, Load
from molink.control.messages.payloads import (
    NodeHealth,
    NodeWish,
    PathMeasured,
    PathReport,
    StageFact,
)
from molink.coordinator.nodes.slowdown import AS_REPORTED, Slowdown
from molink.coordinator.requests import cluster_service
from molink.coordinator.requests.intake import Intake
from molink.coordinator.upkeep import manager as manager_module
from molink.coordinator.upkeep.blame import Blame
from molink.coordinator.upkeep.manager import SLOW_PERIOD_S
from molink.coordinator.upkeep.ring_health import KEPT_S, LOOKS_MIN, SlowdownMonitor
from molink.coordinator.upkeep.ring_supervisor import RingState
from molink.errors import FrameError, RingError, StageError
from tests.coordinator.examples import HERE, PROFILE
from tests.coordinator.upkeep.world import (
    ANNA_AND_BERT,
    HEALTH,
    REPORT,
    collect,
    request,
    world,
)


async def test_rings_are_built_when_enough_nodes_are_there(monkeypatch):
    async with world(monkeypatch, size=2, min_nodes=3) as w:
        assert "No PC has joined" in w.service.unready_reason
        w.join("a", "b")
        await w.until(lambda: "2 of at least 3" in w.service.progress)
        assert not w.told
        w.join("c", "d")
        await w.until(lambda: len(w.serving) == 2)
        assert w.members() == [["a", "b"], ["c", "d"]]
        assert w.service.unready_reason is None


async def test_the_first_plan_waits_for_the_ways_and_says_so(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.asked = {one: ANNA_AND_BERT - {one} for one in ANNA_AND_BERT}
        w.join(*ANNA_AND_BERT)
        await w.until(lambda: "2 of them still measuring the ways" in w.service.progress)
        assert not w.told
        for one in ANNA_AND_BERT:
            (other,) = ANNA_AND_BERT - {one}
            path = PathMeasured(to=other, path="direct", rtt_ms=1, rate_mbps=20)
            w.say(one, PathReport(round=1, paths=(path,)))
        await w.until(lambda: w.serving)


async def test_each_stage_is_told_where_the_next_one_listens(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        at = PROFILE.model_copy(update={"addresses": ("10.0.0.7:4000", "8.8.8.8:4000")})
        w.join("a", "b")
        w.say("b", at)
        await w.until(lambda: w.serving)
        joins = {name: told.command for name, told in w.told if isinstance(told.command, Join)}
        assert joins["a"].next_link.addresses == ("10.0.0.7:5000", "8.8.8.8:5000")
        assert joins["a"].coordinator_link is None
        assert joins["b"].next_link.to == "a"
        assert joins["b"].coordinator_link.to == "coordinator"
        assert w.allowed["a"] == (w.book.node("b").public_key, "c" * 40)


async def test_a_node_that_nobody_needs_stands_by_with_the_reason(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b", "c")
        await w.until(lambda: w.serving)
        assert w.manager.plan.standbys == {"c": "one too many"}


async def test_a_lost_node_ends_its_ring_and_the_others_form_a_new_one(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b", "c")
        await w.until(lambda: w.members() == [["a", "b"]])
        answer = w.service.generate(request())
        w.clients[0].tokens.put_nowait(11)
        assert (await anext(answer)).token_ids == (11,)
        w.say("a", HERE.model_copy(update={"name": "a", "online": False}))
        w.clients[0].lost.set_result(RingError("a is lost."))
        rest = asyncio.create_task(collect(answer))
        await w.until(lambda: w.members() == [["b", "c"]])
        await w.until(lambda: w.clients[1].seen)
        assert w.clients[1].seen[0][1] == (11,), "what was told goes along"
        w.clients[1].tokens.put_nowait(12)
        w.clients[1].tokens.put_nowait(13)
        assert await rest == [12, 13]
        assert w.endpoints[0].closed
        (timeline,) = w.service.request_log.ended
        first, second = timeline.attempts
        assert (first.ring, second.ring) == (0, 1)
        assert [stage.node for stage in first.stages] != [stage.node for stage in second.stages]
        assert first.moved_because == "The ring has ended." and second.moved_because == ""
        assert timeline.finish_reason == "length"
        events = [(event.kind, event.ring) for event in w.service.events.after(0)]
        of_first = [kind for kind, ring in events if ring == 0]
        assert sorted(of_first) == ["codec", "plan", "request_moved", "ring_ended", "ring_serving"]
        assert [kind for kind, ring in events if ring == 1] == ["plan", "codec", "ring_serving"]


async def test_who_comes_while_the_ring_is_built_anew_waits_for_it(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        with pytest.raises(RingError, match="No PC has joined"):
            await w.service.until_taken()
        w.join("a", "b")
        await w.until(lambda: w.serving)
        w.service.intake = Intake(wait_s_max=60.0)
        w.clients[0].lost.set_result(RingError("a is lost."))
        await w.until(lambda: not w.serving)
        newcomer = asyncio.create_task(w.service.until_taken())
        await w.until(lambda: w.service._newcomers_waiting == 1)
        monkeypatch.setattr(cluster_service, "WAITING_FOR_RING_MAX", 1)
        with pytest.raises(RingError):
            await w.service.until_taken()
        await w.until(lambda: w.serving)
        await newcomer
        assert not w.service._newcomers_waiting


async def test_who_would_wait_too_long_for_a_ring_hears_how_far_it_is(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        w.say("a", HERE.model_copy(update={"name": "a", "online": False}))
        w.clients[0].lost.set_result(RingError("a is lost."))
        await w.until(lambda: "PC" in (w.service.unready_reason or ""))
        w.service.intake = Intake(wait_s_max=0.0)
        with pytest.raises(RingError, match="PC"):
            await w.service.until_taken()
        assert not w.service._newcomers_waiting


async def test_once_all_pcs_were_handed_over_newcomers_are_refused_at_once(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        w.service.handed_over = "Ask for 'new'."
        assert w.service.unready_reason is None, "answers are given to the end"
        w.clients[0].lost.set_result(RingError("a is lost."))
        await w.until(lambda: w.service.unready_reason == w.service.handed_over)
        w.service.intake = Intake(wait_s_max=math.inf)
        with pytest.raises(RingError, match="Ask for 'new'"):
            await w.service.until_taken()
        w.service.handed_over = ""
        assert "Ask" not in w.service.unready_reason


async def test_a_node_that_leaves_is_replaced_and_its_ring_ends_what_it_was_doing(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b", "c")
        await w.until(lambda: w.serving)
        answer = asyncio.create_task(collect(w.service.generate(request(1))))
        await w.until(lambda: w.clients[0].seen)
        w.say("a", NodeWish(wish="leave"))
        await w.until(lambda: ("c", True) in [(n, t.work is not None) for n, t in w.told])
        assert w.members() == [["a", "b"]] or not w.serving, "c loads while a and b serve"
        await w.until(lambda: w.manager.rings[0].state is RingState.DRAINING)
        w.clients[0].tokens.put_nowait(7)
        assert await answer == [7]
        await w.until(lambda: w.members() == [["b", "c"]])
        assert w.book.node("a").assignment.work is None
        loads = [told for name, told in w.told if name == "c" and isinstance(told.command, Load)]
        assert len(loads) == 2, "what has loaded meanwhile is kept for the next ring"
        assert all(told.work is not None for name, told in w.told if name == "c")


async def test_without_a_replacement_the_ring_is_drained_and_says_what_is_missing(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        w.say("a", NodeWish(wish="pause"))
        await w.until(lambda: not w.manager.rings)
        await w.until(lambda: "missing" in w.service.progress)
        with pytest.raises(RingError, match="missing"):
            await anext(w.service.generate(request()))
        w.say("a", NodeWish(wish="serve"))
        await w.until(lambda: w.members() == [["a", "b"]])


async def test_a_ring_is_built_anew_when_a_member_lends_less_than_it_holds(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        w.planner.shrunk.add("a")
        w.say("a", PROFILE)
        await w.until(lambda: not w.serving)
        w.planner.shrunk.clear()
        await w.until(lambda: w.members() == [["a", "b"]])
        assert len(w.clients) == 2


async def test_a_look_that_fails_is_not_the_last_one(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        w.planner.shrunk = None
        await w.until(lambda: w.manager.guard.counts[TypeError])
        w.planner.shrunk = {"a"}
        await w.until(lambda: not w.serving)
        assert w.manager.guard.counts.keys() == {TypeError}


async def test_a_report_that_cannot_be_read_is_counted_once_and_not_shown(monkeypatch):
    async with world(monkeypatch, size=1) as w:
        w.join("a")
        await w.until(lambda: w.serving)
        (stage,) = w.serving[0].stages
        for change in ({}, {"requests_running": "x"}, {"decode_step_s": 10**400}):
            report = NodeHealth(
                incarnation="a" * 12, state="serving", uptime_s=1, stage=HEALTH | change
            )
            w.say("a", report)
            assert stage.health == REPORT
        w.say("a", PROFILE)
        assert stage.health == REPORT
        assert w.book.refusals.counts == {FrameError: 2}


async def test_a_better_plan_for_all_is_taken_only_when_it_is_worth_it(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        first = w.serving[0]
        w.planner.size = 3
        w.join("c")
        await w.until(lambda: w.manager.plan.rings and len(w.manager.plan.rings[0].stages) == 3)
        assert w.serving == [first]
        w.planner.worth = "twice the users"
        await w.until(lambda: w.members() == [["a", "b", "c"]])


async def test_survivors_layers_are_not_dealt_anew_while_a_stream_waits(monkeypatch):
    """Nor is a ring that goes on after a loss: what it holds is what its users wait for."""
    async with world(monkeypatch, size=2) as w:
        w.survives = True
        w.join("a", "b")
        await w.until(lambda: w.serving)
        w.planner.size, w.planner.worth = 3, "twice the users"
        (ring,), (client,) = w.manager.rings, w.clients
        ring.state = RingState.RESUMING
        w.join("c")
        plans = w.planner.plans
        for _ in range(20):
            w.manager.step(time.monotonic())
            await asyncio.sleep(0)
        ring.state, client.counts = RingState.SERVING, replace(client.counts, interrupted=1)
        for _ in range(20):
            w.manager.step(time.monotonic())
            await asyncio.sleep(0)
        assert w.planner.plans <= plans + 1, "of those that are free, not of all"
        assert w.members() == [["a", "b"]]
        client.counts = replace(client.counts, interrupted=0)
        await w.until(lambda: w.members() == [["a", "b", "c"]])


async def test_a_member_that_is_found_slow_has_everybody_planned_for_anew(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        health = NodeHealth(incarnation="a" * 12, state="serving", uptime_s=1, stage=HEALTH)
        w.planner.slowdowns["a"] = AS_REPORTED
        w.say("a", health)
        await w.until(lambda: w.serving[0].stages[0].health is not None)
        w.manager.step(time.monotonic())
        assert w.planner.plans == 1, "nobody is free, and nobody is slow"
        w.planner.slowdowns["a"] = Slowdown(9.0, 9.0)
        await w.until(lambda: w.planner.plans == 2)
        assert w.book.node("a").slowdown == Slowdown(9.0, 9.0)
        w.manager.step(time.monotonic())
        assert w.planner.plans == 2, "once for each that is found out"
        (event,) = [one for one in w.service.events.after(0) if one.kind == "node_slow"]
        assert (event.node, event.text) == ("a", "a computes 9.0 times as long as it has told")


async def test_a_member_that_has_become_slow_waits_for_no_usual_change_of_plan(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        monkeypatch.setattr(manager_module, "CHANGE_PERIOD_S", 60.0)
        now = time.monotonic()
        w.manager._improved_at = now - SLOW_PERIOD_S - 1.0
        health = NodeHealth(incarnation="a" * 12, state="serving", uptime_s=1, stage=HEALTH)
        w.say("a", health)
        await w.until(lambda: w.serving[0].stages[0].health is not None)
        w.manager.step(now)
        assert w.planner.plans == 1
        w.planner.slowdowns["a"] = Slowdown(9.0, 9.0)
        await w.until(lambda: w.planner.plans == 2)


async def test_who_serves_no_more_is_believed_again_after_an_hour(monkeypatch):
    async with world(monkeypatch, size=1) as w:
        w.join("a")
        await w.until(lambda: w.serving)
        w.planner.slowdowns["a"] = Slowdown(9.0, 9.0)
        w.say("a", NodeHealth(incarnation="a" * 12, state="serving", uptime_s=1, stage=HEALTH))
        watch, nodes = SlowdownMonitor(w.planner), list(w.book)
        looks = [watch.slow_nodes(w.manager.rings, nodes, 1000.0) for _ in range(LOOKS_MIN)]
        assert looks == [set()] * (LOOKS_MIN - 1) + [{"a"}], "a short dip is nothing"
        assert watch.slow_nodes([], nodes, 1000.0 + KEPT_S) == {"a"}
        assert watch.slow_nodes([], nodes, 1001.0 + KEPT_S) == set()


async def test_a_stage_that_fails_ends_the_ring_and_it_is_tried_again(monkeypatch):
    async with world(monkeypatch, size=1, blame=Blame(0.0, 0.0)) as w:
        w.join("a")
        await w.until(lambda: w.serving)
        revision = w.book.node("a").assignment.revision
        w.clients[0].lost.set_result(RingError("a: out of memory"))
        w.say("a", StageFact(revision=revision, kind="failed", message="out of memory"))
        await w.until(lambda: len(w.clients) == 2 and w.serving)
        assert w.members() == [["a"]]
        assert w.book.node("a").assignment.revision > revision


async def test_a_node_whose_stage_fails_is_left_out_and_the_others_serve(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.broken.add("a")
        w.join("a", "b", "c")
        await w.until(lambda: w.members() == [["b", "c"]])
        loads = [told for name, told in w.told if name == "a" and told.work is not None]
        assert len(loads) == 1, "it is not tried again at once"
        assert "disk full" in w.manager.last_failure


async def test_a_request_that_came_before_any_ring_is_refused_with_the_reason(monkeypatch):
    async with world(monkeypatch, size=1) as w:
        with pytest.raises(RingError, match="No PC has joined"):
            await anext(w.service.generate(request()))


async def test_nodes_that_were_loaded_in_vain_are_let_go(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("x")
        w.say("x", StageFact(revision=999, kind="ready"))
        w.planner.size = 9
        await w.until(lambda: w.told)
        name, told = w.told[0]
        assert name == "x"
        assert told.work is None


async def test_a_first_ring_that_must_stand_ends_the_manager_and_a_later_one_does_not(monkeypatch):
    with pytest.raises(StageError, match="a: disk full"):
        async with world(monkeypatch, size=1, first_must_stand=True) as w:
            w.broken.add("a")
            w.join("a")
            await w.until(lambda: False)
    async with world(monkeypatch, size=1, first_must_stand=True) as w:
        w.join("a")
        await w.until(lambda: w.serving)
        w.clients[0].lost.set_result(RingError("The link is lost."))
        await w.until(lambda: len(w.clients) == 2 and w.serving)
