"""How a node ends that is not let in, and when a stage is ended although a ring counts on it."""

import pytest

from molink.errors import JoinRefusedError
from molink_agent.daemon.device_node import RECLAIM_S, ReclaimDeadline
from tests.agent.daemon.agents import agent_with_two_nodes
from tests.agent.daemon.test_membership import answering


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
