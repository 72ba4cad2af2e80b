"""Who measures whom."""

from molink.runtime.cluster.cluster_plan import ClusterPlan
from molink.runtime.cluster.node_book import Node
from molink.runtime.cluster.nodes_report import nodes_report
from molink.runtime.cluster.probing import PEERS_MAX, peers_of
from tests.runtime.cluster.examples import HERE


def test_devices_of_one_pc_measure_each_other_in_however_large_a_cluster():
    nodes = [Node(f"n{number:02}") for number in range(40)]
    for number in (0, 17, 39):
        nodes[number].pc = "n00"
    for number in (0, 17, 39):
        peers = [peer.node_id for peer in peers_of(nodes[number], nodes)]
        own = {"n00", "n17", "n39"} - {nodes[number].node_id}
        assert set(peers[:2]) == own and len(set(peers)) == PEERS_MAX
    assert [peer.node_id for peer in peers_of(nodes[38], nodes)][:2] == ["n39", "n00"]


def test_the_cluster_tells_which_devices_are_of_one_pc():
    alone, further = Node("a", presence=HERE), Node("b", presence=HERE, pc="a")
    report = nodes_report([alone, further], ClusterPlan(()), {})
    assert [(node["id"], node["pc"]) for node in report] == [("a", "a"), ("b", "a")]
