"""PCs that go over to another coordinator: drained first, shut out once they hold nothing."""

from types import SimpleNamespace

import pytest

from molink.control.messages.assignment import Assignment
from molink.control.registry.registry import Registry
from molink.control.registry.succession import Successor, set_moved, set_successor
from molink.coordinator.nodes.letting_go import LettingGo
from molink.coordinator.nodes.node import Node
from molink.coordinator.nodes.node_book import NodeBook


@pytest.fixture
def registry(tmp_path):
    opened = Registry.open(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def going(registry):
    out, told = [], []
    access = SimpleNamespace(shut_out=out.append)
    hub = SimpleNamespace(book=NodeBook(), registry=registry, access=access)
    for name in ("a", "b"):
        hub.book.node(name * 16)
    users = []
    made = LettingGo(hub, lambda node: told.append(node.node_id), users.append)
    return SimpleNamespace(look=made.look, book=hub.book, out=out, told=told, users=users)


def test_who_serves_is_drained_and_goes_when_its_ring_has_let_it(registry, going, monkeypatch):
    node, stays = going.book.nodes["a" * 16], going.book.nodes["b" * 16]
    node.assignment = Assignment.model_construct(command=SimpleNamespace(work=object()))
    going.look()
    assert not node.drained, "nobody was moved"
    set_moved(registry, [node.pc])
    for _ in range(2):
        going.look()
        assert node.drained and going.told == [node.node_id] and not going.out
    assert node.wants == "pause" and stays.wants == "serve"
    assert not going.book.drained, "an operator's order would keep it"
    node.assignment = None
    going.look()
    assert going.out == [node.node_id] and set(going.book.nodes) == {stays.node_id}


def test_users_hear_of_the_other_model_while_nobody_is_left_here(registry, going, monkeypatch):
    set_successor(registry, Successor("next", 1, 2, ("new", "old")))
    monkeypatch.setattr(Node, "is_here", True)
    for moved in ([], ["a" * 16], ["a" * 16, "b" * 16]):
        set_moved(registry, moved)
        going.look()
    assert going.users[:2] == ["", ""] and "ask for 'new', at the same" in going.users[2]
    set_moved(registry, [])
    going.look()
    assert going.users[3] == ""


def test_who_comes_back_serves_again(registry, going):
    set_moved(registry, ["a" * 16])
    going.look()
    set_moved(registry, [])
    back = going.book.node("a" * 16)
    going.look()
    assert not back.drained and "a" * 16 in going.book.nodes


@pytest.mark.parametrize("was_drained", [False, True])
def test_who_is_taken_back_before_its_ring_has_let_it_goes_on(registry, going, was_drained):
    node = going.book.nodes["a" * 16]
    going.book.set_drained(node, is_drained=was_drained)
    node.assignment = Assignment.model_construct(command=SimpleNamespace(work=object()))
    set_moved(registry, [node.pc])
    going.look()
    set_moved(registry, [])
    going.look()
    assert node.drained == was_drained and not going.out
    assert going.book.drained == ({node.node_id} if was_drained else set())
    going.book.set_drained(node, is_drained=True)
    going.look()
    assert node.drained, "a later order of the operator's"
