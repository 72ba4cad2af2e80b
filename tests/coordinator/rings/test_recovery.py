"""A ring that loses a stage goes on: survivors are told to join again, and nothing else."""

import asyncio

from molink.control.messages.payloads import StageFact
from molink.coordinator.members.node_book import NodeState
from molink.coordinator.rings import recovery
from molink.coordinator.rings.ring_supervisor import RingState
from molink_scheduler.resume import Resume
from tests.coordinator.examples import HERE
from tests.coordinator.rings.world import World, collect, request, world

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
    return [one for one in given if one.join is not None or one.resume is None]


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
        assert anna.resume == Resume(listed, next_fresh=True)
        assert (load.join, load.resume, load.epoch) == (None, None, ring.epoch)
        assert join.resume == Resume(listed, fresh=True)
        assert carl.resume == Resume(listed), "the head, behind it, gets tokens and no rows"
        assert {one.epoch for one in (anna, join, carl)} == {ring.epoch}
        kinds = [one.kind for one in w.service.events.after(0) if one.ring == ring.number]
        assert kinds.count("ring_resumed") == 1 and "ring_ended" not in kinds


async def test_survivors_hold_their_links_before_anything_is_loaded(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        w.stuck.add(BERT)
        end_stage(w, BERT)
        await w.until(lambda: told(w, BERT))
        held = [(node, one.join, one.resume) for node, one in w.told if one.resume is not None]
        assert held == [(ANNA, None, Resume()), (CARL, None, Resume())]
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
        await w.until(lambda: any(one.join for one in told(w, CARL)))
        w.broken.clear()
        await w.until(lambda: w.clients[0].went_on)
        last = {name: told(w, name)[-1] for name in (ANNA, BERT, CARL)}
        assert [last[name].resume.fresh for name in (ANNA, BERT, CARL)] == [False, True, True]
        assert [last[name].resume.next_fresh for name in (ANNA, BERT, CARL)] == [True, True, False]
        assert len([one for one in told(w, BERT) if one.join is None]) == 1, "it had loaded"
        assert len([one for one in told(w, CARL) if one.join is None]) == 1


async def test_a_ring_without_one_of_its_pcs_ends(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        (ring,) = w.manager.rings
        w.say(BERT, HERE.model_copy(update={"name": BERT, "online": False}))
        await w.until(lambda: ring.state is RingState.ENDED)
        assert not w.clients[0].went_on


async def test_a_stage_that_has_lost_its_link_is_not_loaded_again(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        (ring,) = w.manager.rings
        revision = w.book.node(ANNA).assignment.revision
        failed = {"kind": "failed", "message": "nothing was acknowledged", "about": BERT}
        w.say(ANNA, StageFact(revision=revision, **failed))
        await w.until(lambda: ring.state is RingState.ENDED)
        assert not w.clients[0].went_on and ring.stages[0].failure.about == BERT


async def test_a_stage_that_is_lost_again_at_once_ends_its_ring(monkeypatch):
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        (ring,) = w.manager.rings
        end_stage(w, BERT)
        await w.until(lambda: w.clients[0].went_on)
        end_stage(w, BERT)
        await w.until(lambda: ring.state is RingState.ENDED)
        assert len(w.clients[0].went_on) == 1


async def test_a_ring_that_cannot_go_on_in_time_ends(monkeypatch):
    monkeypatch.setattr(recovery, "RECOVER_WITHIN_S", 0.01)
    async with world(monkeypatch, size=3) as w:
        await serving_three(w)
        (ring,) = w.manager.rings
        w.stuck.add(BERT)
        end_stage(w, BERT)
        await w.until(lambda: ring.state is RingState.ENDED)
        assert not w.clients[0].went_on
