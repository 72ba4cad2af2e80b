"""DGFM: cycles of debts of any shape, in bytes."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.cell.cycles import find_cycle, swaps

NAMES = "abcdefg"
edges = st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)).filter(
    lambda one: one[0] != one[1]
)
block_sizes = st.fixed_dictionaries({name: st.integers(1, 9) for name in NAMES})


def is_acyclic(debts) -> bool:
    """By taking away those that owe nothing, until none is left."""
    left = set(debts)
    while left:
        owing = {debtor for debtor, _ in left}
        kept = {(debtor, lender) for debtor, lender in left if lender in owing}
        if kept == left:
            return False
        left = kept
    return True


@given(st.dictionaries(edges, st.integers(1, 40), max_size=30), block_sizes)
def test_no_cycle_is_left_and_no_debt_rises(blocks, block_bytes):
    debts = Counter({debt: count * block_bytes[debt[0]] for debt, count in blocks.items()})
    assert bool(find_cycle(debts)) is not is_acyclic(debts)
    found = swaps(debts, block_bytes)
    assert len(found) <= len(debts)
    left = Counter(debts)
    for cycle in found:
        assert all(count >= 0 for count in cycle.values())
        for debt, count in cycle.items():
            left[debt] -= count * block_bytes[debt[0]]
    assert all(0 <= left[debt] <= debts[debt] for debt in debts)
    assert is_acyclic(+left)


@given(st.dictionaries(edges, st.integers(1, 40), max_size=30))
def test_with_blocks_of_one_size_balances_are_kept(debts):
    """What each owes less what is owed to it: nobody pays for another one."""
    left = Counter(debts)
    for cycle in swaps(debts, dict.fromkeys(NAMES, 1)):
        left.subtract(cycle)
    assert balances(left) == balances(debts)


def balances(debts) -> Counter:
    found = Counter()
    for (debtor, lender), size in debts.items():
        found[debtor] += size
        found[lender] -= size
    return Counter({name: size for name, size in found.items() if size})


def test_a_cycle_is_named_in_the_order_of_debts():
    debts = {("b", "c"): 1, ("a", "b"): 1, ("c", "a"): 1, ("x", "a"): 1}
    assert find_cycle(debts) == [("a", "b"), ("b", "c"), ("c", "a")]
    assert find_cycle({("a", "b"): 1, ("b", "c"): 1}) == []


def test_debts_of_unlike_blocks_are_swapped_in_bytes():
    """The least is 30 bytes: 30 blocks of a byte, 3 of ten, 4 of seven."""
    debts = {("a", "b"): 40, ("b", "c"): 30, ("c", "a"): 70}
    [cycle] = swaps(debts, {"a": 1, "b": 10, "c": 7})
    assert cycle == {("a", "b"): 30, ("b", "c"): 3, ("c", "a"): 4}
