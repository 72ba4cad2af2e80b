"""What nodes have given, over starts of the coordinator."""

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


def test_what_was_added_before_a_failure_is_kept(tmp_path):
    ledger = Ledger.open(tmp_path)
    with pytest.raises(ZeroDivisionError), ledger.together():
        ledger.add("a", "anna", Contribution(1.0))
        raise ZeroDivisionError
    assert ledger.all() == {"a": Contribution(1.0)}
    ledger.close()
