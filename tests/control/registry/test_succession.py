"""Two registries of one cluster: who is known to both, who was moved, and who stands beside."""

import pytest

from molink.control.registry.registry import KEEP_ENDED_S, Registry
from molink.control.registry.succession import (
    MOVED,
    SUCCESSOR,
    Ports,
    Successor,
    follow,
    move,
    moved_pcs,
    pcs_called,
    rest_is_left,
    set_moved,
    set_successor,
    successor_of,
    take_ports,
    take_rest,
)
from molink.errors import JoinRefusedError, UserError
from tests.control.registry.joining import HOUR_S, NOW, URL, key, make, request

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


def test_what_is_done_to_invites_at_the_first_holds_at_the_second(registry, other):
    shown, gone = make(registry, uses=2), make(registry, name="party")
    for _ in range(2):
        follow(registry, other, NOW)
    assert other.list_invites() == registry.list_invites()
    assert other.admit(key(1), request(shown), NOW).is_new
    registry.revoke("party", NOW)
    registry.admit(key(2), request(shown, name="ben"), NOW)
    registry.admit(key(3), request(shown, name="cleo"), NOW)
    follow(registry, other, NOW)
    assert [one.uses_left for one in other.list_invites()] == [0, 5]
    with pytest.raises(JoinRefusedError, match="withdrawn"):
        other.admit(key(4), request(gone, name="dora"), NOW)


def test_an_invite_that_was_revoked_at_the_second_never_comes_back(registry, other):
    for name in ("early", "late"):
        make(registry, name=name, expires_s=KEEP_ENDED_S * 4)
    follow(registry, other, NOW)
    other.revoke("early", NOW)
    follow(registry, other, NOW)
    later = NOW + KEEP_ENDED_S + HOUR_S
    other.make_invite(HOUR_S, 1, "", later)
    follow(registry, other, later)
    assert [one.name for one in other.list_invites()] == ["late", ""], "what ended is forgotten"


def test_who_is_removed_at_the_first_is_refused_by_the_second(registry, other):
    eve, ben = joined(registry, 1, "eve"), joined(registry, 2, "ben")
    move(registry, other, [eve.node_id])
    registry.remove_node("eve", NOW)
    follow(registry, other, NOW)
    assert other.member(eve.node_id) is None and other.member(ben.node_id) is None
    with pytest.raises(JoinRefusedError, match="removed"):
        other.admit(key(1), request(name="eve"), NOW)


def test_ports_are_handed_on_from_each_to_the_next(registry, other):
    registry.api_url, registry.broker_port = "http://home:8000", 8001
    other.api_url, other.url, other.broker_port = "http://home:8010", "https://home:8013", 8011
    for _ in range(2):
        taken = take_ports(registry, other)
        assert taken.api == {8000, 8010} and taken.agents == {8003, 8013}
        assert taken.broker == {8001, 8011} and other.url == registry.url
    other.url = "https://home:8013"
    assert Ports.of(other) == taken, "also at its next start"
    registry.api_url, registry.url, registry.broker_port = "http://home:8020", URL, 8021
    assert take_ports(other, registry).api == {8000, 8010, 8020}
