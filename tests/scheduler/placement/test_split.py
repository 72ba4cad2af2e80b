"""The best split of a ring, against all splits."""

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.placement.split import contiguous, fill
from tests.scheduler.placement.oracles import PRICES, allowed, dot, equal_layers, splits


@given(equal_layers())
def test_no_split_of_equal_layers_is_cheaper(case):
    prices, rooms, layers = case
    found, all_of_them = fill(prices, rooms, layers), allowed(rooms, layers)
    if not all_of_them:
        assert found is None
    else:
        assert found in all_of_them
        assert dot(prices, found) == min(dot(prices, counts) for counts in all_of_them)


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
