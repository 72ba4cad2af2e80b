"""The split with the least sum and slowest stage, against all splits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduler.placement.oracles import allowed, dot, equal_layers
from tools.experiments.placement.round_objective import slowest_weighed


@given(equal_layers(), st.integers(0, 6).map(float))
def test_no_split_weighs_less_with_its_slowest_stage(case, weight):
    prices, rooms, layers = case

    def cost(counts):
        slowest = max(n * price for n, price in zip(counts, prices, strict=True))
        return dot(prices, counts) + weight * slowest

    found, all_of_them = slowest_weighed(prices, rooms, layers, weight), allowed(rooms, layers)
    if not all_of_them:
        assert found is None
    else:
        best = min(map(cost, all_of_them))
        assert found is not None and found[1] in all_of_them
        assert found[0] == pytest.approx(best) == pytest.approx(cost(found[1]))
        assert slowest_weighed(prices, rooms, layers, weight, below=best) is None
