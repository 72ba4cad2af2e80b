"""Cycles of debts, found and cleared: DGFM of DistKV-LLM (Lin et al., arXiv 2401.02669, 4.5).

Where A owes B, B owes C and C owes A, each pays for links to blocks that could lie at home. All
give back as much as the smallest of these debts, so each has room for what comes home: no debt
rises, and at least one ends. Counted in bytes, since blocks of different stages differ.

The paper begins at random; here names give the order, so that a log replays.
"""

from collections import Counter
from collections.abc import Mapping

Debt = tuple[str, str]
"""Debtor and lender."""


def find_cycle(debts: Mapping[Debt, int]) -> list[Debt]:
    """Debts of the first cycle in the order of names, each one's lender the next one's debtor; none
    if there is none."""
    owes: dict[str, list[str]] = {}
    for debtor, lender in sorted(debts):
        owes.setdefault(debtor, []).append(lender)
    done: set[str] = set()
    paths = (_walk([start], owes, done) for start in sorted(owes))
    path = next(filter(None, paths), [])
    return [*zip(path, [*path[1:], *path[:1]], strict=True)]


def _walk(path: list[str], owes: Mapping[str, list[str]], done: set[str]) -> list[str]:
    """Devices of a cycle that the path leads into, none if it leads into none."""
    for lender in owes.get(path[-1], ()):
        if lender in path:
            return path[path.index(lender) :]
        if lender not in done and (found := _walk([*path, lender], owes, done)):
            return found
    done.add(path[-1])
    return []


def swaps(debts: Mapping[Debt, int], block_bytes: Mapping[str, int]) -> list[dict[Debt, int]]:
    """Blocks that debtors give back, for each cycle in turn, after which no cycle is left.

    `debts` are bytes, whole blocks of `block_bytes` of each debtor. A debtor whose block is larger
    than the smallest debt of its cycle gives nothing back.
    """
    left, found = Counter(debts), list[dict[Debt, int]]()
    while cycle := find_cycle(left):
        least = min(left[debt] for debt in cycle)
        found.append({debt: least // block_bytes[debt[0]] for debt in cycle})
        for debt, blocks in found[-1].items():
            left[debt] -= blocks * block_bytes[debt[0]]
        left = +left
    return found
