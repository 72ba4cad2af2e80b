"""Slow is worse than dead: another node takes the place of a member that has become slow."""

import asyncio
import time
from dataclasses import replace

import pytest

from molink.control.messages.assignment import Extend, Follow, GoOn, Load
from molink.control.messages.payloads import NodeHealth
from molink.coordinator.nodes.slowdown import AS_REPORTED, Slowdown
from molink.coordinator.upkeep import manager as manager_module
from molink.coordinator.upkeep.ring_health import LOOKS_MIN
from molink.coordinator.upkeep.ring_supervisor import RingState
from molink_scheduler.link.facts import LinkReport
from molink_scheduler.resume import Resume
from tests.coordinator.upkeep.world import REPORT, world

ANNA, BERT, CARL, DORA = (letter * 16 for letter in "abcd")
LISTED = ((4, 7), (5, 30))
SLOW = Slowdown(9.0, 9.0)
LINK = LinkReport("next", 9, 9000, 1, 0, 4000, 0, 4096, 5.0, 20.0, 300.0, 4096, False, 0)


async def serving_three(w, *free):
    w.survives = True
    w.join(ANNA, BERT, CARL)
    await w.until(lambda: w.serving)
    w.clients[0].listed = LISTED
    w.join(*free)
    reports(w, REPORT)


def reports(w, report):
    for stage in w.serving[0].stages:
        health = NodeHealth(incarnation="a" * 12, state="serving", uptime_s=1, stage=report)
        w.say(stage.node.node_id, health)


def members(w):
    return [stage.node.node_id for stage in w.manager.rings[0].stages]


async def looks(w, count):
    for _ in range(count):
        w.manager.step(time.monotonic())
        await asyncio.sleep(0)


async def test_another_node_loads_a_slow_one_s_layers_and_takes_its_place(monkeypatch):
    """The others keep what they hold, nothing is planned for anew, and the slow one rests."""
    async with world(monkeypatch, size=3) as w:
        await serving_three(w, DORA)
        (ring,) = w.manager.rings
        w.told.clear()
        w.planner.slowdowns[BERT] = SLOW
        await w.until(lambda: w.clients[0].went_on)
        assert members(w) == [ANNA, DORA, CARL] and ring.state is RingState.SERVING
        load, follow, join = [told for name, told in w.told if name == DORA]
        kinds = [type(told.command) for told in (load, follow, join)]
        assert kinds == [Load, Follow, GoOn] and load.work == follow.work == join.work
        assert load.work.layers == (1, 2)
        assert join.command.resume == Resume(LISTED, held=())
        loads = [name for name, told in w.told if isinstance(told.command, Load | Extend)]
        assert set(loads) == {DORA}
        assert "9.0 times" in w.manager.blame.reasons(0.0)[BERT]
        texts = {one.kind: one.text for one in w.service.events.after(0)}
        assert f"{DORA} takes its place" in texts["stage_lost"]
        assert "plan" in texts and len(w.manager.rings) == 1


@pytest.mark.parametrize("queued", [True, False])
async def test_a_slow_link_counts_only_while_bytes_wait_for_it(monkeypatch, queued):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w, DORA)
        w.planner.rates = {BERT: 40.0}
        reports(w, replace(REPORT, links=(replace(LINK, decode_queued_bytes=4000 * queued),)))
        await looks(w, LOOKS_MIN)
        assert w.book.node(BERT).slowdown == (Slowdown(link_mbps=5.0) if queued else AS_REPORTED)
        if queued:
            await w.until(lambda: w.clients[0].went_on)
            assert members(w) == [ANNA, DORA, CARL]


async def test_a_short_dip_does_nothing(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w, DORA)
        for _ in range(3):
            for found, count in (SLOW, LOOKS_MIN - 1), (AS_REPORTED, 1):
                w.planner.slowdowns[BERT] = found
                for _ in range(count):
                    w.manager._slowdowns.slow_nodes(w.manager.rings, list(w.book), 0.0)
        assert w.book.node(BERT).slowdown == AS_REPORTED


@pytest.mark.parametrize("why", ["no better", "no room", "nobody free"])
async def test_all_are_planned_for_anew_where_nobody_can_take_the_place(monkeypatch, why):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w, *([DORA] if why != "nobody free" else []))
        monkeypatch.setattr(manager_module, "CHANGE_PERIOD_S", 1e9)
        (w.planner.no_better if why == "no better" else w.planner.small).add(DORA)
        await looks(w, 5)
        plans = w.planner.plans
        w.planner.slowdowns[BERT] = SLOW
        await w.until(lambda: w.planner.plans > plans)
        assert members(w) == [ANNA, BERT, CARL] and not w.clients[0].went_on


async def test_who_was_slow_when_the_ring_was_planned_does_what_was_planned(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        w.join(ANNA, BERT, CARL)
        w.book.node(BERT).slowdown = SLOW
        w.planner.slowdowns[BERT] = SLOW
        await w.until(lambda: w.serving)
        w.join(DORA)
        reports(w, REPORT)
        await looks(w, 2 * LOOKS_MIN)
        assert members(w) == [ANNA, BERT, CARL] and not w.book.node(DORA).is_assigned


async def test_who_was_replaced_fills_no_place_while_it_is_slow(monkeypatch):
    async with world(monkeypatch, size=3, standbys=1) as w:
        w.manager.blame.first_s = w.manager.blame.max_s = 0.0
        await serving_three(w, DORA)
        w.planner.slowdowns[BERT] = SLOW
        await w.until(lambda: w.clients[0].went_on)
        await looks(w, 5)
        assert not w.book.node(BERT).covers and BERT not in w.manager._standbys.holders
