"""Cached prefixes, beside a book that keeps each block by the tokens before it."""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.kv.eviction import EVICTION_ORDERS
from molink_scheduler.kv.prefix_tree import PrefixTree
from molink_scheduler.token_ids import token_bytes

BLOCK = 2
SALTS = ("", "other")

prompts = st.lists(st.integers(0, 2), min_size=0, max_size=16)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.sampled_from(SALTS), prompts),
        st.tuples(st.just("pin"), st.sampled_from(SALTS), prompts),
        st.tuples(st.just("go on"), st.integers(0, 5), prompts),
        st.tuples(st.just("unpin"), st.integers(0, 5), st.none()),
        st.tuples(st.just("drop"), st.integers(1, 6), st.none()),
    ),
    max_size=50,
)


def chains(salt, prompt, blocks=None):
    """The key of each whole block: the salt and all tokens up to its end."""
    whole = len(prompt) // BLOCK if blocks is None else blocks
    return [(salt, tuple(prompt[: (one + 1) * BLOCK])) for one in range(whole)]


def flat(runs):
    return [*chain.from_iterable(runs)]


@dataclass
class BlockByBlock:
    """The same book without a tree: each block by its chain, the least recently used first."""

    numbers: OrderedDict = field(default_factory=OrderedDict)
    pinned: list = field(default_factory=list)

    def cached(self, keys):
        found = [self.numbers[key] for key in keys if key in self.numbers]
        assert list(found) == [self.numbers[key] for key in keys[: len(found)]]
        return found

    def held(self):
        return {key for keys in self.pinned for key in keys}

    def is_end(self, key):
        salt, tokens = key
        longer = (
            other
            for other in self.numbers
            if other[0] == salt and other[1][: len(tokens)] == tokens and other != key
        )
        return not any(longer)


@given(steps, st.sampled_from(sorted(EVICTION_ORDERS)))
def test_finds_what_was_cached_and_drops_only_ends_that_nobody_holds(steps, order):
    tree, book, pins = PrefixTree(order, BLOCK), BlockByBlock(), []
    for what, first, prompt in steps:
        if what == "extend":
            keys = chains(first, prompt)
            if not keys:
                continue
            before = tree.find(first, token_bytes(prompt)).blocks
            node, numbers = tree.extend(first, token_bytes(prompt))
            assert tree.find(first, token_bytes(prompt))[:2] == (len(keys), node)
            assert tree.unheld_blocks(tree.find(first, token_bytes(prompt))) == 0
            tree.unpin(node)
            assert before == len(book.cached(keys))
            assert len(numbers) == len(keys) - before
            book.numbers.update(zip(keys[before:], numbers, strict=True))
        elif what == "pin":
            prefix = tree.find(first, token_bytes(prompt))
            assert flat(tree.numbers(prefix)) == book.cached(chains(first, prompt))
            if prefix.blocks:
                pins.append(tree.pin(prefix))
                book.pinned.append(chains(first, prompt, prefix.blocks))
        elif what == "go on" and pins:
            place = first % len(pins)
            salt, tokens = book.pinned[place][-1]
            longer = [*tokens, *prompt]
            keys = chains(salt, longer)
            before = len(book.cached(keys))
            pins[place], numbers = tree.extend(salt, token_bytes(longer), pins[place])
            book.pinned[place] = keys
            book.numbers.update(zip(keys[before:], numbers, strict=True))
        elif what == "unpin" and pins:
            place = first % len(pins)
            tree.unpin(pins.pop(place))
            book.pinned.pop(place)
        elif what == "drop":
            dropped = set(flat(tree.drop(first)))
            gone = [key for key, number in book.numbers.items() if number in dropped]
            assert len(gone) == len(dropped) <= first
            assert not book.held().intersection(gone)
            for key in sorted(gone, key=lambda key: -len(key[1])):
                assert book.is_end(key)
                del book.numbers[key]
            assert len(dropped) == first or not tree.blocks_droppable
        assert tree.blocks == len(book.numbers)
        assert tree.blocks_held == len(book.held())
    for node in pins:
        tree.unpin(node)
    assert tree.blocks_held == 0
    assert sorted(flat(tree.drop(tree.blocks))) == sorted(book.numbers.values())
    assert not tree.blocks
    assert not tree._roots
    assert not tree._nodes


@given(st.lists(st.tuples(st.sampled_from(SALTS), prompts), max_size=30), st.integers(1, 8))
def test_the_least_recently_used_go_first(asked, blocks_max):
    """As where each block is moved to the end of one list when its chain is used."""
    tree, book = PrefixTree(block_tokens=BLOCK), BlockByBlock()
    for salt, prompt in asked:
        keys, tokens = chains(salt, prompt)[:blocks_max], token_bytes(prompt[: blocks_max * BLOCK])
        prefix = tree.find(salt, tokens)
        assert prefix.blocks == len(book.cached(keys))
        node = tree.pin(prefix) if prefix.blocks else None
        dropped = flat(tree.drop(tree.blocks + len(keys) - prefix.blocks - blocks_max))
        if tokens:
            tree.unpin(tree.extend(salt, tokens, node)[0])
        used = {key for key in keys if key in book.numbers}
        expected = [key for key in book.numbers if key not in used][: len(dropped)]
        assert sorted(dropped) == sorted(book.numbers.pop(key) for key in expected)
        for key, number in zip(keys, flat(tree.numbers(tree.find(salt, tokens))), strict=True):
            book.numbers[key] = number
        for key in reversed(keys):  # A chain's end is used first, so that it goes first.
            book.numbers.move_to_end(key)
        assert tree.blocks == len(book.numbers) <= blocks_max


def test_salts_share_nothing():
    tree = PrefixTree()
    tree.extend("one", token_bytes(range(64)))
    assert tree.find("one", token_bytes(range(64))).blocks == 4
    assert tree.find("two", token_bytes(range(64))).blocks == 0


def test_the_rest_of_a_block_is_not_cached():
    tree = PrefixTree()
    _, numbers = tree.extend("", token_bytes(range(40)))
    assert numbers == range(2)
    assert tree.find("", token_bytes(range(40))).blocks == 2
    assert tree.find("", token_bytes(range(40)), blocks_max=1).blocks == 1


def test_an_answer_goes_on_in_its_prompts_node_until_somebody_else_has_used_it():
    tree, tokens = PrefixTree(), token_bytes(range(160))
    node, _ = tree.extend("", tokens[:64])
    for blocks in range(2, 5):
        held, node = node, tree.extend("", tokens[: blocks * 64], node)[0]
        assert node == held
    beside, numbers = tree.extend("", tokens[:256])
    assert (beside, numbers) == (node, range(4, 4)), "computed at the same time"
    own, _ = tree.extend("", tokens[:320], node)
    tree.unpin(own)
    assert tree.blocks_droppable == 1, "the other one holds what it computed, and no more"
    tree.unpin(beside)
    tree.unpin(tree.pin(tree.find("", tokens[:320])))
    assert tree.extend("", tokens[:384])[0] != own, "it was used"
    assert tree.blocks == 6


def test_a_prefix_that_is_held_cannot_be_given_back_twice():
    tree = PrefixTree()
    computed, _ = tree.extend("", token_bytes(range(32)))
    node = tree.pin(tree.find("", token_bytes(range(32))))
    tree.unpin(computed)
    assert tree.blocks_droppable == 0
    tree.unpin(node)
    assert tree.blocks_droppable == 2
    with pytest.raises(AssertionError, match="once for each time"):
        tree.unpin(node)


@pytest.mark.parametrize(
    ("order", "gone"), [("lru", [2, 3]), ("lfu", [4, 5]), ("length-aware", [8, 9])]
)
def test_each_order_drops_its_own(order, gone):
    """Of three chains: A of four blocks is used twice, but first; then B of two, then C of four."""
    tree = PrefixTree(order, 1)
    chains = {"A": [1] * 4, "B": [2] * 2, "C": [3] * 4}
    for name in "AABC":
        if (prefix := tree.find("", token_bytes(chains[name]))).blocks:
            tree.unpin(tree.pin(prefix))
        tree.unpin(tree.extend("", token_bytes(chains[name]))[0])
    assert sorted(flat(tree.drop(2))) == gone
