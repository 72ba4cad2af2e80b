"""Stages of an experiment send by the order that it names, the product's by their own."""

import pytest

from molink.stage import links
from molink.stage_protocol.messages import JoinRing
from molink.transport.link.thread import LinkThread
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.link.priority_queues import PriorityQueues
from molink_sim.network.baseline_queues import FairQueue
from tools.experiments.harness.policy_ring import send_by


def queue_of_a_link():
    """What a stage puts between itself and the next, here its own port."""
    stage = links.StageLinks.bind("stage", "127.0.0.1", False, lambda fact: None)
    try:
        address = f"tcp://127.0.0.1:{stage.ports[0]}"
        stage.connect(JoinRing(1, address, None, RingTerms(64), None))
        return stage._next.sender.queue
    finally:
        stage._links.close()


def test_the_links_of_a_stage_take_the_order_that_is_named(monkeypatch):
    monkeypatch.setattr(LinkThread, "_measure", lambda self, link: None)
    monkeypatch.setattr(links, "PriorityQueues", PriorityQueues)  # What it was, afterwards.
    assert type(queue_of_a_link()) is PriorityQueues
    send_by("fair")
    assert type(queue_of_a_link()) is FairQueue


def test_an_order_that_nobody_knows_is_refused_before_a_stage_begins():
    with pytest.raises(ValueError, match="molink, just_in_time, paper, quantum, fifo, fair"):
        send_by("lifo")
