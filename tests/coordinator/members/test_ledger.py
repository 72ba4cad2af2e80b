"""What nodes have given, over starts of the coordinator."""

import sqlite3

import pytest

from molink.coordinator.members.ledger import Contribution, Ledger


def test_sums_outlive_the_coordinator(tmp_path):
    for _ in range(2):
        ledger = Ledger.open(tmp_path)
        with ledger.together():
            ledger.add("a", "anna", Contribution(10.0, 7, 100))
            ledger.add("a", "anna", Contribution(1.0, 1, 1))
            ledger.add("b", "ben", Contribution(0.5, 0, 0))
        ledger.close()
    ledger = Ledger.open(tmp_path)
    assert ledger.all() == {"a": Contribution(22.0, 16, 202), "b": Contribution(1.0, 0, 0)}
    ledger.close()


def test_what_was_added_before_a_failure_is_not_kept(tmp_path):
    ledger = Ledger.open(tmp_path)
    with pytest.raises(ZeroDivisionError), ledger.together():
        ledger.add("a", "anna", Contribution(1.0))
        raise ZeroDivisionError
    assert ledger.all() == {}
    ledger.close()


def test_a_full_disk_is_named_and_stands_in_nobody_s_way_afterwards(tmp_path):
    ledger = Ledger.open(tmp_path)
    ledger._db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(sqlite3.OperationalError, match="full"), ledger.together():
        ledger.add("a", "a" * 10**5, Contribution(1.0))
    ledger._db.execute("PRAGMA max_page_count = 1000")
    with ledger.together():
        ledger.add("a", "anna", Contribution(1.0))
    assert ledger.all() == {"a": Contribution(1.0)}
    ledger.close()
