from hypothesis import given
from hypothesis import strategies as st

from molink.api.requests import choice_seed
from molink.api.schemas import SEED_MAX, SEED_MIN

SEEDS = st.integers(SEED_MIN, SEED_MAX)


@given(SEEDS)
def test_the_first_choice_keeps_the_seed(seed):
    assert choice_seed(seed, 0) == seed % 2**64


@given(SEEDS, st.sets(st.integers(0, 10_000), min_size=2))
def test_choices_never_share_a_seed(seed, choices):
    seeds = {choice_seed(seed, choice) for choice in choices}
    assert len(seeds) == len(choices)
    assert all(0 <= one < 2**64 for one in seeds)
