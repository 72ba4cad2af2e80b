"""How a node ends that is not let in, and when a stage is ended although a ring counts on it."""

import asyncio
from types import SimpleNamespace

import pytest

from molink.control.messages.payloads import (
    AssignedWork,
    CoordinatorPresence,
    NodeState,
    ShadowOrder,
    WeightsSource,
)
from molink.control.versions import PROTOCOL_IF_UNSTATED
from molink.errors import JoinRefusedError
from molink.wire.protocol import PROTOCOL_VERSION
from molink_agent.daemon import device_node
from molink_agent.daemon.device_node import (
    ABANDONED_S,
    RECLAIM_S,
    RECLAIM_URGENT_S,
    UNCLAIMED_S,
    AbandonedDeadline,
    ReclaimDeadline,
    UnclaimedDeadline,
)
from tests.agent.daemon.agents import agent_with_two_nodes
from tests.agent.daemon.test_membership import answering
from tests.control.assignments import loading


async def test_a_cluster_that_takes_no_further_devices_still_has_the_first(tmp_path, monkeypatch):
    agent = agent_with_two_nodes(tmp_path)
    answering(monkeypatch, JoinRefusedError("not joined yet"))
    await agent.nodes[1].run()
    assert agent.nodes[1].refused == "not joined yet"

    async def refuse():
        raise JoinRefusedError("removed")

    agent.first.admission.kept = None
    monkeypatch.setattr(type(agent.first.admission), "enter", lambda self: refuse())
    with pytest.raises(JoinRefusedError, match="removed"):
        await agent.first.run()


def test_a_ring_has_its_time_from_the_moment_that_the_owner_wants_the_pc():
    deadline = ReclaimDeadline()
    assert not deadline.is_due(0.0, wanted=True, alone=False)
    assert not deadline.is_due(RECLAIM_S, wanted=True, alone=False)
    assert deadline.is_due(RECLAIM_S + 1, wanted=True, alone=False)


def test_an_owner_who_lends_again_starts_it_anew():
    deadline = ReclaimDeadline()
    deadline.is_due(0.0, wanted=True, alone=False)
    assert not deadline.is_due(RECLAIM_S + 1, wanted=False, alone=True)
    assert not deadline.is_due(RECLAIM_S + 2, wanted=True, alone=False)


def test_without_a_coordinator_nobody_is_waited_for():
    assert ReclaimDeadline().is_due(0.0, wanted=True, alone=True)


def test_who_plays_does_not_wait_for_a_ring():
    deadline = ReclaimDeadline()
    assert not deadline.is_due(0.0, wanted=True, alone=False, is_urgent=True)
    assert deadline.is_due(RECLAIM_URGENT_S + 1, wanted=True, alone=False, is_urgent=True)
    assert not deadline.is_due(RECLAIM_URGENT_S + 1, wanted=True, alone=False)


def test_an_idle_stage_without_a_coordinator_is_ended_after_ten_minutes():
    deadline = AbandonedDeadline()
    assert not deadline.is_due(0.0, alone=True, steps=7)
    assert not deadline.is_due(ABANDONED_S - 1, alone=True, steps=7)
    assert deadline.is_due(ABANDONED_S, alone=True, steps=7)


@pytest.mark.parametrize("seen", [{"alone": False, "steps": 7}, {"alone": True, "steps": 8}])
def test_a_stage_that_computes_or_a_coordinator_that_is_back_starts_it_anew(seen):
    deadline = AbandonedDeadline()
    deadline.is_due(0.0, alone=True, steps=7)
    assert not deadline.is_due(ABANDONED_S, **seen)
    assert not deadline.is_due(ABANDONED_S + 1, alone=True, steps=seen["steps"])
    assert not deadline.is_due(2 * ABANDONED_S - 1, alone=True, steps=seen["steps"])
    assert deadline.is_due(2 * ABANDONED_S + 2, alone=True, steps=seen["steps"])


WORK = AssignedWork(layers=(0, 2), device="cpu", dtype="auto", weights=WeightsSource(model="m"))


async def test_stages_wait_for_a_coordinator_that_was_started_anew(tmp_path):
    node = agent_with_two_nodes(tmp_path).first
    node.stage.assignment = loading(WORK, revision=7, session="first")
    for online, session in ((True, "first"), (False, "second")):
        await node._handle(CoordinatorPresence(online=online, session=session))
        assert not node._is_unclaimed
    await node._handle(CoordinatorPresence(online=True, session="second"))
    assert node.stage.busy and not node._is_unclaimed, "nobody is heard without a connection"
    node.session.client = SimpleNamespace(connected=True)
    assert node._is_unclaimed
    node.stage.assignment = loading(WORK, revision=8, session="second")
    assert not node._is_unclaimed


async def _for_ever(self, membership):
    await asyncio.Event().wait()


async def test_the_coordinator_is_asked_anew_once_its_broker_is_long_gone(tmp_path, monkeypatch):
    """Another one may have taken over, with a broker of its own."""
    monkeypatch.setattr(device_node, "ASK_ANEW_S", 0.0)
    monkeypatch.setattr(device_node, "LOOK_S", 0.0)
    node = agent_with_two_nodes(tmp_path).first
    monkeypatch.setattr(type(node), "_run_membership", _for_ever)

    async def again(self):
        return "another broker"

    monkeypatch.setattr(type(node.admission), "again", again)
    async with asyncio.timeout(10):
        assert await node._member_until_refused(None) == "another broker"


@pytest.mark.parametrize("kept", ["connected", "busy"])
async def test_who_is_connected_or_computes_does_not_ask_anew(tmp_path, monkeypatch, kept):
    monkeypatch.setattr(device_node, "ASK_ANEW_S", 0.0)
    monkeypatch.setattr(device_node, "LOOK_S", 0.0)
    node = agent_with_two_nodes(tmp_path).first
    if kept == "busy":
        node.stage.assignment = loading(WORK, revision=7)
    else:
        node.session.client = SimpleNamespace(connected=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await node._watch_broker(asyncio.Event())


def test_a_stage_is_let_go_that_nobody_claims():
    deadline = UnclaimedDeadline()
    assert not deadline.is_due(5.0, unclaimed=True)
    assert not deadline.is_due(5.0 + UNCLAIMED_S - 1, unclaimed=True)
    assert not deadline.is_due(5.0 + UNCLAIMED_S, unclaimed=False)
    assert not deadline.is_due(6.0 + UNCLAIMED_S, unclaimed=True)
    assert deadline.is_due(6.0 + 2 * UNCLAIMED_S, unclaimed=True)


@pytest.mark.parametrize(
    ("speaks", "where"),
    [
        ((PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 2), "on that PC"),
        ((PROTOCOL_IF_UNSTATED, PROTOCOL_IF_UNSTATED), "on the coordinator's machine"),
    ],
)
async def test_an_owner_reads_who_is_to_update_and_nothing_is_computed(tmp_path, speaks, where):
    node = agent_with_two_nodes(tmp_path).first
    oldest, newest = speaks
    told = {"online": True, "session": "s", "protocol_min": oldest, "protocol": newest}
    await node._handle(CoordinatorPresence(**told))
    assert node.state is NodeState.OUTDATED and node._reported_state() is NodeState.PAUSED
    assert node.reports.wish.wish == "pause"
    assert f"update MoLink {where}" in node.reports.wish.reason
    await node._handle(loading(WORK, protocol=newest))
    await node._handle(ShadowOrder(revision=2, epoch=1, protocol=newest))
    assert node.stage.assignment is None
    spoken = {"protocol_min": PROTOCOL_VERSION, "protocol": PROTOCOL_VERSION + 1}
    await node._handle(CoordinatorPresence(**(told | spoken)))
    assert node.state is not NodeState.OUTDATED
    assert "update" not in node.reports.wish.reason


async def test_a_coordinator_whose_connection_breaks_is_not_outdated(tmp_path):
    """The broker then tells its will, which holds no numbers; its stages go on."""
    node = agent_with_two_nodes(tmp_path).first
    numbers = {"protocol_min": PROTOCOL_VERSION, "protocol": PROTOCOL_VERSION}
    await node._handle(CoordinatorPresence(online=True, session="s", **numbers))
    await node._handle(CoordinatorPresence(online=False, session="s"))
    assert node.state is not NodeState.OUTDATED
    assert "update" not in node.reports.wish.reason


async def test_an_older_coordinator_s_stages_go_on(tmp_path):
    node = agent_with_two_nodes(tmp_path).first
    node.stage.assignment = loading(WORK, revision=7)
    await node._handle(CoordinatorPresence(online=True, session="second"))
    assert node.stage.busy


async def test_its_memory_is_free_once_nobody_has_come_for_long(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(device_node.time, "monotonic", lambda: now)
    node = agent_with_two_nodes(tmp_path).first
    node.reports.set_device("cuda:0")
    node.stage.assignment = loading(WORK, revision=7)
    await node.refresh(limits_changed=False)
    now = ABANDONED_S - 1
    await node.refresh(limits_changed=False)
    assert node.stage.busy
    now = ABANDONED_S
    await node.refresh(limits_changed=False)
    assert not node.stage.busy and node.stage.state == "standby"
