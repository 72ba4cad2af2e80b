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
    set_successor,
    successor_of,
)
from molink.errors import UserError
from tests.control.registry.joining import NOW, key, make, request

BESIDE = Successor("/srv/next", 9000, 9003, ("new", "newest"))


@pytest.fixture
def other(tmp_path):
    opened = Registry.open(tmp_path / "other")
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
