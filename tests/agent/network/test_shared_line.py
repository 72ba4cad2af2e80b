"""Nodes of one PC reach each other within it, and share its line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.control.messages.payloads import PeerAddress, StageLink
from molink_agent.network.shared_line import LocalPorts, SharedUplink

ANNA, SECOND, BEN = "a" * 16, "b" * 16, "c" * 16
KEY = "k" * 40


def link(to: str, port_name: str = "ring") -> StageLink:
    return StageLink(
        to=to,
        public_key=KEY,
        addresses=("10.0.0.1:7",),
        port_name=port_name,
        relay="relay.example:1",
    )


@pytest.fixture
def ports():
    made = LocalPorts()
    made.add_node(ANNA)
    made.add_node(SECOND)
    return made


def test_a_link_to_another_device_stays_within_the_pc(ports):
    assert ports.nearer_link(link(SECOND)) == link(SECOND)
    ports.listens(SECOND, "ring", "127.0.0.1:5000")
    near = ports.nearer_link(link(SECOND))
    assert (near.addresses, near.relay) == (("127.0.0.1:5000", "10.0.0.1:7"), "")
    assert ports.nearer_link(link(SECOND, "requests")) == link(SECOND, "requests")
    assert ports.nearer_link(link(BEN)) == link(BEN)


def test_a_measurement_of_another_device_stays_within_the_pc(ports):
    ports.listens(SECOND, "peer", "127.0.0.1:5001")
    peer = PeerAddress(node_id=SECOND, public_key=KEY, addresses=())
    assert ports.nearer_peer(peer).addresses == ("127.0.0.1:5001",)
    stranger = peer.model_copy(update={"node_id": BEN})
    assert ports.nearer_peer(stranger) == stranger


def test_a_stage_sends_outside_unless_all_its_links_stay_within_the_pc(ports):
    assert not ports.leads_outside([link(SECOND)])
    assert ports.leads_outside([link(BEN)])
    assert ports.leads_outside([link(ANNA), link("coordinator")])


def test_only_nodes_that_send_out_of_the_pc_have_a_share():
    changes = []
    uplink = SharedUplink(
        lambda: 100.0,
        lambda: changes.append((uplink.share_bytes_per_s(ANNA), uplink.share_bytes_per_s(SECOND))),
    )
    uplink.set_sending(ANNA, outside=False)
    assert changes == [] and uplink.share_bytes_per_s(ANNA) is None
    uplink.set_sending(SECOND, outside=True)
    uplink.set_sending(ANNA, outside=True)
    uplink.set_sending(ANNA, outside=True)
    uplink.set_sending(SECOND, outside=False)
    uplink.set_sending(SECOND, outside=False)
    assert changes == [(None, 100.0), (50.0, 50.0), (100.0, None)]


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans())))
def test_all_shares_together_are_never_more_than_the_cap(steps):
    uplink, nodes = SharedUplink(lambda: 100.0, lambda: None), [c * 16 for c in "abdef"]
    sending = set()
    for number, outside in steps:
        uplink.set_sending(nodes[number], outside=outside)
        (sending.add if outside else sending.discard)(nodes[number])
        shares = {node: uplink.share_bytes_per_s(node) for node in nodes}
        assert {node for node, share in shares.items() if share is not None} == sending
        assert sum(share or 0 for share in shares.values()) <= 100.0 + 1e-6


def test_without_a_cap_there_are_no_shares():
    uplink = SharedUplink(lambda: None, lambda: None)
    uplink.set_sending(ANNA, outside=True)
    assert uplink.share_bytes_per_s(ANNA) is None
