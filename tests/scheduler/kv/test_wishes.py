"""What somebody wished to keep goes last, as long as the wish says, within its owner's share."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.kv.owners import IDLE_TURNOVERS, owned_salt
from molink_scheduler.kv.tiered_tree import TieredTree
from molink_scheduler.kv.tiers import DEVICE, FILE, HOST, CacheTiers
from molink_scheduler.kv.wishes import LAPSES_MAX, Wishes
from molink_scheduler.token_ids import token_bytes


def ask(tree, salt, tokens, *wishes, room=None):
    """Have a prompt computed, in a ring with room for so many blocks: how many were cached."""
    packed = token_bytes(tokens)
    prefix = tree.find(salt, packed)
    held = tree.pin(prefix) if prefix.blocks else None
    if room is not None:
        tree.drop(max(0, tree.blocks + len(tokens) - prefix.blocks - room), DEVICE, salt[1:])
    node, _ = tree.extend(salt, packed, held)
    tree.wish(node, wishes)
    tree.unpin(node)
    return prefix.blocks


def cached(tree, salt, tokens, lowest=DEVICE):
    return tree.find(salt, token_bytes(tokens), lowest=lowest).blocks


def make_tree():
    return TieredTree(block_tokens=1)


@dataclass
class BlockByBlock:
    """The wish for each block that has one, by all tokens up to it: seconds, and when it lapses."""

    now: float = 0
    wishes: dict = field(default_factory=dict)

    def asked(self, tokens, wished):
        for end in range(1, len(tokens) + 1):
            keep_s = self.live(tokens[:end])
            longest = max([keep_s, *(s for most, s in wished if end <= most <= len(tokens))])
            if longest:
                self.wishes[tokens[:end]] = longest, self.now + longest

    def live(self, chain):
        keep_s, until = self.wishes.get(chain, (0, 0))
        return keep_s if until > self.now else 0


def a_prompt(random):
    return tuple(random.choices(range(3), k=random.randint(1, 12)))


@given(st.integers(0, 2**16))
def test_nothing_that_is_wished_goes_while_something_else_can(seed):
    """Splits, uses, lapses and further epochs in between."""
    random, tree, book, chains = Random(seed), make_tree(), BlockByBlock(), set()
    for _ in range(60):
        what = random.choices(["ask", "wait", "drop", "retain"], [6, 2, 4, 1])[0]
        before = {chain for chain in chains if cached(tree, "", chain) == len(chain)}
        if what == "ask":
            prompt = a_prompt(random)
            wished = [(random.randint(1, 12), 30 * random.randint(1, 2)) for _ in range(2)]
            wished = wished[: random.randint(0, 2)]
            ask(tree, "", prompt, *wished)
            book.asked(prompt, wished)
            chains |= {prompt[:end] for end in range(1, len(prompt) + 1)}
        elif what == "wait":
            book.now += random.randint(1, 20)
            tree.pass_time(book.now)
        elif what == "retain":
            tree = tree.retained(lambda tier, number: True)
        else:
            tree.drop(random.randint(1, 4))
            left = {chain for chain in before if cached(tree, "", chain) == len(chain)}
            if any(book.live(chain) for chain in before - left):
                assert all(book.live(chain) for chain in left)
            for chain in before - left:
                book.wishes.pop(chain, None)


def test_a_wish_lapses_and_each_use_renews_it():
    tree = make_tree()
    ask(tree, "", range(10), (10, 300))
    tree.pass_time(200)
    assert ask(tree, "", range(10)) == 10
    ask(tree, "", range(100, 110))
    tree.pass_time(499)
    tree.drop(10)
    assert (cached(tree, "", range(10)), cached(tree, "", range(100, 110))) == (10, 0)
    ask(tree, "", range(100, 110))
    tree.pass_time(500)
    tree.drop(10)
    assert (cached(tree, "", range(10)), cached(tree, "", range(100, 110))) == (0, 10)


def test_a_wish_is_for_the_beginning_alone():
    tree = make_tree()
    ask(tree, "", range(10), (6, 300))
    ask(tree, "", range(100, 110))
    tree.drop(4)
    assert (cached(tree, "", range(10)), cached(tree, "", range(100, 110))) == (6, 10)
    tree.drop(10)
    assert (cached(tree, "", range(10)), cached(tree, "", range(100, 110))) == (6, 0)


def test_of_two_wishes_the_longer_counts():
    tree = make_tree()
    ask(tree, "", range(4), (4, 3600))
    ask(tree, "", range(4), (4, 300))
    ask(tree, "", range(100, 104))
    tree.pass_time(3599)
    tree.drop(4)
    assert cached(tree, "", range(4)) == 4


def test_what_is_computed_behind_a_wish_has_no_part_in_it():
    """An answer goes on in the node of its prompt, unless that is wished."""
    tree = make_tree()
    node, _ = tree.extend("", token_bytes(range(4)))
    tree.wish(node, [(4, 300)])
    node, _ = tree.extend("", token_bytes(range(9)), node)
    tree.unpin(node)
    ask(tree, "", range(100, 103))
    tree.drop(5)
    assert (cached(tree, "", range(9)), cached(tree, "", range(100, 103))) == (4, 3)


def test_a_wish_beyond_the_share_counts_as_nothing():
    """Anna wishes for all of a ring with room for 100; Ben's prompts get half all the same."""
    tree = make_tree()
    for at in range(10):
        ask(tree, "@anna", range(1000 * at, 1000 * at + 10), (10, 3600), room=100)
    for at in range(10):
        ask(tree, "@ben", range(1000 * at + 500, 1000 * at + 505), room=100)
    bens = [cached(tree, "@ben", range(1000 * at + 500, 1000 * at + 505)) for at in range(10)]
    annas = [cached(tree, "@anna", range(1000 * at, 1000 * at + 10)) for at in range(10)]
    assert bens == [5] * 10
    assert sum(annas) == 50


def test_who_is_idle_keeps_what_he_wished_and_nothing_else():
    tree = make_tree()
    ask(tree, "@anna", range(20), (20, 3600))
    ask(tree, "@anna", range(500, 520))
    ask(tree, "@carl", range(600, 620), (20, 3600))
    ask(tree, "", range(700, 710))
    for at in range(2, 10 * IDLE_TURNOVERS + 20):
        ask(tree, "@ben", range(1000 * at, 1000 * at + 10), room=100)
    assert cached(tree, "@anna", range(500, 520)) == cached(tree, "", range(700, 710)) == 0
    assert cached(tree, "@anna", range(20)) == cached(tree, "@carl", range(600, 620)) == 20
    tree.pass_time(3600)
    for at in range(1000, 1010):
        ask(tree, "@ben", range(1000 * at, 1000 * at + 10), room=100)
    assert cached(tree, "@anna", range(20)) == 0


def test_a_wish_goes_down_all_tiers_before_it_is_forgotten():
    """What was asked once and wished for stays above ten others, in each tier, and is dropped from
    the lowest one last of all."""
    tree, tiers = make_tree(), CacheTiers(10, 10)
    ask(tree, "", range(5), (5, 3600))
    for at in range(1, 11):
        ask(tree, "", range(1000 * at, 1000 * at + 5))
        tree.put_down(tiers, DEVICE, max(0, tree.blocks - 10))
    assert cached(tree, "", range(5)) == 5
    tree.put_down(tiers, DEVICE, 10)
    assert tree.away(tree.find("", token_bytes(range(5)), lowest=FILE)) == [(HOST, 5, False)]
    tree.put_down(tiers, HOST, 10)
    assert tree.away(tree.find("", token_bytes(range(5)), lowest=FILE)) == [(FILE, 5, False)]
    tree.drop(5, FILE)
    assert cached(tree, "", range(5), FILE) == 5
    tree.drop(5, FILE)
    assert cached(tree, "", range(5), FILE) == 0


def test_what_nobody_wished_pushes_no_wish_out_of_a_lower_tier():
    tree, tiers = make_tree(), CacheTiers(10, 0)
    ask(tree, "", range(5), (5, 3600))
    tree.put_down(tiers, DEVICE, 5)
    for at in range(1, 6):
        ask(tree, "", range(1000 * at, 1000 * at + 8))
        tree.put_down(tiers, DEVICE, 8, "")
    assert cached(tree, "", range(5), HOST) == 5
    assert tree.blocks_in[HOST] == 10
    ask(tree, "", range(100, 110), (10, 300))
    tree.put_down(tiers, DEVICE, 10, "")
    assert cached(tree, "", range(100, 110), HOST) == 10


def test_a_wish_beyond_the_share_counts_as_nothing_below_either():
    """Anna's wishes fill host memory before Ben's first prompt comes down."""
    tree, tiers = make_tree(), CacheTiers(10, 0)
    ask(tree, "@anna", range(10), (10, 3600))
    tree.put_down(tiers, DEVICE, 10, "anna")
    for at in range(1, 6):
        ask(tree, "@ben", range(1000 * at, 1000 * at + 8))
        tree.put_down(tiers, DEVICE, 8, "ben")
    assert cached(tree, "@anna", range(10), HOST) == 5
    assert tree.blocks_in[HOST] == 10


def test_what_goes_down_together_keeps_its_own_wishes():
    """Of ten blocks that were cached as one run four are wished; two requests' ends follow."""
    tree, tiers = make_tree(), CacheTiers(20, 0)
    ask(tree, "", range(10), (4, 300))
    for _ in range(10):
        tree.put_down(tiers, DEVICE, 1)
    ask(tree, "", range(100, 104))
    tree.put_down(tiers, DEVICE, 4)
    tree.drop(6, HOST)
    assert (cached(tree, "", range(10), HOST), cached(tree, "", range(100, 104), HOST)) == (4, 4)


def test_of_who_is_idle_no_more_than_what_is_not_wished_goes_ahead_of_shares():
    tree = make_tree()
    ask(tree, "@anna", range(20), (20, 3600))
    ask(tree, "@anna", range(500, 505))
    for at in range(2, 10 * IDLE_TURNOVERS):
        ask(tree, "@ben", range(1000 * at, 1000 * at + 10), room=85)
    tree.drop(tree.blocks - 50)
    assert (cached(tree, "@anna", range(20)), cached(tree, "@anna", range(500, 505))) == (20, 0)


def test_wishes_go_with_their_blocks():
    tree = make_tree()
    ask(tree, "", range(10), (4, 300), (10, 300))
    tree.put_down(CacheTiers(20, 0), DEVICE, 6)
    assert tree._wishes._live
    tree.drop(4)
    assert not tree._wishes._live


@pytest.mark.parametrize("wished", [(0, 300), (11, 300)])
def test_a_wish_for_what_is_not_there_is_none(wished):
    tree = make_tree()
    ask(tree, owned_salt("", "anna"), range(10), wished)
    assert not tree._wishes._live


def test_wishes_of_nodes_that_have_gone_take_no_memory():
    wishes = Wishes()
    for node in range(20 * LAPSES_MAX):
        wishes.add(node, 3600)
        wishes.forget(node)
    assert not wishes._live
    assert len(wishes._lapses) <= LAPSES_MAX + 2
