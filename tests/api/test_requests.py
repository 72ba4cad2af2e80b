from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.api.errors import ApiError
from molink.api.requests import checked_token_ids, choice_seed, generation_requests
from molink.api.schemas import SEED_MAX, SEED_MIN, GenerateBody
from molink.errors import InvalidRequestError
from molink.serving.model_card import SamplingDefaults
from tests.api.conftest import CARD

FIELDS = fields(SamplingDefaults)

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


def sampling_of(**fields):
    defaults = SamplingDefaults(0.6, 0.95, 20, 0.05, 1.1)
    body = GenerateBody(prompt="hi", **fields)
    card = replace(CARD, sampling=defaults)
    (request,) = generation_requests(
        (1,), body, card, max_tokens=4, logprobs=None, usual_priority=0
    )
    return SamplingDefaults(*(getattr(request.sampling, one.name) for one in FIELDS))


def test_the_models_own_settings_hold_where_a_request_is_silent():
    own = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert (
        sampling_of()
        == sampling_of(**dict.fromkeys(own))
        == SamplingDefaults(0.6, 0.95, 20, 0.05, 1.1)
    )
    assert sampling_of(**own) == SamplingDefaults()
    assert sampling_of(temperature=0.0) == SamplingDefaults(0.0, 0.95, 20, 0.05, 1.1)


def test_a_word_that_the_model_has_no_row_for_is_named():
    for ids in ((1, 300), (2**31 - 1,)):
        with pytest.raises(InvalidRequestError, match=rf"<{ids[-1]}>' \({ids[-1]}\)"):
            generation_requests(
                ids, GenerateBody(), CARD, max_tokens=4, logprobs=None, usual_priority=0
            )
    with pytest.raises(ApiError, match=r"holds the token id 300, .*use 0 to 299"):
        checked_token_ids([1, 300], CARD, "prompt")
