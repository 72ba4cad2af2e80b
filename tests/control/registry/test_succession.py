"""Two registries of one cluster: who is known to both, who was moved, and who stands beside."""

import pytest

from molink.control.registry.registry import Registry
from molink.control.registry.succession import (
    MOVED,
    SUCCESSOR,
    Successor,
    move,
    moved_pcs,
    pcs_called,
    rest_is_left,
    set_moved,
    set_successor,
    successor_of,
    take_rest,
)
from molink.errors import JoinRefusedError, UserError
from tests.control.registry.joining import NOW, key, make, request

BESIDE = Successor("/srv/next", 9000, 9003, ("new", "newest"))


@pytest.fixture
def other(tmp_path):
    opened = Registry.open(tmp_path / "other")
    opened.url = "https://home:8003"
    yield opened
    opened.close()


def joined(registry, number, name, pc=None):
    pc_key = None if pc is None else key(pc)
    asked = request(make(registry) if pc is None else None, name=name)
    return registry.admit(key(number), asked, NOW, pc_key).node


def test_who_stands_beside_is_kept(registry):
    assert successor_of(registry) is None
    set_successor(registry, BESIDE)
    assert successor_of(registry) == BESIDE
    set_successor(registry, None)
    assert successor_of(registry) is None


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"folder": "x"}', '{"models": 3}'])
def test_what_cannot_be_read_is_nobody(registry, text):
    registry.set_setting(SUCCESSOR, text)
    registry.set_setting(MOVED, text)
    assert successor_of(registry) is None and moved_pcs(registry) == frozenset()


def test_a_moved_pc_is_known_there_with_all_devices_and_can_come_back(registry, other):
    pc, device = joined(registry, 1, "anna"), joined(registry, 2, "anna (2)", pc=1)
    ben = joined(registry, 3, "ben")
    assert pcs_called(registry, ["anna (2)"]) == {pc.node_id: "anna"}
    for _ in range(2):
        move(registry, other, [pc.node_id])
        assert moved_pcs(registry) == {pc.node_id} and not moved_pcs(other)
    assert other.list_nodes() == [pc, device]
    assert other.pc_of_token(device.weights_token) == pc.node_id
    move(other, registry, [pc.node_id])
    assert moved_pcs(other) == {pc.node_id} and not moved_pcs(registry)
    assert registry.list_nodes() == [pc, device, ben]


def test_who_is_no_member_cannot_be_moved(registry):
    joined(registry, 1, "anna")
    with pytest.raises(UserError, match=r"No PC here is called 'dora': molink node list"):
        pcs_called(registry, ["anna", "dora"])


def test_two_moves_at_once_lose_nobody(registry, other, monkeypatch):
    """What another command writes after this one has looked is kept."""
    pc, ben = joined(registry, 1, "anna"), joined(registry, 2, "ben")
    adopt = Registry.adopt

    def meanwhile(self, nodes):
        adopt(self, nodes)
        if pc.node_id not in moved_pcs(registry):
            set_moved(registry, [pc.node_id])

    monkeypatch.setattr(Registry, "adopt", meanwhile)
    move(registry, other, [ben.node_id])
    assert moved_pcs(registry) == {pc.node_id, ben.node_id}


def names(registry):
    return {one.name for one in registry.list_nodes() if one.removed is None}


def test_whoever_joined_or_was_removed_at_the_first_is_known_to_the_second(registry, other):
    for number, name in enumerate(("anna", "eve", "gone", "away"), 1):
        joined(registry, number, name)
    registry.remove_node("gone", NOW)
    registry.forget_node("gone", NOW)
    registry.forget_node("away", NOW, [one.node_id for one in registry.list_nodes()])
    other.adopt(registry.list_nodes(forgotten=True))
    other.forget_node("anna", NOW, [one.node_id for one in other.list_nodes()])
    set_moved(other, ["x"])
    registry.remove_node("eve", NOW)
    new = joined(registry, 7, "new")
    take_rest(registry, other)
    assert names(other) == {"anna", "new"}, "anna had left, and has come back at the first"
    assert not moved_pcs(other) and other.pc_of_token(new.weights_token) == new.node_id
    with pytest.raises(JoinRefusedError, match="removed"):
        other.admit(key(2), request(make(other), name="eve"), NOW)


def test_the_rest_is_taken_once_for_each_end_of_the_first(registry, other):
    set_moved(registry, [joined(registry, 1, "anna").node_id])
    joined(registry, 2, "ben")
    take_rest(registry, other)
    assert names(other) == {"ben"}, "who was moved is known since then"
    joined(registry, 3, "late")
    take_rest(registry, other)
    assert names(other) == {"ben"}
    rest_is_left(other)
    take_rest(registry, other)
    assert names(other) == {"ben", "late"}


def test_who_may_come_back_at_the_first_is_not_shut_out_by_the_second(registry, other):
    joined(registry, 1, "anna")
    registry.forget_node("anna", NOW, [one.node_id for one in registry.list_nodes()])
    take_rest(registry, other)
    assert other.admit(key(1), request(make(other), name="anna"), NOW).is_new
