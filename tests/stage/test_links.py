"""The links of a stage, from the moment they are opened."""

import queue

import pytest

from molink.stage.links import COORDINATOR_LOST_S, StageLinks
from molink.stage_protocol.messages import JoinRing, MovePath
from molink.transport.link.thread import LinkThread
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.link.facts import CAUTIOUS
from molink_scheduler.link.silence import LOST_S


@pytest.fixture
def links(monkeypatch):
    monkeypatch.setattr(LinkThread, "_measure", lambda self, link: None)
    both = [
        StageLinks.bind(name, "0.0.0.0", False, lambda fact: None) for name in ("stage", "peer")
    ]
    yield both
    for one in both:
        one._links.close()


def test_a_link_begins_from_a_cautious_guess(links):
    """Nothing was sent that could measure it."""
    stage, peer = links
    address = f"tcp://127.0.0.1:{peer.ports[0]}"
    stage.connect(JoinRing(1, address, address, RingTerms(64, None, (1,), None), None))
    for link in stage.reports():
        assert link.rate_mbps == pytest.approx(CAUTIOUS.rate_bytes_per_s * 8e-6)
        assert link.rtt_ms == pytest.approx(CAUTIOUS.rtt_s * 1e3)
    assert stage.next_rate_bytes_per_s == CAUTIOUS.rate_bytes_per_s


def test_a_coordinator_is_waited_for_longer_than_a_neighbour(links):
    """It may be starting anew."""
    stage, peer = links
    address = f"tcp://127.0.0.1:{peer.ports[0]}"
    stage.connect(JoinRing(1, address, address, RingTerms(64, None, (1,), None), None))
    waits = [link.sender.silence.lost_s for link in (stage._next, stage._coordinator)]
    assert waits == [LOST_S, COORDINATOR_LOST_S]


def test_a_neighbour_behind_the_relay_is_waited_for_as_long_as_the_coordinator(links):
    """Their relay is mostly the coordinator's, and starts anew with it."""
    stage, peer = links
    outcomes = queue.SimpleQueue()
    stage._report = outcomes.put
    port, terms = peer.ports[0], RingTerms(64, None, (1,), None)
    waits = []
    stage.connect(JoinRing(1, f"tcp://127.0.0.1:{port}", None, terms, None, next_relayed=True))
    waits.append(stage._next.sender.silence.lost_s)
    for host, relayed in (("127.0.0.2", False), ("127.0.0.3", True)):
        stage.handle(MovePath("next", f"tcp://{host}:{port}", relayed))
        assert outcomes.get(timeout=30).moved
        waits.append(stage._next.sender.silence.lost_s)
    assert waits == [COORDINATOR_LOST_S, LOST_S, COORDINATOR_LOST_S]
