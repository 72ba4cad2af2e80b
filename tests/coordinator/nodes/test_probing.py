"""Whom each node is ordered to measure, and when."""

import asyncio
from dataclasses import dataclass, field

from molink.control.messages.payloads import PathMeasured, PathReport
from molink.coordinator.nodes.node import Node
from molink.coordinator.nodes.node_book import PATHS_MAX, NodeBook
from molink.coordinator.nodes.probing import (
    AGAIN_S,
    MOVE_PERIOD_S,
    MOVES_FREE,
    PEERS_MAX,
    QUIET_S,
    Probing,
    peers_of,
)
from molink.coordinator.reports.node_reports import nodes_report
from tests.coordinator.examples import HERE, PROFILE, STEPS

UNMEASURED = PROFILE.model_copy(update={"steps": None})
IDS = [letter * 16 for letter in "abcdefghijklmnopqrst"]


@dataclass
class Desk:
    """Orders a round, and keeps what was ordered."""

    book: NodeBook = field(default_factory=NodeBook)
    probing: Probing = field(default_factory=lambda: Probing("m", {"layers": 4}, b"s"))
    told: list = field(default_factory=list)

    async def publish(self, topic, node_id, order):
        self.told.append((node_id, order))

    def join(self, *ids, profile=UNMEASURED, incarnation="a" * 12):
        for one in ids:
            self.book.node(one).public_key = "k" * 40
            here = HERE.model_copy(update={"incarnation": incarnation})
            self.book.take(one, here, 0.0)
            self.book.take(one, profile, 0.0)

    def look(self, now):
        """What is ordered now: node to the peers that it shall measure."""
        self.told.clear()
        asyncio.run(self.probing.order_if_due(self, list(self.book), now))
        return {
            node_id: {peer.node_id for peer in order.peers} if order.coordinator_token else None
            for node_id, order in self.told
        }


def test_a_newcomer_times_a_layer_at_once_and_measures_ways_a_quiet_second_later():
    desk = Desk()
    desk.look(1000.0)
    desk.join(IDS[0], IDS[1])
    assert desk.look(1001.0) == {IDS[0]: None, IDS[1]: None}, "a layer's times only"
    assert desk.told[0][1].config == {"layers": 4}
    assert desk.look(1001.0 + QUIET_S - 0.01) == {}
    assert desk.look(1001.0 + QUIET_S) == {IDS[0]: {IDS[1]}, IDS[1]: {IDS[0]}}
    assert desk.look(1010.0) == {}


def test_an_agent_that_has_started_anew_is_told_of_the_model_again():
    desk = Desk()
    desk.look(1000.0)
    desk.join(IDS[0])
    desk.look(1001.0)
    desk.look(1003.0)
    desk.join(IDS[0], incarnation="b" * 12)
    assert desk.look(1004.0) == {IDS[0]: None}
    desk.join(IDS[0], profile=PROFILE, incarnation="c" * 12)
    assert desk.look(1005.0) == {}, "it has told its times"


def test_a_lonely_node_measures_the_way_to_the_coordinator():
    desk = Desk()
    desk.look(1000.0)
    desk.join(IDS[0], profile=PROFILE)
    desk.look(1001.0)
    assert desk.look(1002.0) == {IDS[0]: set()}
    assert desk.look(1003.0 + AGAIN_S) == {IDS[0]: set()}, "home lines change"


def test_who_was_asked_for_which_ways_is_known_before_and_after_the_order():
    desk = Desk()
    desk.look(1000.0)
    desk.join(*IDS, profile=PROFILE)
    node, nodes = desk.book.node(IDS[3]), list(desk.book)
    expected = {peer.node_id for peer in peers_of(nodes)[node.node_id]}
    assert len(expected) == PEERS_MAX
    assert desk.probing.asked_of(node, nodes) == expected
    desk.look(1001.0)
    assert desk.look(1002.0)[IDS[3]] == expected == desk.probing.asked_of(node, nodes)
    desk.book.drop(IDS[4])
    assert desk.probing.asked_of(node, list(desk.book)) == expected, "as it was ordered"


def test_only_those_whose_neighbours_are_others_now_measure_anew():
    desk = Desk()
    desk.look(1000.0)
    many = [a + b + "a" * 14 for a in "abcdef" for b in "abcdefgh"]
    desk.join(*many, profile=PROFILE)
    desk.look(1001.0)
    assert set(desk.look(1002.0)) == set(many)
    desk.join("azaaaaaaaaaaaaaa", profile=PROFILE)
    desk.look(1003.0)
    ordered = desk.look(1004.0)
    assert len(ordered) == PEERS_MAX + 1
    assert all("azaaaaaaaaaaaaaa" in {node, *peers} for node, peers in ordered.items())
    moved = PROFILE.model_copy(update={"addresses": ("10.0.0.9:1",)})
    desk.join(many[0], profile=moved)
    desk.look(1005.0)
    assert len(desk.look(1006.0)) == PEERS_MAX + 1
    assert len(desk.look(1002.0 + AGAIN_S)) == len(many) + 1, "home lines change"


def test_devices_of_one_pc_measure_each_other_in_however_large_a_cluster():
    nodes = [Node(f"n{number:02}") for number in range(40)]
    for number in (0, 17, 39):
        nodes[number].pc = "n00"
    for number in (0, 17, 39):
        peers = [peer.node_id for peer in peers_of(nodes)[nodes[number].node_id]]
        own = {"n00", "n17", "n39"} - {nodes[number].node_id}
        assert set(peers[:2]) == own and len(set(peers)) == PEERS_MAX
    assert [peer.node_id for peer in peers_of(nodes)["n38"]][:2] == ["n39", "n00"]


def test_the_cluster_tells_which_devices_are_of_one_pc():
    alone, further = Node("a", presence=HERE), Node("b", presence=HERE, pc="a")
    report = nodes_report([alone, further], {}, {}, {})
    assert [(node.id, node.pc) for node in report] == [("a", "a"), ("b", "a")]


def at(address):
    return PROFILE.model_copy(update={"addresses": (address,)})


def test_of_a_node_that_moves_only_its_own_paths_are_measured_anew():
    desk, (a, b, c) = Desk(), IDS[:3]
    desk.look(1000.0)
    desk.join(a, b, c, profile=at("10.0.0.1:1"))
    desk.look(1001.0)
    assert desk.look(1002.0) == {a: {b, c}, b: {a, c}, c: {a, b}}
    for one in (a, b, c):
        desk.book.take(one, PathReport(round=desk.probing.round, paths=()), 0.0)
    desk.join(c, profile=at("10.0.0.9:1"))
    desk.look(1003.0)
    assert desk.look(1004.0) == {a: {c}, b: {c}, c: {a, b}}


def test_paths_that_were_not_answered_are_ordered_again_with_the_next():
    """An agent gives up a round that is under way when it is ordered another one."""
    desk, (a, b, c) = Desk(), IDS[:3]
    desk.look(1000.0)
    desk.join(a, b, profile=at("10.0.0.1:1"))
    desk.look(1001.0)
    desk.look(1002.0)
    desk.join(c, profile=at("10.0.0.9:1"))
    desk.look(1003.0)
    assert desk.look(1004.0) == {a: {b, c}, b: {a, c}, c: {a, b}}


def test_a_node_that_moves_all_the_time_is_measured_every_ten_minutes():
    desk, (a, b, c) = Desk(), IDS[:3]
    desk.look(0.0)
    desk.join(a, b, profile=at("10.0.0.1:1"))
    orders = 0
    for second in range(3600):
        desk.join(c, profile=at(f"10.0.0.9:{1 + second}"))
        orders += b in desk.look(1.0 + second)
    assert orders <= 1 + MOVES_FREE + 3600 / MOVE_PERIOD_S


def test_one_that_comes_and_goes_does_not_keep_others_from_being_measured():
    desk, (a, b, c) = Desk(), IDS[:3]
    desk.look(1000.0)
    desk.join(a, b, c, profile=at("10.0.0.1:1"))
    found = {}
    for count in range(8):
        desk.book.take(c, HERE.model_copy(update={"online": bool(count % 2)}), 0.0)
        found |= desk.look(1001.0 + 0.5 * count)
    assert b in found[a] and a in found[b]


def test_measured_paths_are_kept_beside_newer_ones():
    book, paths = NodeBook(), []
    for number in range(PATHS_MAX + 9):
        to = f"{number:016}".translate(str.maketrans("0189", "abcd"))
        paths.append(PathMeasured(to=to, path="direct", rtt_ms=1, rate_mbps=9))
        book.take(IDS[0], PathReport(round=number, paths=(paths[-1],)), 0.0)
    node = book.node(IDS[0])
    assert len(node.paths) == PATHS_MAX and node.paths_round == PATHS_MAX + 8
    assert list(node.paths.values()) == paths[9:]


def test_who_has_timed_another_model_times_this_one():
    desk = Desk()
    desk.look(1000.0)
    other = STEPS.model_copy(update={"model": "another"})
    desk.join(IDS[0], profile=PROFILE.model_copy(update={"steps": other}))
    assert desk.look(1001.0) == {IDS[0]: None}
