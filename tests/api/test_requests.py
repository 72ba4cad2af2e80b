import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.api.errors import ApiError
from molink.api.requests import choice_seed, generation_requests
from molink.api.schemas import SEED_MAX, SEED_MIN, GenerateBody
from tests.api.conftest import CARD

SEEDS = st.integers(SEED_MIN, SEED_MAX)


@given(SEEDS)
def test_the_first_choice_keeps_the_seed(seed):
    assert choice_seed(seed, 0) == seed % 2**64


@given(SEEDS, st.sets(st.integers(0, 10_000), min_size=2))
def test_choices_never_share_a_seed(seed, choices):
    seeds = {choice_seed(seed, choice) for choice in choices}
    assert len(seeds) == len(choices)
    assert all(0 <= one < 2**64 for one in seeds)


def biases(given):
    body = GenerateBody(prompt="hi", logit_bias=given)
    (request,) = generation_requests(
        (1,), body, CARD, max_tokens=4, logprobs=None, usual_priority=0
    )
    return dict(request.sampling.logit_bias)


def test_biases_are_those_of_token_ids():
    assert biases({"5": 1, "299": -100.0}) == {5: 1.0, 299: -100.0}
    assert biases({"7": 1, "07": 2}) == {7: 2.0}
    assert biases(None) == biases({}) == {}


@pytest.mark.parametrize("key", ["300", "-1", "", "x", "1.0", "\u0665", "9" * 4000])
def test_what_is_no_token_of_the_model_has_no_bias(key):
    with pytest.raises(ApiError, match="no token id of this model: use 0 to 299, in quotes"):
        biases({key: 1})
