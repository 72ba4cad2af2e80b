"""Pairs that an operator has confirmed, and cells that they make."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.control.registry.registry import Registry
from molink.coordinator.cell.pairs import SETTING, ConfirmedPairs, cells_of, pair_of

PAIRS = st.sets(st.tuples(*[st.sampled_from("abcdefg")] * 2).filter(lambda pair: pair[0] < pair[1]))


@given(PAIRS)
def test_cells_are_apart_and_hold_whoever_is_joined(pairs):
    cells = cells_of(pairs)
    assert sum(len(cell) for cell in cells) == len(frozenset().union(*cells))
    assert all(any({one, other} <= cell for cell in cells) for one, other in pairs)
    for cell in cells:
        inside = [pair for pair in pairs if pair[0] in cell]
        assert len(cell) - 1 <= len(inside) and cells_of(inside) == [cell]


def test_they_outlive_a_restart(tmp_path):
    registry = Registry.open(tmp_path)
    ConfirmedPairs(registry).keep({pair_of("b", "a")})
    registry.close()
    registry = Registry.open(tmp_path)
    assert ConfirmedPairs(registry).pairs == {("a", "b")}
    registry.close()


@pytest.mark.parametrize("kept", ["", "{", "5", "[1]", '[["a"]]', "[[1, 2]]", "null"])
def test_what_cannot_be_read_confirms_nobody(tmp_path, kept):
    registry = Registry.open(tmp_path)
    registry.set_setting(SETTING, kept)
    assert ConfirmedPairs(registry).pairs == frozenset()
    registry.close()
