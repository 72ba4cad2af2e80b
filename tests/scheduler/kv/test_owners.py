"""Whose cached blocks make room: owners' shares of the cache."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.kv.owners import IDLE_TURNOVERS, Owners, owned_salt, split_salt
from molink_scheduler.kv.tiered_tree import TieredTree
from molink_scheduler.kv.tiers import DEVICE, FILE, HOST, CacheTiers
from molink_scheduler.token_ids import token_bytes

TIERS = (DEVICE, HOST, FILE)
OWNERS = ("", "anna", "ben")
GROUPS = ("", "ours")

prompts = st.lists(st.integers(0, 2), min_size=1, max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(OWNERS), prompts),
        st.tuples(st.just("answer"), st.integers(0, 5), prompts),
        st.tuples(st.just("end"), st.integers(0, 5), st.none()),
        st.tuples(st.just("drop"), st.integers(1, 6), st.sampled_from(TIERS)),
        st.tuples(st.just("put down"), st.integers(1, 6), st.sampled_from(TIERS)),
    ),
    max_size=50,
)


def make_tree():
    return TieredTree(block_tokens=1)


def ask(tree, salt, tokens, room=None):
    """Have a prompt computed in a ring with room for so many blocks: how many were cached."""
    packed = token_bytes(tokens)
    prefix = tree.find(salt, packed)
    held = tree.pin(prefix) if prefix.blocks else None
    if room is not None:
        missing = len(tokens) - prefix.blocks
        tree.drop(max(0, tree.blocks + missing - room), DEVICE, split_salt(salt)[1])
    tree.unpin(tree.extend(salt, packed, held)[0])
    return prefix.blocks


def new_prompt(tree, blocks):
    """Tokens that nobody has asked before."""
    return range(1000 + tree._next_number, 1000 + tree._next_number + blocks)


def counted(tree):
    """Blocks of each owner, by tier, as its nodes have them."""
    found = {}
    for node in tree._nodes.values():
        if node.blocks:
            found.setdefault(node.owner, [0, 0, 0])[node.tier] += node.blocks
    return found


def holds(tree, owner):
    return counted(tree).get(owner, [0, 0, 0])[DEVICE]


@given(steps)
def test_counts_are_those_of_the_nodes_and_nothing_in_use_goes(steps):
    tree, running = make_tree(), []
    for what, first, second in steps:
        if what == "ask":
            salt, packed = owned_salt(GROUPS[len(second) % 2], first), token_bytes(second)
            running.append((tree.extend(salt, packed)[0], salt, packed))
        elif what == "answer" and running:
            held, salt, packed = running.pop(first % len(running))
            packed += token_bytes(second)
            running.append((tree.extend(salt, packed, held)[0], salt, packed))
        elif what == "end" and running:
            tree.unpin(running.pop(first % len(running))[0])
        elif what == "drop":
            tree.drop(first, second)
        elif what == "put down":
            tree.put_down(CacheTiers(4, 4), second, first)
        for _, salt, packed in running:
            assert tree.find(salt, packed).blocks == len(packed) // len(token_bytes([0]))
        counts = counted(tree)
        assert {name: one.blocks for name, one in tree._owners._owners.items()} == counts
        assert tree.blocks_in == [sum(one[tier] for one in counts.values()) for tier in TIERS]
    for node, *_ in running:
        tree.unpin(node)
    for tier in reversed(TIERS):
        tree.drop(tree.blocks_in[tier], tier)
    assert not tree._owners._owners
    assert not tree._nodes


@given(st.lists(st.tuples(prompts, st.integers(1, 12)), max_size=30))
def test_one_owner_gives_in_the_order_in_which_all_gave_before(asked):
    """As one key's, and as nobody's, of whom the other tests say what goes first."""
    nobodys, annas = make_tree(), make_tree()
    for tokens, blocks in asked:
        found = []
        for tree, salt in (nobodys, "ours"), (annas, owned_salt("ours", "anna")):
            found.append((ask(tree, salt, tokens), tree.drop(blocks)))
        assert found[0] == found[1]


@given(
    st.lists(st.tuples(st.sampled_from(OWNERS), st.integers(1, 9)), min_size=1, max_size=12),
    st.integers(1, 40),
    st.sampled_from([None, *OWNERS]),
)
def test_nobody_gives_below_an_equal_share_for_another(asked, blocks, asking):
    """Of what is left; what is asked for counts as had by who asks."""
    tree = make_tree()
    for owner, count in asked:
        ask(tree, owned_salt("", owner), new_prompt(tree, count))
    before = {owner: holds(tree, owner) for owner in OWNERS if holds(tree, owner)}
    tree.drop(blocks, DEVICE, asking)
    total = sum(before.values())
    assert tree.blocks == max(0, total - blocks)
    for owner, had in before.items():
        share = max(0, total - (0 if holds(tree, asking) else blocks)) // len(before)
        assert holds(tree, owner) >= min(had, share) or owner == asking


@pytest.mark.parametrize("prompt_blocks", [3, 22, 88])
def test_a_flood_of_one_owner_leaves_the_share_of_the_other(prompt_blocks):
    """Anna's chat of 88 blocks, and 28 prompts of Ben's in a ring with room for 256."""
    tree, chat = make_tree(), range(88)
    ask(tree, "@anna", chat, 256)
    for _ in range(28):
        ask(tree, "@ben", new_prompt(tree, prompt_blocks), 256)
    assert ask(tree, "@anna", chat, 256) == 88


def test_the_share_of_who_has_gone_is_free_in_the_end():
    tree = make_tree()
    ask(tree, "@anna", range(50), 100)
    held = []
    for _ in range(20 * IDLE_TURNOVERS):
        ask(tree, "@ben", new_prompt(tree, 10), 100)
        held.append(holds(tree, "anna"))
    turned_over = 10 * IDLE_TURNOVERS
    assert min(held[: turned_over - 1]) >= 45, "it is kept while Anna may come back"
    assert held[turned_over + 10 :] == [0] * (turned_over - 10)


def test_who_comes_back_has_a_share_again():
    tree = make_tree()
    for turn in range(3 * IDLE_TURNOVERS):
        assert ask(tree, "@anna", range(40), 100) == (40 if turn else 0)
        for _ in range(10):
            ask(tree, "@ben", new_prompt(tree, 10), 100)


def test_shares_hold_in_lower_tiers_too():
    """Room for 20 blocks in host memory, in which Anna's 10 are; many of Ben's come down."""
    tree, tiers = make_tree(), CacheTiers(20, 0)
    ask(tree, "@anna", range(10))
    tree.put_down(tiers, DEVICE, 10)
    for _ in range(30):
        ask(tree, "@ben", new_prompt(tree, 4))
        tree.put_down(tiers, DEVICE, 4)
    assert counted(tree) == {"anna": [0, 8, 0], "ben": [0, 12, 0]}


def test_who_holds_nothing_of_a_tier_gives_nothing_of_it():
    """Only entries of ends that have gone are left there; of the other all is in use."""
    owners = Owners()
    owners.count("anna", DEVICE, 5)
    owners.count("ben", HOST, 5)
    owners.enter("ben", DEVICE, (1,), 7)
    assert not [*owners.turns(DEVICE, 3, None, 0, lambda entry, here: False)]


def test_a_group_that_owners_share_is_found_by_all_and_held_by_who_had_it_computed():
    tree = make_tree()
    ask(tree, owned_salt("ours", "anna"), range(8))
    assert ask(tree, owned_salt("ours", "ben"), range(10)) == 8
    assert counted(tree) == {"anna": [8, 0, 0], "ben": [2, 0, 0]}
    assert tree.find(owned_salt("", "anna"), token_bytes(range(8))).blocks == 0


def test_an_owner_is_no_part_of_the_group():
    assert split_salt(owned_salt("ours", "anna")) == ("ours", "anna")
    assert split_salt(owned_salt("ours", "")) == split_salt("ours") == ("ours", "")


def test_shares_outlive_an_epoch():
    """Who was active when, too: Anna long ago, so hers go first."""
    tree = make_tree()
    ask(tree, "@anna", range(10))
    for _ in range(2 * IDLE_TURNOVERS):
        ask(tree, "@ben", new_prompt(tree, 20), 30)
    kept = tree.retained(lambda tier, number: True)
    assert counted(kept) == counted(tree)
    assert sorted(chain.from_iterable(kept.drop(8))) == sorted(chain.from_iterable(tree.drop(8)))
