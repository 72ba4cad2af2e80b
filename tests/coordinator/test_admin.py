"""Orders of an operator, over a real registry and a node book."""

import asyncio
from types import SimpleNamespace

import pytest

from molink.control.identity import KeyPair
from molink.control.messages.joining import request_to_join
from molink.control.messages.payloads import NodeState, NodeWish
from molink.control.registry.registry import Registry
from molink.coordinator.admin import ClusterAdmin, UnknownNodeError
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.reports.cluster_report import service_report
from molink.coordinator.reports.node_reports import nodes_report
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.requests.serving_ring import ServingRing
from molink.errors import RingError, UserError
from molink.report.orders import CachesCleared, IntakeChanged, NodeOrdered
from tests.coordinator.examples import HERE, PROFILE
from tests.coordinator.upkeep.world import CARD, collect, request

NOW = 1000.0


@pytest.fixture
def registry(tmp_path):
    one = Registry.open(tmp_path)
    one.url = "https://127.0.0.1:8003"
    yield one
    one.close()


@pytest.fixture
def node(registry):
    """A member that is here and measured."""
    import time

    invite = registry.make_invite(3600, 5, "", time.time())
    wanted = request_to_join(invite, "anna", "1", time.time())
    return registry.admit(KeyPair.generate().public, wanted, time.time()).node


@pytest.fixture
def admin(registry, node):
    book = NodeBook()
    book.take(node.node_id, HERE, NOW)
    book.take(node.node_id, PROFILE, NOW)
    return ClusterAdmin(book, registry, ClusterService(CARD, service_report))


async def test_a_drained_node_may_not_serve_until_it_is_resumed(admin, node):
    entry = admin.book.nodes[node.node_id]
    assert entry.may_serve
    done = await admin.drain(node.node_id, "k1")
    assert done == NodeOrdered(node.node_id, "anna", "paused")
    assert not entry.may_serve and entry.state is NodeState.PAUSED
    (told,) = nodes_report([entry], {}, {}, {})
    assert told.drained and "operator has drained it" in told.reason
    assert (await admin.resume(node.node_id, "k1")).state == "standby"
    assert entry.may_serve


async def test_a_quarantined_node_may_not_serve_until_it_is_resumed(admin, node):
    entry = admin.book.nodes[node.node_id]
    admin.book.changed.clear()
    await admin.quarantine.put(node.node_id, "It lies.")
    assert not entry.may_serve and entry.state is NodeState.PAUSED and admin.book.changed.is_set()
    (told,) = nodes_report([entry], {}, {}, {})
    assert told.quarantined and told.reason == "It is quarantined: It lies."
    assert (await admin.resume(node.node_id, "k1")).state == "standby"
    assert entry.may_serve and not admin.book.quarantined


@pytest.mark.parametrize("kept", ["", "{", "5", "[1]"])
def test_a_setting_that_cannot_be_read_quarantines_nobody(admin, registry, kept):
    registry.set_setting("quarantined_nodes", kept)
    book = NodeBook()
    ClusterAdmin(book, registry, admin.service)
    assert book.quarantined == {}


async def test_the_managers_loop_is_woken(admin, node):
    admin.book.changed.clear()
    await admin.drain(node.node_id, "k1")
    assert admin.book.changed.is_set()


async def test_what_is_drained_outlasts_a_restart(admin, registry, node):
    await admin.drain(node.node_id, "k1")
    book = NodeBook()
    ClusterAdmin(book, registry, admin.service)
    book.take(node.node_id, HERE, NOW)
    assert book.nodes[node.node_id].drained
    await admin.resume(node.node_id, "k1")
    again = NodeBook()
    ClusterAdmin(again, registry, admin.service)
    assert again.drained == set()


async def test_orders_that_come_at_once_all_outlast_a_restart(admin, registry, node):
    others = ["b" * 16, "c" * 16]
    for other in others:
        admin.book.take(other, HERE, NOW)
    await asyncio.gather(*(admin.drain(one, "k1") for one in (node.node_id, *others)))
    book = NodeBook()
    ClusterAdmin(book, registry, admin.service)
    assert book.drained == {node.node_id, *others}


@pytest.mark.parametrize("kept", ["", "{", "5", '{"a": 1}', "[5, null]"])
def test_a_setting_that_cannot_be_read_drains_nobody(admin, registry, kept):
    registry.set_setting("drained_nodes", kept)
    book = NodeBook()
    ClusterAdmin(book, registry, admin.service)
    assert book.drained == set()


async def test_an_owner_who_leaves_leaves_though_drained(admin, node):
    await admin.drain(node.node_id, "k1")
    admin.book.take(node.node_id, NodeWish(wish="leave"), NOW)
    assert admin.book.nodes[node.node_id].wants == "leave"


async def test_a_removed_pc_is_no_member_and_its_invite_is_named(admin, registry, node):
    gone = await admin.remove(node.node_id, "k1")
    assert (gone.name, gone.devices) == ("anna", 1)
    assert (gone.invite, gone.invite_usable) == (node.invite_id, True)
    assert registry.member(node.node_id) is None
    with pytest.raises(UnknownNodeError):
        await admin.remove(node.node_id, "k1")


@pytest.mark.parametrize("order", ["drain", "resume", "remove"])
async def test_who_is_no_member_is_told(admin, order):
    with pytest.raises(UnknownNodeError):
        await getattr(admin, order)("z" * 16, "k1")


async def test_an_invite_lets_a_pc_in(admin, registry):
    made = await admin.invite(60.0, 2, "friends", "k1")
    assert made.command.startswith("molink agent join molink1-") and made.uses == 2
    assert [one.name for one in registry.list_invites()][-1] == "friends"
    with pytest.raises(UserError, match="1 to 1000 uses"):
        await admin.invite(60.0, 0, "", "k1")


async def test_a_paused_intake_refuses_new_requests_only(admin):
    assert admin.pause_intake(True, "k1") == IntakeChanged(True)
    assert "paused the intake" in admin.service.unready_reason
    assert admin.service.cluster().intake_paused
    with pytest.raises(RingError, match="paused the intake"):
        await collect(admin.service.generate(request()))
    admin.pause_intake(False, "k1")
    assert "paused" not in admin.service.unready_reason


async def test_all_rings_are_told_to_clear_their_caches(admin):
    told = []

    def lost():
        raise RingError("The link to the head is lost.")

    for number, clear in enumerate((lost, lambda: told.append("clear"))):
        client = SimpleNamespace(clear_cache=clear, unready_reason=None)
        admin.service.add(ServingRing(number, client, 1.0))
    assert admin.clear_caches("k1") == CachesCleared(2)
    assert told == ["clear"]
    assert [one.text for one in admin.service.events.after(0)] == [
        "The prefix caches are cleared, by order of k1"
    ]


async def test_nodes_of_serve_take_no_orders(admin, node):
    admin.book.local = True
    for order in (
        admin.drain(node.node_id, "k1"),
        admin.remove(node.node_id, "k1"),
        admin.invite(60.0, 1, "", "k1"),
    ):
        with pytest.raises(UserError, match="Pause the intake"):
            await order


async def test_orders_are_events_with_who_gave_them(admin, node):
    await admin.drain(node.node_id, "key-7")
    admin.pause_intake(True, "10.0.0.1")
    assert [(one.kind, one.node, one.text) for one in admin.service.events.after(0)] == [
        ("order", "anna", "anna is drained, by order of key-7"),
        ("order", "", "The intake is paused, by order of 10.0.0.1"),
    ]
