"""What GET /cluster says of a node, and why it does what it does."""

from dataclasses import replace

import pytest

from molink.control.messages.payloads import NodeWish
from molink.coordinator.nodes.node import Node
from molink.coordinator.reports.cluster_report import NO_HEALTH, ring_report, service_report
from molink.coordinator.reports.node_reports import UNHEARD, nodes_report
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.requests.serving_ring import ServingRing
from molink.coordinator.ring.client import RingClient
from molink.coordinator.upkeep.ring_health import progress_sentence
from molink.coordinator.upkeep.settings import NOBODY_HANDED
from molink.report.drafts import DrafterReport
from molink.stage_protocol.health import DrafterHealth
from tests.coordinator.examples import HERE, PROFILE
from tests.golden.values_cluster import CARD, LinksDouble, a_ring

STOPPED = HERE.model_copy(update={"online": False, "reason": "The agent was stopped."})
PAUSED = NodeWish(wish="pause", reason="On battery.")
LEAVES = NodeWish(wish="leave", reason="Its owner has taken it out of the cluster.")


@pytest.mark.parametrize(
    ("presence", "wish", "reason"),
    [
        (HERE, None, "would slow the ring"),
        (HERE, PAUSED, "On battery."),
        (STOPPED, PAUSED, "The agent was stopped."),
        (STOPPED, None, "The agent was stopped."),
        (STOPPED, LEAVES, "Its owner has taken it out of the cluster."),
    ],
)
def test_the_reason_is_that_of_the_state(presence, wish, reason):
    node = Node("a" * 16, presence=presence, profile=PROFILE, wish=wish)
    (entry,) = nodes_report([node], {node.node_id: "would slow the ring"}, {}, {})
    assert entry.reason == reason


def test_who_is_suspended_is_told_why():
    node = Node("a" * 16, presence=STOPPED, profile=PROFILE, suspended="It says far more.")
    (entry,) = nodes_report([node], {node.node_id: "would slow the ring"}, {}, {})
    assert (entry.reason, entry.state) == ("It says far more.", "lost")


def test_who_was_lost_without_a_word_has_a_reason():
    node = Node("a" * 16, presence=HERE, profile=PROFILE, lost=True)
    (entry,) = nodes_report([node], {}, {}, {})
    assert (entry.reason, entry.state) == (UNHEARD, "lost")


def test_who_is_gone_is_not_who_never_came():
    assert "No PC has joined yet" in progress_sentence([], [], min_nodes=1)
    assert progress_sentence([], [], min_nodes=1, nobody=NOBODY_HANDED) == NOBODY_HANDED
    gone = [Node("a" * 16, presence=STOPPED), Node("b" * 16, presence=STOPPED)]
    said = progress_sentence(gone, [], min_nodes=1)
    assert said == "None of the 2 PCs that joined before is here now."
    measured = [Node("a" * 16, presence=HERE, profile=PROFILE)]
    said = progress_sentence(measured, [], min_nodes=1)
    assert said == "1 PC ready; a plan is being made."


def test_drafters_are_told_by_what_came_of_them():
    """Of the head alone, and of those who have guessed: by rounds, not by the guesses that nobody
    could judge."""
    ring = a_ring()
    drafters = (
        DrafterHealth("copy"),
        DrafterHealth("small", rounds=40, drafts=120, tried=100, right=80),
        DrafterHealth("unjudged", rounds=1, drafts=4),
    )
    for stage in ring.stages:
        stage.health = replace(stage.health or NO_HEALTH, drafters=())
    ring.stages[0].health = replace(ring.stages[0].health, drafters=drafters)
    ring.stages[1].health = replace(ring.stages[1].health, drafters=drafters[1:2])
    told = ring_report(RingClient(CARD, ring, LinksDouble(), lambda: None)).drafters
    assert told == (
        DrafterReport("small", 40, acceptance=0.8, width=3.0, tokens_per_round=3.0),
        DrafterReport("unjudged", 1, acceptance=None, width=4.0, tokens_per_round=1.0),
    )


@pytest.mark.parametrize("without", [{"prefix_cache": False}, {"state_slots": 3}])
def test_a_ring_that_caches_nothing_shows_no_cache(without):
    """As where layers keep states, and no slot is left for snapshots."""
    ring = a_ring()
    assert ring_report(RingClient(CARD, ring, LinksDouble(), lambda: None)).prefix_cache
    terms = replace(ring.terms, ring=replace(ring.terms.ring, **without))
    ring = replace(ring, terms=terms)
    assert ring_report(RingClient(CARD, ring, LinksDouble(), lambda: None)).prefix_cache is None


def test_a_drafter_that_rings_serve_without_is_said_once():
    ring, says = a_ring(), "The ring serves without the drafter small: its words are others."
    ring.stages[0].loaded = replace(ring.stages[0].loaded, drafter_trouble=says)
    client = RingClient(CARD, ring, LinksDouble(), lambda: None)
    service = ClusterService(CARD, service_report)
    service.rings = [ServingRing(number, client, 1.0) for number in (1, 2)]
    assert service_report(service, trouble=("", "The disk is full.")).trouble == (
        "The disk is full.",
        says,
    )
    client.ring = a_ring()
    assert service_report(service).trouble == ()
