"""Free nodes hold the layers of others, and take the place of one whose PC is gone."""

from dataclasses import replace

import pytest

from molink.control.messages.assignment import Extend, Follow, Hold, Load
from molink.control.messages.payloads import (
    AssignedDrafter,
    NodeHealth,
    NodeState,
    NodeWish,
    StageFact,
)
from molink.coordinator.ring import ring_watch
from molink.coordinator.upkeep.ring_supervisor import RingState
from molink.stage_protocol.progress import ShadowProgress, StageProgress
from molink_scheduler.recovery.machine import SILENT_LOST_S
from molink_scheduler.resume import Resume
from tests.coordinator.examples import HERE, WORK
from tests.coordinator.upkeep.world import REPORT, world

DRAFTER = AssignedDrafter(weights=WORK.weights, layers=2, kv_tokens=16)
ANNA, BERT, CARL, DORA, EMIL = (letter * 16 for letter in "abcde")
LISTED = ((4, 7), (5, 30))
SECOND = 5000.0
"""By the clock of a ring of which one stage has reported at 0 last."""


async def serving_three(w, *free):
    """A ring of three; then whoever else comes is free."""
    w.survives = True
    w.join(ANNA, BERT, CARL)
    await w.until(lambda: w.serving)
    w.clients[0].listed = LISTED
    w.join(*free)
    for node in w.book:
        node.public_key = node.node_id[0] * 40


async def silent_stage(w, monkeypatch):
    """The ring, in which the first stage and the coordinator get nothing from the second."""
    monkeypatch.setattr(ring_watch, "SILENCE_PERIOD_S", 0.0)
    await serving_three(w)
    (ring,) = w.manager.rings
    ring.clock = lambda: SECOND
    for number, silent_s in (1, 0.0), (2, SILENT_LOST_S / 2):
        for name in (ANNA, CARL):
            said = StageProgress(reports=number, next_silent_s=silent_s if name == ANNA else 0.0)
            stage = replace(REPORT, progress=said)
            health = NodeHealth(incarnation="a" * 12, state="serving", uptime_s=1, stage=stage)
            w.book.take(name, health, SECOND)
            w.book.wake(w.book.node(name))
        await w.until(lambda: all(ring.stages[at].seen.reported_at == SECOND for at in (0, 2)))
    await w.until(lambda: any(one.kind == "stage_silent" for one in w.service.events.after(0)))
    return ring


async def covering(w, name):
    """What the node stands by with, once it does."""
    node = w.book.node(name)
    await w.until(lambda: node.covers and node.state is NodeState.STANDBY)
    return node.assignment


def switch_off(w, name):
    w.say(name, HERE.model_copy(update={"name": name, "online": False}))


def end_stage(w, name):
    revision = w.book.node(name).assignment.revision
    w.say(name, StageFact(revision=revision, kind="failed", message="its stage ended"))


def told(w, name):
    """What it was told to do; not that its ring will go on."""
    given = [assignment for node, assignment in w.told if node == name]
    return [one for one in given if not isinstance(one.command, Hold | Extend)]


def members(w):
    (ring,) = w.manager.rings
    return [stage.node.node_id for stage in ring.stages]


async def test_a_standby_takes_the_place_of_a_pc_and_survivors_load_nothing(monkeypatch):
    async with world(monkeypatch, size=3, standbys=1) as w:
        await serving_three(w)
        w.book.node(BERT).changes = 9
        w.join(DORA)
        held = await covering(w, DORA)
        assert isinstance(held.command, Load)
        assert (held.work.layers, held.work.kv_tokens) == ((1, 2), 49)
        assert w.book.node(DORA).covers == BERT, "who comes and goes is covered first"
        w.book.node(DORA).public_key = "d" * 40
        w.told.clear()
        switch_off(w, BERT)
        await w.until(lambda: w.clients[0].went_on)
        (anna,), (load, join), (carl,) = (told(w, name) for name in (ANNA, DORA, CARL))
        assert load.work == held.work, "so its node loads nothing either"
        assert anna.command.resume == Resume(LISTED, next_held=())
        assert join.command.resume == Resume(LISTED, held=())
        assert carl.command.resume == Resume(LISTED)
        assert (anna.command.next_link.to, join.command.next_link.to) == (DORA, CARL)
        assert (w.allowed[DORA][0], w.allowed[CARL][0]) == ("a" * 40, "d" * 40)
        assert not told(w, BERT) and members(w) == [ANNA, DORA, CARL]
        assert [stage.node_id for stage in w.manager.rings[0].plan.stages] == members(w)
        assert w.manager.rings[0].state is RingState.SERVING


async def test_a_standby_takes_the_place_of_a_pc_as_soon_as_that_is_silent(monkeypatch):
    """Without one it would have been waited for."""
    async with world(monkeypatch, size=3, standbys=1) as w:
        ring = await silent_stage(w, monkeypatch)
        assert ring.state is RingState.SERVING
        w.book.node(BERT).changes = 9
        w.join(DORA)
        await covering(w, DORA)
        await w.until(lambda: w.clients[0].went_on)
        assert members(w) == [ANNA, DORA, CARL] and ring.state is RingState.SERVING


async def test_whoever_has_lost_its_stage_stands_by_next(monkeypatch):
    """A standby is quicker than the process that is started anew."""
    async with world(monkeypatch, size=3, standbys=1) as w:
        w.manager.blame.first_s = w.manager.blame.max_s = 0.0
        await serving_three(w, DORA)
        held = await covering(w, DORA)
        lost = w.book.node(DORA).covers
        end_stage(w, lost)
        await w.until(lambda: w.clients[0].went_on)
        assert DORA in members(w)
        assert (await covering(w, lost)).work.layers == held.work.layers
        assert w.book.node(lost).covers == DORA and not w.book.node(DORA).covers


async def test_two_that_are_lost_at_once_have_two_places_to_go(monkeypatch):
    async with world(monkeypatch, size=3, standbys=2) as w:
        await serving_three(w, DORA, EMIL)
        await covering(w, DORA)
        await covering(w, EMIL)
        w.admitted.clear()
        for lost in (ANNA, CARL):
            switch_off(w, lost)
        await w.until(lambda: w.clients[0].went_on)
        assert sorted(members(w)) == [BERT, DORA, EMIL]
        assert w.admitted[-1] == members(w)[-1], "the coordinator takes tokens of the new tail"


async def test_without_a_standby_a_free_node_with_room_loads_in_time(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        w.planner.fetches = {DORA: 5.0, EMIL: 3.0}
        await serving_three(w, DORA, EMIL)
        assert not told(w, EMIL)
        switch_off(w, CARL)
        await w.until(lambda: w.clients[0].went_on)
        assert members(w) == [ANNA, BERT, EMIL] and w.admitted[-1] == EMIL


@pytest.mark.parametrize(("fetch_s", "refused"), [(5.0, ""), (600.0, "too late")])
async def test_a_new_head_drafts_if_what_drafts_is_there_in_time(monkeypatch, fetch_s, refused):
    async with world(monkeypatch, size=3) as w:
        w.planner.drafter, w.planner.drafter_fetch_s = DRAFTER, fetch_s
        await serving_three(w, EMIL)
        switch_off(w, ANNA)
        await w.until(lambda: w.clients[0].went_on)
        assert members(w) == [EMIL, BERT, CARL]
        assert w.book.node(EMIL).assignment.work.drafter.refused == refused


async def test_a_ring_ends_where_no_free_node_has_room_or_could_load_in_time(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        w.planner.fetches, w.planner.small = {DORA: 60.0}, {ANNA, CARL, EMIL}
        await serving_three(w, DORA, EMIL)
        (ring,) = w.manager.rings
        switch_off(w, BERT)
        await w.until(lambda: ring.state is RingState.ENDED)
        assert not w.clients[0].went_on


async def test_a_standby_is_its_owners_again_at_once(monkeypatch):
    async with world(monkeypatch, size=3, standbys=1) as w:
        await serving_three(w, DORA)
        await covering(w, DORA)
        w.say(DORA, NodeWish(wish="pause"))
        await w.until(lambda: not w.book.node(DORA).is_assigned)
        assert not w.book.node(DORA).covers
        w.join(EMIL)
        await covering(w, EMIL)


async def test_a_standby_that_fails_rests_and_another_one_stands_by(monkeypatch):
    async with world(monkeypatch, size=3, standbys=1) as w:
        w.broken.add(DORA)
        await serving_three(w, DORA, EMIL)
        await covering(w, EMIL)
        end_stage(w, EMIL)
        await w.until(lambda: not w.book.node(EMIL).covers)
        reasons = w.manager.blame.reasons(0.0)
        assert "disk full" in reasons[DORA] and "as it stood by" in reasons[EMIL]
        assert w.manager.rings[0].state is RingState.SERVING


async def test_nobody_stands_by_unasked_or_for_a_ring_that_is_gone(monkeypatch):
    async with world(monkeypatch, size=3, standbys=0) as w:
        await serving_three(w, DORA)
        await w.until(lambda: w.manager.plan is not None and DORA in w.book.nodes)
        assert not told(w, DORA)
    async with world(monkeypatch, size=3, standbys=1) as w:
        w.planner.small = {DORA}
        await serving_three(w, DORA, EMIL)
        await covering(w, EMIL)
        assert not [one for one in told(w, DORA) if one.work is not None]


def report_of_shadow(w, name, epoch, held):
    """What a shadow says of the KV that it holds."""
    stage = replace(REPORT, shadow=ShadowProgress(epoch, held))
    w.say(name, NodeHealth(incarnation="a" * 12, state="serving", uptime_s=1, stage=stage))


async def shadowing(w, name, before):
    """The epoch in which a standby is a shadow, once rows are led to it."""
    await w.until(lambda: w.shadows.get(before, (0, ""))[1] == name)
    joined = w.book.node(name).assignment
    assert isinstance(joined.command, Follow) and w.book.node(name).state is NodeState.STANDBY
    assert w.shadows[before] == (joined.epoch, name)
    return joined.epoch


async def test_a_shadow_is_sent_only_what_it_has_not_reported(monkeypatch):
    async with world(monkeypatch, size=3, standbys=1) as w:
        await serving_three(w)
        w.book.node(BERT).changes = 9
        w.join(DORA)
        w.book.node(DORA).public_key = "d" * 40
        epoch = await shadowing(w, DORA, before=ANNA)
        assert epoch == w.serving[0].epoch
        report_of_shadow(w, DORA, epoch, ((4, 9), (5, 21), (6, 3)))
        w.told.clear()
        switch_off(w, BERT)
        await w.until(lambda: w.clients[0].went_on)
        (anna,), (join,), (carl,) = (told(w, name) for name in (ANNA, DORA, CARL))
        held = ((4, 7), (5, 21))
        assert anna.command.resume == Resume(LISTED, next_held=held)
        assert join.command.resume == Resume(LISTED, held=held)
        assert carl.command.resume == Resume(LISTED)
        assert w.serving and members(w) == [ANNA, DORA, CARL]


async def test_in_another_epoch_a_shadow_begins_anew_and_old_reports_count_for_nothing(monkeypatch):
    async with world(monkeypatch, size=3, standbys=1) as w:
        w.manager.blame.first_s = w.manager.blame.max_s = 0.0
        await serving_three(w)
        w.book.node(BERT).changes = 9
        w.join(DORA)
        first = await shadowing(w, DORA, before=ANNA)
        report_of_shadow(w, DORA, first, ((5, 21),))
        end_stage(w, CARL)
        await w.until(lambda: w.clients[0].went_on)
        await w.until(lambda: w.shadows[ANNA][0] > first)
        followed = w.book.node(DORA).assignment
        assert isinstance(followed.command, Follow) and followed.epoch > first
        w.told.clear()
        switch_off(w, BERT)
        await w.until(lambda: told(w, DORA))
        assert told(w, DORA)[0].command.resume.held == ()


async def test_who_fed_a_shadow_that_is_gone_is_told(monkeypatch):
    async with world(monkeypatch, size=3, standbys=1) as w:
        await serving_three(w)
        w.book.node(BERT).changes = 9
        w.join(DORA)
        epoch = await shadowing(w, DORA, before=ANNA)
        w.manager.blame.first_s = w.manager.blame.max_s = 1000.0
        end_stage(w, DORA)
        await w.until(lambda: w.shadows[ANNA] == (epoch, None))
        assert w.serving and not w.book.node(DORA).covers


async def test_standbys_do_not_make_a_ring_of_their_own(monkeypatch):
    async with world(monkeypatch, size=1, standbys=1) as w:
        w.survives = True
        w.join(ANNA)
        await w.until(lambda: w.serving)
        w.join(BERT)
        await covering(w, BERT)
        w.join(CARL)
        await w.until(lambda: w.planner.plans > 2)
        assert w.members() == [[ANNA]]
