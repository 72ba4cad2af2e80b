"""Who is let in, who is not, and what outlives a restart."""

import threading

import pytest

from molink.control.identity import KeyPair
from molink.control.messages.joining import JoinRequest, request_to_join
from molink.control.registry.database import MIGRATIONS
from molink.control.registry.registry import REVISIONS_RESERVED, Registry
from molink.control.registry.rules import EXPIRES_S_MAX, INVITES_MAX, NODES_MAX
from molink.control.sqlite_file import open_database
from molink.errors import JoinRefusedError, UserError
from tests.control.registry.joining import HOUR_S, NOW, URL, key, make, request


def uses_left(registry) -> list[int]:
    return [invite.uses_left for invite in registry.list_invites()]


def test_an_invite_names_the_coordinator_and_lets_a_node_in(registry):
    invite = make(registry)
    assert invite.url == URL and invite.coordinator_key == registry.coordinator.public
    member = registry.admit(key(1), request(invite), NOW)
    assert member.is_new and member.node.invite_id == invite.invite_id
    assert registry.list_nodes() == [member.node]
    assert registry.member(member.node.node_id) == member.node
    assert registry.pc_of_token(member.node.weights_token) == member.node.node_id
    assert uses_left(registry) == [4]


def test_everything_outlives_a_restart(registry, tmp_path):
    node = registry.admit(key(1), request(make(registry)), NOW).node
    pair, invites = registry.coordinator, registry.list_invites()
    given = [registry.next_revision() for _ in range(REVISIONS_RESERVED + 1)]
    assert given == list(range(1, REVISIONS_RESERVED + 2))
    registry.close()
    again = Registry.open(tmp_path, make=False)
    assert (again.coordinator, again.url) == (pair, URL)
    assert again.next_revision() > given[-1]
    assert (again.list_invites(), again.list_nodes()) == (invites, [node])
    again.close()


def test_the_file_is_private_and_holds_no_secret_of_an_invite(registry, tmp_path):
    secret = make(registry).secret.value
    assert len(list(tmp_path.iterdir())) == 4, "two logs, and the copy"
    assert all(file.stat().st_mode & 0o077 == 0 for file in tmp_path.iterdir())
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert secret not in content and secret.hex().encode() not in content


def test_a_node_that_asks_again_spends_no_use_and_keeps_its_password(registry):
    invite = make(registry, uses=1)
    first = registry.admit(key(1), request(invite), NOW).node
    for again in (request(invite, "renamed"), request(None, "renamed")):
        member = registry.admit(key(1), again, NOW + 9 * HOUR_S)
        assert not member.is_new
        assert (member.node.password, member.node.name) == (first.password, "renamed")
    assert uses_left(registry) == [0]


def test_a_member_that_asks_again_writes_nothing(registry):
    """On a full disk nobody new joins, and no member is kept out."""
    registry.admit(key(1), request(make(registry)), NOW)
    before = registry._connection.total_changes
    registry.admit(key(1), request(None), NOW)
    assert registry._connection.total_changes == before


def test_two_nodes_have_different_passwords(registry):
    invite = make(registry)
    one, other = (registry.admit(key(n), request(invite, f"pc{n}"), NOW).node for n in (1, 2))
    assert len({one.password, other.password, one.weights_token, other.weights_token}) == 4
    assert one.password not in repr(one) and one.weights_token not in repr(one)


def test_who_is_not_welcome_hears_why(registry, tmp_path):
    def refused(message: JoinRequest, why: str, now: float = NOW) -> None:
        with pytest.raises(JoinRefusedError, match=why):
            registry.admit(key(9), message, now)

    invite = make(registry, uses=1)
    refused(request(None), "not joined this cluster yet")
    refused(request(invite).model_copy(update={"invite_id": "0" * 16}), "does not know")
    refused(request(invite).model_copy(update={"invite_secret": "0" * 32}), "does not know")
    refused(request(invite), "expired", NOW + HOUR_S)
    registry.admit(key(1), request(invite), NOW)
    refused(request(invite), "uses of this invite are spent")
    registry.revoke(invite.invite_id, NOW)
    refused(request(invite), "withdrawn")
    assert len(registry.list_nodes()) == 1


def test_a_removed_node_stays_out_even_with_a_new_invite(registry):
    invite = make(registry)
    node = registry.admit(key(1), request(invite), NOW).node
    registry.remove_node(node.node_id, NOW)
    assert registry.member(node.node_id) is None
    assert registry.pc_of_token(node.weights_token) is None
    for message in (request(invite), request(None)):
        with pytest.raises(JoinRefusedError, match="removed from the cluster"):
            registry.admit(key(1), message, NOW)
    assert [one.removed for one in registry.list_nodes()] == [NOW]
    assert uses_left(registry) == [4]


def test_a_removed_node_that_is_forgotten_is_in_no_list_and_stays_out(registry):
    invite = make(registry)
    first, second = (
        registry.admit(key(number), request(invite, name), NOW).node
        for number, name in enumerate(["attic", "cellar"], start=1)
    )
    with pytest.raises(UserError, match="molink node remove attic comes first"):
        registry.forget_node("attic", NOW)
    registry.remove_node("attic", NOW)
    assert registry.forget_node("attic", NOW).node_id == first.node_id
    assert [one.node_id for one in registry.list_nodes()] == [second.node_id]
    gone = [one.node_id for one in registry.list_nodes(forgotten=True) if one.removed is not None]
    assert gone == [first.node_id], "a coordinator that runs shuts it out all the same"
    with pytest.raises(JoinRefusedError, match="removed from the cluster"):
        registry.admit(key(1), request(invite), NOW)
    with pytest.raises(UserError, match="No node 'attic' was removed"):
        registry.forget_node("attic", NOW)


def test_a_pc_that_has_left_is_forgotten_and_may_come_back_with_an_invite(registry):
    invite = make(registry)
    pc = registry.admit(key(1), request(invite), NOW).node
    device = registry.admit(seat(1), seat_request(), NOW, PC).node
    assert registry.forget_node(pc.name, NOW, {pc.node_id, device.node_id}).node_id == pc.node_id
    assert registry.list_nodes() == [] and registry.member(pc.node_id) is None
    assert len(registry.list_nodes(forgotten=True)) == 2, "a coordinator shuts both out"
    with pytest.raises(JoinRefusedError, match="has not joined this cluster yet"):
        registry.admit(key(1), request(None), NOW)
    again = registry.admit(key(1), request(invite), NOW)
    assert again.is_new and again.node.password != pc.password
    assert [one.node_id for one in registry.list_nodes()] == [pc.node_id]


def test_a_node_is_removed_by_its_name_if_only_one_has_it(registry):
    invite = make(registry)
    for number, name in enumerate(["attic", "twin", "other"], start=1):
        registry.admit(key(number), request(invite, name), NOW)
    registry._connection.execute("UPDATE nodes SET name = 'twin'  WHERE name = 'other'")  # Of old.
    assert registry.remove_node("attic", NOW).name == "attic"
    with pytest.raises(UserError, match="2 nodes are called 'twin'"):
        registry.remove_node("twin", NOW)
    with pytest.raises(UserError, match="No node 'attic' belongs"):
        registry.remove_node("attic", NOW)


def test_no_node_shields_itself_or_another_by_its_name(registry):
    invite = make(registry)
    attic, cellar = (
        registry.admit(key(number), request(invite, name), NOW).node
        for number, name in enumerate(["attic", "cellar"], start=1)
    )
    for name in (attic.node_id, cellar.node_id, "a" * 16):
        for asker in (key(2), key(3)):
            with pytest.raises(JoinRefusedError, match="may not look like a node's id"):
                registry.admit(asker, request(invite, name), NOW)
    for asker in (key(2), key(3)):
        with pytest.raises(JoinRefusedError, match="is called 'attic' already: join with --name"):
            registry.admit(asker, request(invite, "attic"), NOW)
    assert uses_left(registry) == [3], "who is refused has spent nothing"
    assert not registry.admit(key(1), request(None, "attic"), NOW).is_new
    # Of a registry from before: each is called as the other's id.
    for node, other in ((attic, cellar), (cellar, attic)):
        values = (other.node_id, node.node_id)
        registry._connection.execute("UPDATE nodes SET name = ? WHERE id = ?", values)
    assert registry.remove_node(attic.node_id, NOW).node_id == attic.node_id
    registry.admit(key(3), request(invite, "attic"), NOW)


def test_a_start_ends_the_invite_of_the_start_before(registry):
    other = make(registry, name="friends")
    first, second, third = (
        registry.make_invite(HOUR_S, 5, "", NOW, at_start=True) for _ in range(3)
    )
    states = {one.invite_id: one.state(NOW) for one in registry.list_invites()}
    assert states == {
        other.invite_id: "usable",
        first.invite_id: "revoked",
        second.invite_id: "revoked",
        third.invite_id: "usable",
    }


def test_the_two_addresses_are_apart(registry):
    registry.api_url = "http://10.0.0.1:8000"
    assert (registry.url, registry.api_url) == (URL, "http://10.0.0.1:8000")


PC = key(1)


def seat(number: int, of: int = 1) -> bytes:
    return KeyPair.of_secret(of.to_bytes(32, "big")).for_device(number).public


def seat_request(name="pc (2)") -> JoinRequest:
    return request_to_join(None, name, "0.1", 0.0)


def test_a_pc_vouches_for_its_further_devices_without_a_use(registry):
    pc = registry.admit(key(1), request(make(registry, uses=1)), NOW).node
    member = registry.admit(seat(1), seat_request(), NOW, PC)
    assert member.is_new and member.node.pc == pc.pc == pc.node_id
    assert (pc.is_pc, member.node.is_pc) == (True, False)
    assert member.node.invite_id == pc.invite_id and member.node.password != pc.password
    assert registry.member(member.node.node_id) == member.node
    again = registry.admit(seat(1), request(None, "renamed (2)"), NOW)
    assert (again.is_new, again.node.name, again.node.pc) == (False, "renamed (2)", pc.node_id)
    assert sorted(registry.devices_of(pc.pc)) == sorted([pc.node_id, member.node.node_id])
    registry.remove_node(pc.node_id, NOW)
    assert registry.devices_of(pc.pc) == []


def test_nobody_else_vouches_and_no_pc_for_too_many(registry, monkeypatch):
    monkeypatch.setattr("molink.control.registry.rules.DEVICES_MAX", 2)
    pc = registry.admit(key(1), request(make(registry)), NOW).node
    second = registry.admit(seat(1), seat_request(), NOW, PC).node
    assert second.pc == pc.node_id
    for voucher in (seat(1), key(7)):
        with pytest.raises(JoinRefusedError, match="does not know this PC"):
            registry.admit(seat(2), seat_request("pc (3)"), NOW, voucher)
    with pytest.raises(JoinRefusedError, match="2 devices at most"):
        registry.admit(seat(2), seat_request(), NOW, PC)
    assert len(registry.list_nodes()) == 2


@pytest.mark.parametrize("which", ["pc", "pc (2)", "id of the second"])
def test_a_pc_is_removed_with_all_its_devices_by_any_of_them(registry, which):
    invite = make(registry)
    pc = registry.admit(key(1), request(invite), NOW).node
    second = registry.admit(seat(1), seat_request(), NOW, PC).node
    stays = registry.admit(key(2), request(invite, "other"), NOW).node
    name = second.node_id if which == "id of the second" else which
    assert registry.remove_node(name, NOW).node_id == pc.node_id
    assert [one.removed for one in registry.list_nodes()] == [NOW, NOW, None]
    assert registry.member(stays.node_id) == stays
    with pytest.raises(JoinRefusedError, match="removed from the cluster"):
        registry.admit(seat(1), seat_request(), NOW, PC)
    with pytest.raises(JoinRefusedError, match="does not know this PC"):
        registry.admit(seat(2), seat_request(), NOW, PC)


def test_members_of_a_file_from_before_devices_are_pcs(tmp_path):
    path = tmp_path / "registry.db"
    older = open_database(path, MIGRATIONS[:1])
    older.execute("INSERT INTO nodes VALUES ('a', 'attic', 'k', 'p', 't', 1.0, 'i', NULL)")
    older.close()
    registry = Registry.open(tmp_path)
    (node,) = registry.list_nodes()
    assert node.pc == "a" and node.is_pc
    registry.close()


def test_an_invite_is_revoked_by_its_name_and_the_name_is_free_again(registry):
    first = make(registry, name="lan party")
    with pytest.raises(UserError, match="'lan party' already"):
        make(registry, name="lan party")
    assert registry.revoke("lan party", NOW).state(NOW) == "revoked"
    with pytest.raises(UserError, match="no usable invite 'lan party'"):
        registry.revoke("lan party", NOW)
    second = make(registry, name="lan party")
    assert registry.revoke("lan party", NOW).invite_id == second.invite_id != first.invite_id


@pytest.mark.parametrize(
    ("expires_s", "uses", "name"),
    [
        (0.0, 1, ""),
        (EXPIRES_S_MAX + 1, 1, ""),
        (float("nan"), 1, ""),
        (1.0, 0, ""),
        (1.0, NODES_MAX + 1, ""),
        (1.0, 1, "two\nlines"),
        (1.0, 1, "x" * 61),
    ],
)
def test_an_invite_that_cannot_be_is_one_sentence(registry, expires_s, uses, name):
    with pytest.raises(UserError):
        registry.make_invite(expires_s, uses, name, NOW)
    assert registry.list_invites() == []


def test_without_an_address_there_is_no_invite(tmp_path):
    registry = Registry.open(tmp_path)
    with pytest.raises(UserError, match="run molink up first, or give --url"):
        make(registry)
    assert registry.make_invite(1.0, 1, "", NOW, url="https://a/").url == "https://a"
    registry.close()


def test_invites_that_ended_long_ago_are_forgotten_and_usable_ones_are_limited(registry):
    make(registry, name="old")
    later = NOW + 40 * 24 * HOUR_S
    registry.make_invite(HOUR_S, 1, "new", later)
    assert [invite.name for invite in registry.list_invites()] == ["new"]
    registry._connection.execute("PRAGMA synchronous = OFF")
    for _ in range(INVITES_MAX - 1):
        registry.make_invite(HOUR_S, 1, "", later)
    with pytest.raises(UserError, match="revoke some"):
        registry.make_invite(HOUR_S, 1, "", later)


def test_a_full_cluster_lets_nobody_in(registry, monkeypatch):
    monkeypatch.setattr("molink.control.registry.rules.NODES_MAX", 1)
    invite = make(registry, uses=1)
    registry.admit(key(1), request(invite), NOW)
    with pytest.raises(JoinRefusedError, match="spent"):
        registry.admit(key(2), request(invite), NOW)
    other = registry.make_invite(HOUR_S, 1, "", NOW)
    with pytest.raises(JoinRefusedError, match=r"full with 1 nodes, .*molink node remove"):
        registry.admit(key(2), request(other), NOW)
    assert uses_left(registry) == [0, 1]


@pytest.mark.parametrize("shared", [True, False])
def test_of_many_that_join_at_once_only_as_many_as_uses_are_let_in(registry, tmp_path, shared):
    """From the threads of one process, and from processes that each opened the file."""
    invite = make(registry, uses=3)
    start, outcomes = threading.Barrier(8), []

    def join(number: int) -> None:
        own = registry if shared else Registry.open(tmp_path)
        start.wait()
        try:
            outcomes.append(own.admit(key(number), request(invite, f"pc{number}"), NOW).is_new)
        except JoinRefusedError:
            outcomes.append(None)

    threads = [threading.Thread(target=join, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcomes)) == ["None"] * 5 + ["True"] * 3
    assert uses_left(registry) == [0] and len(registry.list_nodes()) == 3
