"""Stages that borrow as they load, and an operator's word, over a real registry and a node book."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from molink.control.identity import KeyPair
from molink.control.messages.assignment import Assignment, Load
from molink.control.messages.cell import CellOrder
from molink.control.messages.joining import request_to_join
from molink.control.messages.payloads import NodeHealth, NodeState, PathMeasured, PathReport
from molink.control.messages.topics import CELL
from molink.control.registry.registry import Registry
from molink.coordinator.cell import lending as lending_module
from molink.coordinator.cell.lending import CellLending
from molink.coordinator.cell.orders import CellOrders, UnknownPcError
from molink.coordinator.cell.pairs import ConfirmedPairs
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.planning.model_planner import KvFigures
from molink.coordinator.ring.agent_stage import AgentStage
from molink.errors import UserError
from molink.serving.events import EventLedger
from tests.coordinator.cell.fake_pcs import MB, WIRE, FakePc
from tests.coordinator.examples import HERE, PROFILE, WORK

FIGURES = KvFigures(token_bytes=1000, row_bytes=16_000, tokens_longest=2000, slower_s=0.03)


@dataclass
class Cluster:
    """Members of a registry, as they are heard, and what their PCs are told; also the hub."""

    registry: Registry
    book: NodeBook = field(default_factory=NodeBook)
    pcs: dict[str, FakePc] = field(default_factory=dict)
    lending: CellLending = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.lending = CellLending(self, ConfirmedPairs(self.registry), lambda node, work: FIGURES)
        self.orders = CellOrders(self.lending, EventLedger())

    def join(self, name: str, pc: FakePc) -> str:
        invite = self.registry.make_invite(3600, 5, "", time.time())
        wanted = request_to_join(invite, name, "1", time.time())
        node_id = self.registry.admit(KeyPair.generate().public, wanted, time.time()).node.node_id
        presence = HERE.model_copy(update={"name": name})
        self.book.take(node_id, presence, 0.0)
        self.book.take(node_id, PROFILE, 0.0)
        self.pcs[node_id] = pc
        self.hear()
        return node_id

    def near(self, one: str, other: str, rtt_ms: float = 0.4) -> None:
        for here, there in ((one, other), (other, one)):
            path = {"path": "direct", "address": "10.0.0.2:7000", "rate_mbps": 900.0}
            measured = PathMeasured(to=there, rtt_ms=rtt_ms, **path)
            self.book.take(here, PathReport(round=1, paths=(measured,)), 0.0)
            self.pcs[here].echo_ms[there] = WIRE

    def hear(self) -> None:
        for node_id, pc in self.pcs.items():
            health = {"incarnation": HERE.incarnation, "state": NodeState.STANDBY, "uptime_s": 1}
            self.book.take(node_id, NodeHealth(**health, cell=pc.facts), 0.0)

    @property
    def client(self) -> "Cluster":
        return self

    async def publish(self, topic, node_id: str, order: CellOrder) -> None:
        assert topic is CELL
        self.pcs[node_id].take(order)
        self.hear()

    def stage(self, node_id: str, **work) -> AgentStage:
        node = self.book.nodes[node_id]
        load = Load(work=replace(WORK, **({"kv_tokens": 400} | work)))
        return AgentStage(node, Assignment(revision=0, command=load), ("", ""), None)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(lending_module, "TICK_S", 0.001)
    monkeypatch.setattr(lending_module, "BORROW_WITHIN_S", 2.0)
    registry = Registry.open(tmp_path)
    registry.url = "https://127.0.0.1:8003"
    yield Cluster(registry)
    registry.close()


@pytest.fixture
def two(cluster):
    """The cluster of two near PCs, with both ids: Anna, who lends nothing, and Ben."""
    anna = cluster.join("anna", FakePc())
    ben = cluster.join("ben", FakePc(room_bytes=4 * MB))
    cluster.near(anna, ben)
    return cluster, anna, ben


async def lent(cluster: Cluster, *stages: AgentStage) -> None:
    """Let stages borrow while the cluster's cells are driven."""
    async with asyncio.TaskGroup() as group:
        driving = group.create_task(cluster.lending.run())
        await cluster.lending.borrow(stages)
        driving.cancel()


async def test_a_stage_that_lacks_room_loads_with_a_lease_of_a_confirmed_pc(two):
    cluster, anna, ben = two
    await cluster.orders.confirm("anna", ben, "k1")
    stage = cluster.stage(anna)
    await lent(cluster, stage)
    lease = stage.work.lan_lease
    assert stage.work.kv_host_tokens == 1600 and lease.places_bytes == 1_600_000
    assert (lease.host, lease.port) == ("10.0.0.2", 4000)
    assert cluster.pcs[ben].keys[lease.lease] == lease.key
    pcs = {one.name: one for one in cluster.orders.report().pcs}
    assert (pcs["anna"].borrowed_bytes, pcs["anna"].lent_bytes) == (1_600_000, 0)
    assert (pcs["ben"].borrowed_bytes, pcs["ben"].lent_bytes) == (0, 1_600_000)
    assert pcs["ben"].lendable_bytes == 4 * MB


async def test_nothing_is_borrowed_before_the_operator_has_confirmed_the_pair(two):
    cluster, anna, ben = two
    stage = cluster.stage(anna)
    before = stage.work
    await lent(cluster, stage)
    assert stage.work == before and not cluster.pcs[ben].serves and not cluster.pcs[ben].keys


async def test_a_stage_with_room_for_the_longest_request_borrows_nothing(two):
    cluster, anna, ben = two
    await cluster.orders.confirm(anna, ben, "k1")
    stage = cluster.stage(anna, kv_tokens=2000)
    await lent(cluster, stage)
    assert stage.work.lan_lease is None


async def test_what_a_ring_s_other_stages_have_no_room_for_is_not_borrowed(two):
    cluster, anna, ben = two
    await cluster.orders.confirm(anna, ben, "k1")
    carl = cluster.join("carl", FakePc())
    stage, other = cluster.stage(anna), cluster.stage(carl, kv_tokens=800)
    await lent(cluster, stage, other)
    assert stage.work.kv_host_tokens == 400 and other.work.lan_lease is None


async def test_memory_of_the_own_pc_comes_first_where_it_holds_as_much(two):
    cluster, anna, ben = two
    await cluster.orders.confirm(anna, ben, "k1")
    cluster.pcs[anna].own_room_bytes = 10 * MB
    cluster.hear()
    stage = cluster.stage(anna, kv_host_tokens=1600)
    await lent(cluster, stage)
    assert (stage.work.lan_lease, stage.work.kv_host_tokens) == (None, 1600)


async def test_a_lender_that_refuses_leaves_the_stage_as_it_was_planned(two):
    cluster, anna, ben = two
    cluster.pcs[ben].refuses = True
    await cluster.orders.confirm(anna, ben, "k1")
    stage = cluster.stage(anna)
    await lent(cluster, stage)
    assert (stage.work.lan_lease, stage.work.kv_host_tokens) == (None, 0)


async def test_a_ring_that_ends_gives_its_leases_back(two):
    cluster, anna, ben = two
    await cluster.orders.confirm(anna, ben, "k1")
    await lent(cluster, cluster.stage(anna))
    cluster.lending.give_back([anna])
    await cluster.lending._tick(time.monotonic())
    assert not any(cluster.pcs[ben].allowed.values())


async def test_a_coordinator_that_starts_anew_knows_pairs_and_claims_leases(two):
    cluster, anna, ben = two
    await cluster.orders.confirm(anna, ben, "k1")
    stage = cluster.stage(anna)
    await lent(cluster, stage)
    cluster.start()
    cluster.lending.adopt([stage])
    await cluster.lending._tick(time.monotonic())
    assert list(cluster.lending.driver.grants) == [stage.work.lan_lease.lease]
    later = time.monotonic() + 200
    await cluster.lending._tick(later)
    assert stage.work.lan_lease.lease in cluster.pcs[ben].allowed


async def test_near_pcs_are_shown_before_they_are_confirmed_and_their_state_after(two):
    cluster, anna, ben = two
    await cluster.lending._tick(time.monotonic())
    (pair,) = cluster.orders.report().pairs
    assert (pair.confirmed, pair.rtt_ms, pair.echo_ms) == (False, 0.4, None)
    assert pair.reason == "The operator has not confirmed it."
    await cluster.orders.confirm(anna, ben, "k1")
    assert cluster.orders.report().pairs[0].reason.startswith("Its echoes are not measured")
    for step in range(6):
        await cluster.lending._tick(time.monotonic() + step)
    (pair,) = cluster.orders.report().pairs
    assert (pair.confirmed, pair.near, pair.reason) == (True, True, "")
    assert pair.echo_ms == pytest.approx(0.2)
    assert "by order of k1" in cluster.orders.events.after(0)[-1].text


async def test_far_pcs_are_no_pair_that_is_shown(cluster):
    one, other = cluster.join("anna", FakePc()), cluster.join("ben", FakePc())
    cluster.near(one, other, rtt_ms=30.0)
    assert cluster.orders.report().pairs == ()


async def test_forgotten_pcs_lend_nothing_and_are_forgotten_once(two):
    cluster, anna, ben = two
    await cluster.orders.confirm(anna, ben, "k1")
    await lent(cluster, cluster.stage(anna))
    await cluster.orders.forget("ben", "anna", "k1")
    await cluster.lending._tick(time.monotonic())
    assert not cluster.pcs[ben].serves and not cluster.pcs[ben].allowed
    with pytest.raises(UserError, match="are not confirmed: `molink cell list`"):
        await cluster.orders.forget(anna, ben, "k1")
    cluster.start()
    assert cluster.lending.pairs.pairs == frozenset()


@pytest.mark.parametrize(
    ("pcs", "error", "says"),
    [
        (("anna", "anna"), UserError, "are one PC"),
        (("anna", "nobody"), UnknownPcError, "No PC here has the id or name 'nobody'"),
    ],
)
async def test_an_order_that_names_no_two_pcs_is_refused(two, pcs, error, says):
    with pytest.raises(error, match=says):
        await two[0].orders.confirm(*pcs, "k1")


async def test_keys_do_not_travel_over_a_plain_broker(two):
    cluster, anna, ben = two
    await cluster.orders.confirm(anna, ben, "k1")
    cluster.lending.is_encrypted = False
    with pytest.raises(UserError, match="plain MQTT"):
        await cluster.orders.confirm(anna, ben, "k1")
    stage = cluster.stage(anna)
    with suppress(TimeoutError):
        await lent(cluster, stage)
    assert stage.work.lan_lease is None and not cluster.pcs[ben].keys
    assert "plain MQTT" in cluster.orders.report().pairs[0].reason
