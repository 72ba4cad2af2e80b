"""Rings take roles as they stand, and are paired where their stages are near and alike."""

from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest

from molink.control.messages.assignment import Assignment, Load
from molink.control.messages.payloads import NodeHealth, NodeState
from molink.coordinator.cell.pairs import pair_of
from molink.coordinator.cell.ring_pairs import AGAIN_S, RingPairs
from molink.coordinator.nodes.node import Node
from molink.coordinator.reports.cluster_report import NO_HEALTH
from molink.coordinator.requests.prefill_rings import RingRoles
from molink.coordinator.ring.agent_stage import AgentStage
from molink.stage_protocol.health import PairHealth
from molink.stage_protocol.messages import StageLoaded
from molink.stage_protocol.pairing import Pairing
from molink_scheduler.routing.roles import Role
from tests.coordinator.examples import HERE, WORK

TWO = Role.PREFILL, Role.DECODE
LOADED = StageLoaded(1, None, "cpu", "float32", 64, 0)
KEYS = iter(f"{one:02x}" * 32 for one in range(1, 256))


class Pcs:
    """PCs of a cluster, whose stages do what they are told at once."""

    def __init__(self, roles=TWO, **more):
        self.pairs = RingPairs(roles, draw_key=lambda: next(KEYS), next_number=100, **more)
        self.nodes, self.stages = {}, {}
        self.confirmed, self.now = set(), 0.0
        self.standing = ExitStack()
        self.sent = []

    def stage(self, name, layers=(0, 2), pc=None):
        node = Node(name, presence=HERE.model_copy(update={"name": name}), pc=pc or name)
        command = Load(work=replace(WORK, layers=layers))
        stage = AgentStage(node, Assignment(revision=0, command=command), ("", ""), None, LOADED)
        self.nodes[name], self.stages[name] = node, stage
        self.told(name, None)
        return stage

    def told(self, name, pair):
        stage = replace(NO_HEALTH, pair=pair)
        health = NodeHealth(
            incarnation=HERE.incarnation, state=NodeState.SERVING, uptime_s=1, stage=stage
        )
        self.nodes[name].health = health

    def near(self, one, other, rtt_ms=0.4, path="direct", network="10.0.0"):
        for here, there in ((one, other), (other, one)):
            address = f"{network}.{ord(there[0]) - 96}:7000"
            way = SimpleNamespace(path=path, address=address, rtt_ms=rtt_ms)
            self.nodes[here].paths[there] = way

    def confirm(self, one, other):
        self.near(one, other)
        self.confirmed.add(pair_of(one, other))

    def stand(self, ring, *stages):
        self.standing.enter_context(self.pairs.standing(ring, stages))

    def tick(self, obeys=True):
        """Orders of one look, which stages obey."""
        orders = self.pairs.orders(self.nodes, self.confirmed, self.now)
        self.sent.append(orders)
        if obeys:
            for name, order in orders.items():
                self.told(name, self._end(order.pairing))
        return orders

    def _end(self, pairing: Pairing | None):
        if pairing is None:
            return None
        assert pairing.link is not None
        number, sends = pairing.link.number, pairing.sends
        return PairHealth(number, sends, pairing.link.port if sends else 4000 + number, linked=True)

    def settle(self):
        """Look until nothing is sent any more."""
        while self.tick():
            pass

    def role(self, ring):
        return RingRoles(self.pairs.roles, self.pairs.place).role(SimpleNamespace(number=ring))


@pytest.fixture
def two():
    """Rings of one stage each on two PCs that are confirmed."""
    pcs = Pcs()
    pcs.stand(1, pcs.stage("anna"))
    pcs.stand(2, pcs.stage("ben"))
    pcs.confirm("anna", "ben")
    return pcs


def test_the_end_that_takes_is_told_first_then_the_other_where_it_is(two):
    (taker,) = two.tick().items()
    assert taker[0] == "ben" and not taker[1].pairing.sends and taker[1].ring == 2
    (giver,) = two.tick().items()
    link = giver[1].pairing.link
    assert giver[0] == "anna" and giver[1].pairing.sends and giver[1].ring == 1
    assert (link.host, link.port) == ("10.0.0.2", 4000 + link.number)
    assert link.key == taker[1].pairing.link.key and link.number == taker[1].pairing.link.number
    assert not two.tick()


def test_rings_have_roles_once_all_of_their_stages_are_linked(two):
    assert [two.role(one) for one in (1, 2)] == [Role.BOTH] * 2
    two.tick()
    assert "their stages are being linked" in two.pairs.trouble
    two.settle()
    assert [two.role(one) for one in (1, 2)] == [Role.PREFILL, Role.DECODE]
    assert two.pairs.trouble == ""


def test_a_cell_that_is_left_ends_both_ends_and_the_roles(two):
    two.settle()
    two.confirmed.clear()
    orders = two.tick()
    assert {name: order.pairing for name, order in orders.items()} == {"anna": None, "ben": None}
    assert [two.role(one) for one in (1, 2)] == [Role.BOTH] * 2
    assert "anna and ben are not confirmed as a pair of a cell" in two.pairs.trouble


def test_a_cell_that_is_confirmed_again_has_another_key(two):
    two.settle()
    before = two.pairs._links.copy()
    two.confirmed.clear()
    two.settle()
    two.confirm("anna", "ben")
    two.settle()
    (old,), (new,) = before.values(), two.pairs._links.values()
    assert old.key != new.key and new.number > old.number


def test_a_ring_that_has_ended_leaves_the_other_without_a_pair(two):
    two.settle()
    two.standing.close()
    two.stand(2, two.stages["ben"])
    assert two.tick()["ben"].pairing is None
    assert two.role(2) is Role.BOTH and "names 2 rings, and 1 can be made" in two.pairs.trouble


def test_an_order_that_was_lost_is_sent_again(two):
    first = two.tick(obeys=False)
    assert first and not two.tick(obeys=False)
    two.now += AGAIN_S
    assert two.tick(obeys=False) == first


def test_a_stage_that_was_started_anew_is_told_again_and_the_other_its_new_port(two):
    two.settle()
    number = two.nodes["ben"].health.stage.pair.number
    two.told("ben", None)
    assert set(two.tick(obeys=False)) == {"anna", "ben"}, "nobody listens where anna sends"
    two.told("ben", PairHealth(number, False, 5555, linked=True))
    assert two.tick()["anna"].pairing.link.port == 5555


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda pcs: pcs.confirmed.clear(), "not confirmed as a pair"),
        (lambda pcs: pcs.near("anna", "ben", 31.0), "31 ms apart"),
        (lambda pcs: pcs.near("anna", "ben", network="93.184.216"), "by a public address"),
        (lambda pcs: pcs.near("anna", "ben", network="100.64.0"), "by a public address"),
        (lambda pcs: pcs.near("anna", "ben", path="relay"), "does not reach ben directly"),
        (lambda pcs: setattr(pcs.pairs, "is_encrypted", False), "plain MQTT"),
    ],
)
def test_nothing_goes_over_links_that_are_no_lans(two, spoil, why):
    spoil(two)
    assert not two.tick()
    assert why in two.pairs.trouble and [two.role(1), two.role(2)] == [Role.BOTH] * 2


def test_rings_that_are_split_otherwise_are_not_paired():
    pcs = Pcs()
    pcs.stand(1, pcs.stage("anna"))
    pcs.stand(2, pcs.stage("ben", (0, 1)), pcs.stage("cleo", (1, 2)))
    pcs.confirm("anna", "ben")
    assert not pcs.tick()
    assert "its stages have layers 0-1, and those of the other 0-0, 1-1" in pcs.pairs.trouble


def test_each_stage_is_paired_with_the_one_of_its_layers():
    pcs = Pcs()
    pcs.stand(1, pcs.stage("anna", (0, 1)), pcs.stage("ben", (1, 2)))
    pcs.stand(2, pcs.stage("cleo", (0, 1)), pcs.stage("dora", (1, 2)))
    pcs.confirm("anna", "cleo")
    pcs.near("ben", "dora")
    assert not pcs.tick() and "ben and dora are not confirmed" in pcs.pairs.trouble
    pcs.confirm("ben", "dora")
    pcs.settle()
    links = {name: order.pairing.link for sent in pcs.sent for name, order in sent.items()}
    assert links["anna"].key == links["cleo"].key != links["ben"].key == links["dora"].key
    pcs.told("ben", PairHealth(links["ben"].number, True, links["ben"].port, why="it is late"))
    pcs.tick()
    assert "ben does not reach dora: it is late" in pcs.pairs.trouble
    assert pcs.role(1) is Role.BOTH


def test_two_devices_of_one_pc_need_nobody_s_word():
    pcs = Pcs()
    pcs.stand(1, pcs.stage("anna"))
    pcs.stand(2, pcs.stage("anna (2)", pc="anna"))
    pcs.settle()
    assert pcs.stages["anna"].health.pair.linked and pcs.role(2) is Role.DECODE
    assert pcs.sent[1]["anna"].pairing.link.host == "127.0.0.1"


def test_two_that_compute_prompts_come_to_one_door():
    pcs = Pcs((Role.PREFILL, Role.DECODE, Role.PREFILL))
    for ring, name in enumerate(("anna", "ben", "cleo"), 1):
        pcs.stand(ring, pcs.stage(name))
    pcs.confirm("anna", "ben")
    pcs.settle()
    assert [pcs.role(one) for one in (1, 2, 3)] == [Role.PREFILL, Role.DECODE, Role.BOTH]
    pcs.confirm("ben", "cleo")
    pcs.settle()
    assert [pcs.role(one) for one in (1, 2, 3)] == [Role.PREFILL, Role.DECODE, Role.PREFILL]
    numbers = {one.health.pair.number for one in pcs.stages.values()}
    assert len(numbers) == 1


def test_without_roles_nobody_is_told_anything():
    pcs = Pcs((Role.BOTH,))
    pcs.stand(1, pcs.stage("anna"))
    assert not pcs.tick() and pcs.pairs.trouble == ""
