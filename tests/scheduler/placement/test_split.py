"""The best split of a ring, against all splits."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.placement.split import contiguous, fill, slowest_weighed
from tests.scheduler.placement.oracles import splits

PRICES = st.lists(st.integers(1, 9).map(float), min_size=1, max_size=4)


@st.composite
def equal_layers(draw):
    prices = draw(PRICES)
    rooms = draw(st.lists(st.integers(0, 6), min_size=len(prices), max_size=len(prices)))
    return prices, rooms, draw(st.integers(1, 9))


def allowed(rooms, layers):
    return [
        counts
        for counts in splits(layers, len(rooms))
        if all(n <= room for n, room in zip(counts, rooms, strict=True))
    ]


def dot(prices, counts):
    return sum(n * price for n, price in zip(counts, prices, strict=True))


@given(equal_layers())
def test_no_split_of_equal_layers_is_cheaper(case):
    prices, rooms, layers = case
    found, all_of_them = fill(prices, rooms, layers), allowed(rooms, layers)
    if not all_of_them:
        assert found is None
    else:
        assert found in all_of_them
        assert dot(prices, found) == min(dot(prices, counts) for counts in all_of_them)


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


@st.composite
def unequal_layers(draw):
    prices, layers = draw(PRICES), draw(st.integers(1, 8))
    stages = len(prices)
    several = {"min_size": stages, "max_size": stages}
    works_max = draw(st.lists(st.integers(0, 12).map(float), **several))
    sizes_max = draw(st.lists(st.integers(0, 12).map(float), **several))
    every = {"min_size": layers, "max_size": layers}
    works = draw(st.lists(st.integers(1, 4).map(float), **every))
    sizes = draw(st.lists(st.integers(1, 4), **every))
    return prices, works_max, sizes_max, works, sizes


@given(unequal_layers())
def test_no_split_of_unequal_layers_is_cheaper(case):
    prices, works_max, sizes_max, works, sizes = case

    def parts(values, counts):
        return [sum(values[a:b]) for a, b in pairwise((0, *accumulate(counts)))]

    all_of_them = [
        counts
        for counts in splits(len(works), len(prices))
        if all(w <= most for w, most in zip(parts(works, counts), works_max, strict=True))
        and all(s <= most for s, most in zip(parts(sizes, counts), sizes_max, strict=True))
    ]
    before = [list(accumulate(values, initial=0)) for values in (works, sizes)]
    found = contiguous(prices, works_max, sizes_max, *before)
    if not all_of_them:
        assert found is None
    else:
        costs = {counts: dot(prices, parts(works, counts)) for counts in all_of_them}
        assert found is not None and costs[found] == min(costs.values())
