"""Rings are built without nodes of another protocol, which are blamed for nothing."""

import asyncio

from molink.control.messages.payloads import NodeWish, StageFact
from molink.control.versions import PROTOCOL_IF_UNSTATED
from molink.coordinator.ring.stage_watch import StageFailure
from molink.wire.protocol import PROTOCOL_VERSION
from tests.coordinator.examples import HERE, PROFILE
from tests.coordinator.upkeep.world import world


def join(w, protocol, *names):
    for name in names:
        w.book.node(name).public_key = "k" * 40
        w.say(name, HERE.model_copy(update={"name": name, "protocol": protocol}))
        w.say(name, PROFILE)


async def test_a_ring_is_built_at_once_without_those_that_are_outdated(monkeypatch):
    async with world(monkeypatch, size=2, min_nodes=2, standbys=1) as w:
        join(w, PROTOCOL_IF_UNSTATED, "old")
        join(w, PROTOCOL_VERSION + 1, "new")
        w.join("a", "b")
        await w.until(lambda: w.members() == [["a", "b"]])
        assert {name for name, _ in w.told} == {"a", "b"}
        assert not {"old", "new"} & w.manager.service.standbys.keys()


async def test_users_read_that_pcs_are_to_be_updated_where_nobody_else_can_serve(monkeypatch):
    async with world(monkeypatch, size=2, min_nodes=2) as w:
        join(w, PROTOCOL_IF_UNSTATED, "one", "two")
        await w.until(lambda: "2 PCs" in w.service.progress)
        assert "update MoLink on that PC" in w.service.unready_reason
        w.join("a")
        await w.until(lambda: "1 of at least 2 PCs ready" in w.service.progress)
        assert "update MoLink on that PC" in w.service.unready_reason
        join(w, PROTOCOL_VERSION, "one")
        await w.until(lambda: w.serving)
        assert w.members() == [["a", "one"]]


async def test_nobody_is_blamed_for_a_neighbour_that_is_outdated(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        join(w, PROTOCOL_IF_UNSTATED, "old")
        w.join("a", "b")
        await w.until(lambda: w.serving)
        for failed in (("old", ""), ("old", "a"), ("a", "old")):
            w.manager._failed(StageFailure(failed[0], "lost", failed[1]))
        for index in range(20):
            w.say(
                "old",
                HERE.model_copy(
                    update={"protocol": PROTOCOL_IF_UNSTATED, "online": bool(index % 2)}
                ),
            )
            w.say("old", NodeWish(wish="serve"))
            await asyncio.sleep(0)
        now = asyncio.get_running_loop().time()
        assert not w.manager.blame.reasons(now)
        w.manager._failed(StageFailure("a", "its disk is full"))
        assert "disk" in w.manager.blame.reasons(now)["a"]


async def test_a_member_that_comes_back_as_another_build_is_replaced_and_not_planned(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b", "c")
        await w.until(lambda: w.members() == [["a", "b"]])
        changed = {"name": "b", "protocol": PROTOCOL_IF_UNSTATED, "incarnation": "b" * 12}
        w.say("b", HERE.model_copy(update=changed))
        w.say("b", StageFact(revision=0, kind="stopped"))
        await w.until(lambda: w.members() == [["a", "c"]])
        assert not w.manager.blame.reasons(asyncio.get_running_loop().time())
