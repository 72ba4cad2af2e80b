"""Which cases of a sweep run with every `make test`; the others run in `make sweeps`.

A sweep tries one property on many formats, families, cards or seeds. Those that are kept stand for
all: one of each kind, and whatever was found wrong once.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest


def swept(cases: Iterable[Any], *kept: Any, of: int | None = None) -> list[Any]:
    """Parameters for all cases, of which only `kept` run with every `make test`, or the first `of`
    them."""
    every = list(cases)
    kept = (*kept, *every[: of or 0])
    assert all(one in every for one in kept), "a kept case is none of the sweep"
    return [one if one in kept else pytest.param(one, marks=pytest.mark.sweeps) for one in every]


def crossed(*axes: Sequence[Any]) -> list[Any]:
    """Parameters for every combination, of which as many run with every `make test` as the longest
    axis has values: each value of each axis stands in one of them."""
    longest = max(map(len, axes))
    kept = {tuple(axis[at % len(axis)] for axis in axes) for at in range(longest)}
    return [
        pytest.param(*row, marks=() if row in kept else pytest.mark.sweeps)
        for row in product(*axes)
    ]
