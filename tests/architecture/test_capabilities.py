"""A file knows at most two of the capabilities that were once woven through all of them.

Files that are values or messages may name each; those that still know three or more stand in
`budgets.toml`, with how many, and are to know fewer.
"""

from tools.structure.budgets import budgets
from tools.structure.capabilities import knowing_files, known


def test_no_file_knows_more_capabilities_than_it_may():
    assert knowing_files() == budgets()["capabilities"], "put it behind a seam, or lower the budget"


def test_capabilities_are_counted_by_identifiers():
    three = "def keep_snapshot(tier, epoch):\n    return snapshot_of(tiers[epoch])\n"
    assert known(three) == ["recovery", "tiers", "snapshots of states"]
    assert known('"""Tiers, shadows and epochs."""\nx = shadow\n') == []
