"""Stages of a ring that stands are given leases, and others where lenders are gone for good."""

from dataclasses import replace
from itertools import pairwise

import pytest

from molink.control.messages.topics import LEASE
from molink.control.registry.registry import Registry
from molink.coordinator.cell.echo_links import MEASURE_EVERY_S
from molink.coordinator.cell.standing import (
    AGAIN_MOST_S,
    AGAIN_S,
    NOT_TAKEN,
    TAKE_AGAIN_S,
    TAKEN_WITHIN_S,
    TELL_AGAIN_S,
)
from molink.coordinator.ring.agent_stage import AgentStage
from molink.stage_protocol.health import RoomOffer
from molink.stage_protocol.messages import StageLoaded
from molink_scheduler.cell.ledger import STEADY_S
from tests.coordinator.cell.fake_pcs import MB, WIFI, WIRE, FakePc
from tests.coordinator.cell.test_lending import Cluster
from tests.coordinator.upkeep.world import LOADED, REPORT

RING = 3


class Serving(Cluster):
    """Cluster with a ring that stands, whose stages take leases at once, or not at all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.now, self.is_taken = 1000.0, True
        self.given, self.offered, self.serving = [], {}, []
        self.lending.driver.started_at = self.now

    async def publish(self, topic, node_id, order):
        if topic is not LEASE:
            await super().publish(topic, node_id, order)
            return
        assert order.ring == RING
        self.given.append((node_id, order))
        if self.is_taken:
            self.offers(node_id, 400 + order.tokens)
            for pc in self.pcs.values():
                if order.lease.lease in pc.allowed:
                    pc.held[order.lease.lease] = 1000 * order.tokens

    def hear(self) -> None:
        super().hear()
        for node_id, offer in getattr(self, "offered", {}).items():
            node = self.book.nodes[node_id]
            health = replace(REPORT, offer=offer)
            node.health = node.health.model_copy(update={"stage": health})

    def offers(self, node_id: str, tokens: int) -> None:
        number = self.offered[node_id].number + 1 if node_id in self.offered else 1
        self.offered[node_id] = RoomOffer(number, tokens)
        self.hear()

    def serves(self, node_id: str, tokens: int = 400, **work) -> AgentStage:
        stage = self.stage(node_id, kv_tokens=tokens, **work)
        stage.loaded = StageLoaded(**LOADED | {"kv_tokens_capacity": tokens})
        self.serving.append(stage)
        return stage

    async def run(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            self.hear()
            await self.lending._tick(self.now)
            await self.lending._standing.look(RING, self.serving, self.now)

    def lender_of(self, node_id: str) -> str:
        (one,) = [one for one in self.lending.driver.grants.values() if one.wanted.pc == node_id]
        return one.lender


@pytest.fixture
def ring(tmp_path):
    """The cluster with Anna, whose stage has 400 of the 2,000 tokens that a request may have, and
    Ben, who lends nothing yet."""
    registry = Registry.open(tmp_path)
    registry.url = "https://127.0.0.1:8003"
    cluster = Serving(registry)
    anna, ben = cluster.join("anna", FakePc()), cluster.join("ben", FakePc())
    cluster.near(anna, ben)
    cluster.serves(anna)
    yield cluster, anna, ben
    registry.close()


async def test_a_stage_that_stands_is_given_a_lease_once_its_cell_is_confirmed(ring):
    cluster, anna, ben = ring
    cluster.pcs[ben].room_bytes = 4 * MB
    await cluster.run(5)
    assert not cluster.given
    await cluster.orders.confirm(anna, ben, "k1")
    await cluster.run(10)
    ((node_id, order),) = cluster.given
    assert (node_id, order.tokens, order.lease.places_bytes) == (anna, 1600, 1_600_000)
    assert cluster.pcs[ben].keys[order.lease.lease] == order.lease.key
    await cluster.run(200)
    assert len(cluster.given) == 1, "it has what it lacked"


async def test_a_stage_that_stands_is_given_a_lease_once_a_lender_has_memory(ring):
    cluster, anna, ben = ring
    await cluster.orders.confirm(anna, ben, "k1")
    await cluster.run(30)
    assert not cluster.given and "lends anything now" in cluster.lending.refused[anna]
    cluster.pcs[ben].room_bytes = 4 * MB
    await cluster.run(30)
    assert len(cluster.given) == 1 and anna not in cluster.lending.refused


async def test_another_lender_takes_the_place_of_one_that_is_gone_for_good(ring):
    cluster, anna, ben = ring
    carl = cluster.join("carl", FakePc())
    cluster.near(anna, carl)
    cluster.pcs[anna].echo_ms = {ben: WIRE, carl: WIRE}
    for other in (ben, carl):
        await cluster.orders.confirm(anna, other, "k1")
        cluster.pcs[other].room_bytes = 4 * MB
    await cluster.run(20)
    first = cluster.lender_of(anna)
    cluster.offers(anna, 400)
    cluster.pcs[first].take_back()
    await cluster.run(30)
    assert cluster.lender_of(anna) == ({ben, carl} - {first}).pop()
    assert [node_id for node_id, _ in cluster.given] == [anna, anna]


async def test_a_lender_whose_agent_comes_back_lends_again_once_it_is_steady(ring):
    cluster, anna, ben = ring
    await cluster.orders.confirm(anna, ben, "k1")
    cluster.pcs[ben].room_bytes = 4 * MB
    await cluster.run(20)
    cluster.pcs[ben].restart()
    cluster.offers(anna, 400)
    await cluster.run(STEADY_S / 2)
    assert len(cluster.given) == 1
    await cluster.run(STEADY_S)
    assert len(cluster.given) == 2 and cluster.lending.driver.grants


async def test_an_owner_who_lends_less_takes_a_lease_back_and_a_smaller_one_is_given(ring):
    cluster, anna, ben = ring
    await cluster.orders.confirm(anna, ben, "k1")
    cluster.pcs[ben].room_bytes = 4 * MB
    await cluster.run(20)
    cluster.pcs[ben].take_back()
    cluster.pcs[ben].room_bytes = 1 * MB
    cluster.offers(anna, 400)
    await cluster.run(20)
    (first, _), (second, order) = cluster.given
    assert first == second == anna
    assert 0 < order.lease.places_bytes <= MB and order.tokens == 992


async def recalled(cluster, ben: str, left_bytes: int, seconds: float = 10.0) -> None:
    """Ben's owner wants all but so much back of what he lends."""
    cluster.pcs[ben].room_bytes = left_bytes
    await cluster.run(seconds)


async def test_an_owner_who_lends_less_is_given_a_part_back(ring):
    cluster, anna, ben = ring
    await cluster.orders.confirm(anna, ben, "k1")
    cluster.pcs[ben].room_bytes = 4 * MB
    await cluster.run(20)
    await recalled(cluster, ben, MB)
    (_, first), (_, less) = cluster.given
    assert (less.lease.lease, less.tokens) == (first.lease.lease, 992)
    assert cluster.offered[anna].kv_tokens == 400 + 992
    assert [size for size in cluster.pcs[ben].allowed.values() if size] == [992_000]
    (grant,) = cluster.lending.driver.grants.values()
    assert (grant.tokens, grant.lan.places_bytes) == (992, 992_000)
    await cluster.run(30)
    assert len(cluster.given) == 2, "nothing else is wanted"


async def test_an_owner_who_pauses_is_given_all_back_before_the_lease_ends(ring):
    cluster, anna, ben = ring
    await cluster.orders.confirm(anna, ben, "k1")
    cluster.pcs[ben].room_bytes = 4 * MB
    await cluster.run(20)
    lease = cluster.given[0][1].lease.lease
    await recalled(cluster, ben, 0)
    assert [(one.lease.lease, one.tokens) for _, one in cluster.given] == [
        (lease, 1600),
        (lease, 0),
    ]
    assert cluster.offered[anna].kv_tokens == 400
    assert lease not in cluster.pcs[ben].allowed and not cluster.lending.driver.grants


async def test_a_lease_counts_until_its_lender_says_that_no_more_lies_there(ring):
    cluster, anna, ben = ring
    await cluster.orders.confirm(anna, ben, "k1")
    cluster.pcs[ben].room_bytes = 4 * MB
    await cluster.run(20)
    cluster.is_taken = False
    await recalled(cluster, ben, MB, 3 * TELL_AGAIN_S)
    assert [one.tokens for _, one in cluster.given] == [1600, 992, 992, 992]
    (grant,) = cluster.lending.driver.grants.values()
    assert grant.tokens == 1600
    cluster.pcs[ben].take_back()  # It has had its time.
    await cluster.run(3)
    assert not cluster.lending.driver.grants


async def test_another_process_on_the_node_is_told_the_lease_as_well(ring):
    cluster, anna, ben = ring
    await cluster.orders.confirm(anna, ben, "k1")
    cluster.pcs[ben].room_bytes = 4 * MB
    await cluster.run(20)
    (stage,) = cluster.serving
    stage.loaded = replace(stage.loaded)
    cluster.offers(anna, 400)
    await cluster.run(5)
    assert [one.lease.lease for _, one in cluster.given] == [cluster.given[0][1].lease.lease] * 2


async def told_at(cluster, seconds: int) -> list[tuple[int, int]]:
    """Seconds at which a stage was told a lease, each with the lease's number."""
    times, before = [], len(cluster.given)
    for second in range(seconds):
        await cluster.run(1)
        times += [(second, one.lease.lease) for _, one in cluster.given[before:]]
        before = len(cluster.given)
    return times


async def test_a_lease_that_fails_at_the_start_is_tried_again_soon_and_then_more_seldom(ring):
    cluster, anna, ben = ring
    await cluster.orders.confirm(anna, ben, "k1")
    cluster.is_taken, cluster.pcs[ben].room_bytes = False, 4 * MB
    times = await told_at(cluster, 300)
    first = times[0]
    same = [second - first[0] for second, lease in times if lease == first[1]]
    assert same == [0, TAKE_AGAIN_S, 3 * TAKE_AGAIN_S, 7 * TAKE_AGAIN_S]
    begun = list({lease: second for second, lease in reversed(times)}.values())[::-1]
    gaps = [after - before - TAKEN_WITHIN_S for before, after in pairwise(begun)]
    assert len(gaps) >= 2
    for number, gap in enumerate(gaps):
        assert min(AGAIN_MOST_S, AGAIN_S * 2**number) <= gap <= AGAIN_S * 2**number + 10
    assert anna not in cluster.lending.refused or cluster.lending.refused[anna] == NOT_TAKEN
    cluster.is_taken = True
    await cluster.run(AGAIN_MOST_S + TAKEN_WITHIN_S)
    assert cluster.offered[anna].kv_tokens == 2000


async def test_a_lease_that_a_stage_does_not_take_ends(ring):
    cluster, anna, ben = ring
    await cluster.orders.confirm(anna, ben, "k1")
    cluster.is_taken, cluster.pcs[ben].room_bytes = False, 4 * MB
    await cluster.run(2)
    while cluster.lending.driver.grants or not cluster.given:
        await cluster.run(1)
    await cluster.run(1)
    assert not any(cluster.pcs[ben].allowed.values())
    assert cluster.lending.refused[anna] == NOT_TAKEN


async def test_a_stage_with_a_lender_in_its_own_pc_is_given_none(ring):
    cluster, anna, ben = ring
    cluster.serving.clear()
    cluster.serves(anna, kv_host_tokens=100)
    await cluster.orders.confirm(anna, ben, "k1")
    cluster.pcs[ben].room_bytes = 4 * MB
    await cluster.run(30)
    assert not cluster.given


async def test_a_ring_that_ends_gives_back_what_it_was_given(ring):
    cluster, anna, ben = ring
    await cluster.orders.confirm(anna, ben, "k1")
    cluster.pcs[ben].room_bytes = 4 * MB
    await cluster.run(20)
    cluster.serving.clear()
    cluster.lending.give_back([anna])
    await cluster.run(3)
    assert not any(cluster.pcs[ben].allowed.values()) and not cluster.lending.driver.grants


async def test_room_may_come_as_long_as_the_operator_lets_somebody_lend_it(ring):
    cluster, anna, ben = ring
    assert not cluster.lending.may_lend(cluster.serving), "nobody is named"
    await cluster.orders.confirm(anna, ben, "k1")
    assert cluster.lending.may_lend(cluster.serving)
    await cluster.orders.forget(anna, ben, "k1")
    assert not cluster.lending.may_lend(cluster.serving)
    cluster.serving.clear()
    cluster.serves(anna, kv_host_tokens=100)
    assert cluster.lending.may_lend(cluster.serving), "its own PC's lender is started anew"


async def test_wifi_that_falls_out_each_minute_neither_lends_nor_has_rings_begin_anew(ring):
    """Two hours of it. Its minutes and those of the measurements drift, so that once it may seem
    steady for two of them."""
    cluster, anna, ben = ring
    await cluster.orders.confirm(anna, ben, "k1")
    cluster.pcs[ben].room_bytes = 4 * MB
    await cluster.run(20)
    assert len(cluster.given) == 1
    lost = 0
    for minute in range(120):
        cluster.pcs[anna].echo_ms[ben] = WIFI if minute % 2 else WIRE
        before = len(cluster.lending.driver.grants)
        await cluster.run(MEASURE_EVERY_S)
        now = len(cluster.lending.driver.grants)
        lost += before - now if now < before else 0
        if not now:
            cluster.offers(anna, 400)
    assert len(cluster.given) == lost <= 2
    cluster.pcs[anna].echo_ms[ben] = WIRE
    await cluster.run(2 * STEADY_S + 2 * MEASURE_EVERY_S)
    assert len(cluster.given) == lost + 1, "a wire is steady"


async def test_a_lender_whose_agent_comes_and_goes_each_minute_costs_one_lease(ring):
    cluster, anna, ben = ring
    await cluster.orders.confirm(anna, ben, "k1")
    cluster.pcs[ben].room_bytes = 4 * MB
    await cluster.run(20)
    for _ in range(30):
        cluster.pcs[ben].restart()
        cluster.offers(anna, 400)
        await cluster.run(60)
    assert len(cluster.given) == 1
    await cluster.run(STEADY_S + 60)
    assert len(cluster.given) == 2
