"""A ring that loses a stage goes on: survivors are told to join again, and nothing else."""

import asyncio
import os
import time
from dataclasses import asdict, replace

from molink.control.messages.assignment import GoOn, Hold, Load
from molink.control.messages.payloads import NodeHealth, NodeState, StageFact
from molink.coordinator.ring import ring_watch
from molink.coordinator.upkeep import ring_supervisor
from molink.coordinator.upkeep.recovery_files import FILES_KEPT, RecoveryFiles
from molink.coordinator.upkeep.ring_supervisor import RingState, RingSupervisor
from molink.stage_protocol.health import RoomOffer
from molink.stage_protocol.progress import StageProgress
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.recovery import state as recovery_state
from molink_scheduler.recovery.events import Loss, StagesLost
from molink_scheduler.recovery.machine import SILENT_LOST_S
from molink_scheduler.recovery.members import Member, RingRoom
from molink_scheduler.recovery.state import RingRecovery
from molink_scheduler.resume import Resume
from molink_sim.replay import replay
from tests.coordinator.examples import HERE
from tests.coordinator.upkeep.world import LOADED, REPORT, World, collect, request, world

ANNA, BERT, CARL = "a" * 16, "b" * 16, "c" * 16


async def serving_three(w: World) -> None:
    w.survives = True
    w.join(ANNA, BERT, CARL)
    await w.until(lambda: w.serving)
    w.told.clear()
    w.clients[0].listed = ((4, 7), (5, 30))


def end_stage(w: World, name: str) -> None:
    revision = w.book.node(name).assignment.revision
    w.say(name, StageFact(revision=revision, kind="failed", message="its stage ended"))


def told(w: World, name: str) -> list:
    """What it was told to do; not that its ring will go on."""
    given = [assignment for node, assignment in w.told if node == name]
    return [one for one in given if not isinstance(one.command, Hold)]


async def test_survivors_join_again_and_load_nothing(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        w.missing[CARL] = (5,)
        (client,), (ring,) = w.clients, w.manager.rings
        epoch = ring.epoch
        end_stage(w, BERT)
        await w.until(lambda: client.went_on)
        assert client.went_on == [(ring.epoch, {4, 5}, {5})] and ring.epoch > epoch
        assert w.manager.rings == [ring] and ring.state is RingState.SERVING
        (anna,), (load, join), (carl,) = (told(w, name) for name in (ANNA, BERT, CARL))
        listed = ((4, 7), (5, 30))
        assert anna.command.resume == Resume(listed, next_held=())
        assert isinstance(load.command, Load) and load.epoch == ring.epoch
        assert join.command.resume == Resume(listed, held=())
        assert carl.command.resume == Resume(listed), "the head, behind it, gets tokens and no rows"
        assert {one.epoch for one in (anna, join, carl)} == {ring.epoch}
        kinds = [one.kind for one in w.service.events.after(0) if one.ring == ring.number]
        assert kinds.count("ring_resumed") == 1 and "ring_ended" not in kinds


async def test_survivors_hold_their_links_before_anything_is_loaded(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        w.stuck.add(BERT)
        end_stage(w, BERT)
        await w.until(lambda: told(w, BERT))
        held = [node for node, one in w.told if isinstance(one.command, Hold)]
        assert held == [ANNA, CARL]
        assert w.told[-1][0] == BERT and w.book.node(ANNA).state is NodeState.SERVING


async def test_answers_wait_while_a_stage_is_loaded_again(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        answer = asyncio.create_task(collect(w.service.generate(request(2))))
        await w.until(lambda: w.clients[0].seen)
        w.clients[0].tokens.put_nowait(1)
        end_stage(w, ANNA)
        await w.until(lambda: w.clients[0].went_on)
        w.clients[0].tokens.put_nowait(2)
        assert await answer == [1, 2]


async def test_a_stage_that_is_lost_meanwhile_is_loaded_again_too(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        w.broken.add(CARL)
        end_stage(w, BERT)
        await w.until(lambda: any(isinstance(one.command, GoOn) for one in told(w, CARL)))
        w.broken.clear()
        await w.until(lambda: w.clients[0].went_on)
        resumes = [told(w, name)[-1].command.resume for name in (ANNA, BERT, CARL)]
        assert [one.fresh for one in resumes] == [False, True, True]
        assert [one.next_fresh for one in resumes] == [True, True, False]
        bert, carl = ([type(one.command) for one in told(w, name)] for name in (BERT, CARL))
        assert bert.count(Load) == 1, "it had loaded"
        assert carl.count(Load) == 1


async def test_nobody_joins_beside_a_stage_that_was_lost_while_another_loaded(monkeypatch):
    """Who is told to join beside it would wait for its answer, and fail for want of one."""
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        w.stuck.add(BERT)
        end_stage(w, BERT)
        await w.until(lambda: told(w, BERT))
        end_stage(w, CARL)
        w.stuck.clear()
        loading = w.book.node(BERT).assignment.revision
        w.say(BERT, StageFact(revision=loading, kind="loaded", line=LOADED))
        await w.until(lambda: w.clients[0].went_on)
        load, join = told(w, CARL)
        assert isinstance(load.command, Load) and join.command.resume.fresh
        assert len([one for _, one in w.told if isinstance(one.command, GoOn)]) == 3


async def test_a_stage_with_less_room_for_cached_kv_bounds_its_ring(monkeypatch):
    monkeypatch.setitem(LOADED, "tiers", asdict(CacheTiers(8, 20)))
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        w.stuck.add(BERT)
        end_stage(w, BERT)
        await w.until(lambda: told(w, BERT))
        w.stuck.clear()
        line = LOADED | {"tiers": asdict(CacheTiers(3, 20, 0.5))}
        loading = w.book.node(BERT).assignment.revision
        w.say(BERT, StageFact(revision=loading, kind="loaded", line=line))
        await w.until(lambda: w.clients[0].went_on)
        joined = [told(w, name)[-1].command.terms for name in (ANNA, BERT, CARL)]
        assert [one.tiers for one in joined] == [CacheTiers(3, 20, 0.5)] * 3


async def test_two_that_are_lost_one_after_the_other_load_at_once(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        w.stuck |= {BERT, CARL}
        end_stage(w, BERT)
        await w.until(lambda: told(w, BERT))
        end_stage(w, CARL)
        await w.until(lambda: told(w, CARL) and len(told(w, BERT)) == 2)
        first, again = told(w, BERT)
        (load,) = told(w, CARL)
        assert first.command == again.command and isinstance(load.command, Load)
        w.stuck.clear()
        for name in (BERT, CARL):
            loading = w.book.node(name).assignment.revision
            w.say(name, StageFact(revision=loading, kind="loaded", line=LOADED))
        await w.until(lambda: w.clients[0].went_on)


async def test_a_ring_without_one_of_its_pcs_ends(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        w.planner.small = {ANNA, BERT, CARL}
        await serving_three(w)
        (ring,) = w.manager.rings
        w.say(BERT, HERE.model_copy(update={"name": BERT, "online": False}))
        await w.until(lambda: ring.state is RingState.ENDED)
        assert not w.clients[0].went_on


async def test_a_stage_that_has_lost_its_link_is_not_loaded_again(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        w.planner.small = {ANNA, BERT, CARL}
        await serving_three(w)
        (ring,) = w.manager.rings
        revision = w.book.node(ANNA).assignment.revision
        failed = {"kind": "failed", "message": "nothing was acknowledged", "about": BERT}
        w.say(ANNA, StageFact(revision=revision, **failed))
        await w.until(lambda: ring.state is RingState.ENDED)
        assert not w.clients[0].went_on and ring.stages[0].failure.about == BERT


async def test_a_stage_that_is_lost_again_at_once_ends_its_ring(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        w.planner.small = {ANNA, BERT, CARL}
        await serving_three(w)
        (ring,) = w.manager.rings
        end_stage(w, BERT)
        await w.until(lambda: w.clients[0].went_on)
        end_stage(w, BERT)
        await w.until(lambda: ring.state is RingState.ENDED)
        assert len(w.clients[0].went_on) == 1


SECOND = 5000.0
"""By the clock of the ring: its stages reported at 0 last."""


def report(w: World, name: str, number: int, **progress: float) -> None:
    stage = replace(REPORT, progress=StageProgress(reports=number, **progress))
    message = NodeHealth(incarnation="a" * 12, state="serving", uptime_s=1, stage=stage)
    w.book.take(name, message, SECOND)
    w.book.wake(w.book.node(name))


async def silent_bert(w: World, monkeypatch) -> RingSupervisor:
    """The ring, whose first stage hears nothing of its second, as the coordinator does."""
    monkeypatch.setattr(ring_watch, "SILENCE_PERIOD_S", 0.0)
    await serving_three(w)
    (ring,) = w.manager.rings
    ring.clock = lambda: SECOND
    for name in (ANNA, CARL):
        report(w, name, 1)
    await w.until(lambda: all(ring.stages[at].seen.reported_at == SECOND for at in (0, 2)))
    report(w, ANNA, 2, next_silent_s=1.5)
    await w.until(lambda: "stage_silent" in events(w, ring))
    return ring


def events(w: World, ring: RingSupervisor) -> list[str]:
    return [one.kind for one in w.service.events.after(0) if one.ring == ring.number]


async def test_a_stage_that_is_silent_is_noted_once_and_waited_for(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        ring = await silent_bert(w, monkeypatch)
        for number in range(3, 20):
            report(w, ANNA, number, next_silent_s=SILENT_LOST_S - 0.1)
            await asyncio.sleep(0)
        assert events(w, ring).count("stage_silent") == 1 and ring.state is RingState.SERVING
        assert w.told == []


async def test_a_stage_that_stays_silent_behind_a_lively_agent_is_loaded_again(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        ring = await silent_bert(w, monkeypatch)
        w.book.node(BERT).heard_at = SECOND
        report(w, ANNA, 3, next_silent_s=SILENT_LOST_S)
        await w.until(lambda: w.clients[0].went_on)
        load, join = told(w, BERT)
        assert isinstance(load.command, Load) and join.command.resume.fresh
        assert ring.state is RingState.SERVING and "stage_lost" in events(w, ring)
        assert w.manager.blame.failed_lately(BERT, time.monotonic())
        assert not w.manager.blame.reasons(time.monotonic()), "nobody rests for it"


async def test_a_pc_that_vanishes_ends_its_ring_before_its_heartbeats_are_missed(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        w.planner.small = {ANNA, BERT, CARL}
        ring = await silent_bert(w, monkeypatch)
        report(w, ANNA, 3, next_silent_s=SILENT_LOST_S)
        await w.until(lambda: ring.state is RingState.ENDED)
        assert not w.clients[0].went_on and ring.stages[1].failure is None
        assert "has been silent" in str(ring.error) and w.book.node(BERT).is_here


async def test_a_stage_that_computes_nothing_is_loaded_again(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        for number in (1, 2):
            report(w, BERT, number, stalled_s=100.0)
            for _ in range(5):
                await asyncio.sleep(0)
        await w.until(lambda: w.clients[0].went_on)
        assert [type(one.command) for one in told(w, BERT)] == [Load, GoOn]


async def test_a_ring_that_cannot_go_on_in_time_ends(monkeypatch):
    monkeypatch.setattr(recovery_state, "RECOVER_WITHIN_S", 0.01)
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        (ring,) = w.manager.rings
        w.stuck.add(BERT)
        end_stage(w, BERT)
        await w.until(lambda: ring.state is RingState.ENDED)
        assert not w.clients[0].went_on


async def test_what_a_ring_cached_falls_with_whoever_was_in_it_when_that_is_found_out(monkeypatch):
    """It has left long before; others have made KV of its rows."""
    monkeypatch.setattr(ring_supervisor, "PROGRESS_PERIOD_S", 0.0)
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        (client,), dora, emil = w.clients, "d" * 16, "e" * 16
        for leaving, coming in (BERT, dora), (CARL, emil):
            w.join(coming)
            before = len(client.went_on)
            w.say(leaving, HERE.model_copy(update={"name": leaving, "online": False}))
            await w.until(lambda before=before: len(client.went_on) > before)
            await w.until(lambda: len(w.serving) == 1)
        assert sorted(w.members()[0]) == [ANNA, dora, emil] and not client.cleared
        w.book.node(BERT).quarantined = "It contradicts two others."
        await w.until(lambda: client.cleared)
        for _ in range(20):
            await asyncio.sleep(0)
        assert client.cleared == 1, "once for all that it has left"
        w.join("f" * 16)
        w.book.drop(CARL)
        for _ in range(20):
            await asyncio.sleep(0)
        assert client.cleared == 1, "that of its time was cleared before"


async def test_what_a_ring_cached_falls_with_whoever_is_removed(monkeypatch):
    monkeypatch.setattr(ring_supervisor, "PROGRESS_PERIOD_S", 0.0)
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        w.join("d" * 16)
        w.say(BERT, HERE.model_copy(update={"name": BERT, "online": False}))
        await w.until(lambda: w.clients[0].went_on and w.serving)
        w.book.drop(BERT)
        await w.until(lambda: w.clients[0].cleared)
        for _ in range(20):
            await asyncio.sleep(0)
        assert w.clients[0].cleared == 1


async def test_the_log_of_an_outage_replays_to_the_same_instructions(monkeypatch, tmp_path):
    files = RecoveryFiles(tmp_path / "recoveries")
    async with world(monkeypatch, size=3, recoveries=files) as w:
        await serving_three(w)
        assert not files.folder.exists(), "a ring that loses nothing leaves no file"
        w.broken.add(CARL)
        end_stage(w, BERT)
        await w.until(lambda: any(isinstance(one.command, GoOn) for one in told(w, CARL)))
        w.broken.clear()
        await w.until(lambda: w.clients[0].went_on)
    (path,) = files.folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    found = replay(path.read_text().splitlines())
    assert found.difference is None and found.calls_count > 10
    changed = path.read_text().replace('"kv_tokens":64', '"kv_tokens":65', 1)
    assert replay(changed.splitlines()).difference is not None, "its stages are too small then"


def lose_one(files: RecoveryFiles, ring: int) -> None:
    state = RingRecovery(RingRoom(64), (Member("a", (0, 1)),))
    files.note_of(ring)(state, StagesLost((Loss(0),)), 0.0, ())


def test_logs_of_many_rings_are_kept_and_the_oldest_removed(tmp_path):
    files = RecoveryFiles(tmp_path)
    for ring in range(FILES_KEPT + 3):
        lose_one(files, ring)
        os.utime(next(tmp_path.glob(f"ring-{ring}-*")), (ring, ring))
    left = {int(path.name.split("-")[1]) for path in tmp_path.iterdir()}
    assert len(left) == FILES_KEPT and min(left) == 3


def test_a_log_that_cannot_be_written_costs_a_warning_and_no_ring(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    files = RecoveryFiles(tmp_path / "file")
    lose_one(files, 1)
    assert len(caplog.records) == 1 and "ring-1-" in caplog.text


async def test_a_ring_to_which_lenders_come_goes_on_with_all_of_it_on_other_terms(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        (client,) = w.clients
        health = {"incarnation": HERE.incarnation, "state": NodeState.SERVING, "uptime_s": 1}
        for tokens, name in ((1600, ANNA), (2000, BERT), (1600, CARL)):
            assert not client.went_on
            stage = asdict(replace(REPORT, offer=RoomOffer(1, tokens)))
            w.say(name, NodeHealth(**health, stage=stage))
            await asyncio.sleep(0.1)
        await w.until(lambda: client.went_on)
        commands = [one.command for name in (ANNA, BERT, CARL) for one in told(w, name)]
        assert all(isinstance(one, GoOn) for one in commands) and len(commands) == 3
        for command in commands:
            assert command.resume == Resume(((4, 7), (5, 30))), "nobody is fresh"
            assert (command.terms.kv_tokens_capacity, command.terms.tokens_most) == (1600, 1600)
            assert command.terms.requests_max == 1, "of 64 tokens that each has of its own"
        texts = [one.text for one in w.service.events.after(0)]
        assert any("lenders have brought room for 1,600 tokens" in text for text in texts)
