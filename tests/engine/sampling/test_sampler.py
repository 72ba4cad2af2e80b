"""Sampling is checked by what must hold for every row of logits."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from molink.engine.sampling.drawing import inverse_cdf, uniform
from molink.engine.sampling.history import SequenceHistory
from molink.engine.sampling.sampler import sample
from molink_scheduler.batch import Admission
from molink_scheduler.request import SamplingParams

WORDS = 24

logits_rows = st.lists(st.floats(-20, 20, width=16).map(float), min_size=WORDS, max_size=WORDS).map(
    lambda row: torch.tensor(row)
)

params = st.builds(
    SamplingParams,
    max_tokens=st.just(99),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_p=st.floats(0.05, 1.0),
    top_k=st.integers(0, WORDS + 5),
    min_p=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**64 - 1),
    frequency_penalty=st.sampled_from([0.0, -1.0, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    logprobs=st.sampled_from([None, 0, 5]),
)


def history(sampling: SamplingParams, prompt=(), output=(), request_id=0) -> SequenceHistory:
    admission = Admission(request_id, len(prompt), 99, sampling, tuple(prompt), tuple(output))
    return SequenceHistory.from_admission(admission)


def draw(logits, sampling, known=0, **kwargs) -> int:
    (token,) = sample(logits[None], [history(sampling, **kwargs)], [known])
    return token.token_id


def drawn_set(logits, sampling, count=200) -> set[int]:
    """Words that come up when the same distribution is drawn many times."""
    histories = [history(sampling) for _ in range(count)]
    rows = logits[None].expand(count, -1)
    return {token.token_id for token in sample(rows, histories, range(count))}


@given(logits_rows, st.integers(1, WORDS))
@settings(max_examples=40, deadline=None)
def test_top_k_draws_only_from_the_k_best(logits, top_k):
    kth = logits.sort(descending=True).values[top_k - 1]
    allowed = set(torch.nonzero(logits >= kth)[:, 0].tolist())
    assert drawn_set(logits, SamplingParams(max_tokens=9, top_k=top_k)) <= allowed


@given(logits_rows, st.floats(0.05, 0.99))
@settings(max_examples=40, deadline=None)
def test_top_p_draws_only_from_the_smallest_sufficient_set(logits, top_p):
    ordered = logits.double().softmax(0).sort(descending=True)
    needed = int((ordered.values.cumsum(0) < top_p - 1e-9).sum()) + 1
    last = logits[ordered.indices[min(needed, WORDS) - 1]]
    allowed = set(torch.nonzero(logits >= last)[:, 0].tolist())
    assert drawn_set(logits, SamplingParams(max_tokens=9, top_p=top_p)) <= allowed


@given(logits_rows, st.floats(0.01, 1.0))
@settings(max_examples=40, deadline=None)
def test_min_p_draws_nothing_much_less_likely_than_the_best(logits, min_p):
    probabilities = logits.double().softmax(0)
    allowed = torch.nonzero(probabilities >= min_p * probabilities.max() * (1 - 1e-4))[:, 0]
    assert drawn_set(logits, SamplingParams(max_tokens=9, min_p=min_p)) <= set(allowed.tolist())


@given(logits_rows, params)
@settings(max_examples=60, deadline=None)
def test_the_best_word_is_always_possible_and_greedy_takes_it(logits, sampling):
    plain = SamplingParams(max_tokens=9, temperature=0.0)
    assert logits[draw(logits, plain)] == logits.max()
    one_word = SamplingParams(
        max_tokens=9, top_k=1, temperature=sampling.temperature, seed=sampling.seed
    )
    assert logits[draw(logits, one_word)] == logits.max()


@given(
    st.lists(st.tuples(logits_rows, params, st.integers(0, 50)), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_a_row_does_not_depend_on_the_rest_of_the_batch(rows, rng):
    def results(order):
        histories = [
            history(rows[i][1], prompt=(1, 2), output=(2, 5, 5), request_id=i) for i in order
        ]
        known = [5 + rows[i][2] for i in order]
        drawn = sample(torch.stack([rows[i][0] for i in order]), histories, known)
        return {token.request_id: token for token in drawn}

    order = list(range(len(rows)))
    together = results(order)
    shuffled = rng.sample(order, len(order))
    assert results(shuffled) == together
    assert {i: results([i])[i] for i in order} == together


def test_seed_and_position_decide_the_draw():
    logits = torch.zeros(WORDS)
    by_seed = [draw(logits, SamplingParams(max_tokens=9, seed=seed)) for seed in range(50)]
    by_position = [draw(logits, SamplingParams(max_tokens=9, seed=1), known=k) for k in range(50)]
    assert len(set(by_seed)) > 10
    assert len(set(by_position)) > 10
    assert by_seed == [draw(logits, SamplingParams(max_tokens=9, seed=s)) for s in range(50)]


def test_random_numbers_are_pinned():
    """A seed must give the same text after an upgrade."""
    for position in (0, 3, 63, 64, 200, 2**40):
        generator = np.random.Philox(key=7, counter=position)
        assert uniform(7, position) == (int(generator.random_raw()) >> 12) / 2**52
    numbers = [uniform(11, position) for position in range(2000)]
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / 2000 - 0.5) < 0.03
    assert len(set(numbers)) == 2000


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=5))
@settings(deadline=None)
def test_the_inverse_cdf_follows_the_probabilities(numbers):
    probabilities = torch.tensor([0.0, 0.25, 0.5, 0.0, 0.25])
    rows = probabilities.double().repeat(len(numbers), 1)
    words = inverse_cdf(rows, torch.tensor(numbers, dtype=torch.float64))
    for number, word in zip(numbers, words.tolist(), strict=True):
        assert word == (1 if number < 0.25 else 2 if number < 0.75 else 4) or any(
            abs(number - edge) < 1e-6 for edge in (0.25, 0.75)
        )


def test_the_largest_random_number_draws_a_possible_word():
    probabilities = torch.zeros(1, WORDS, dtype=torch.float64)
    probabilities[0, 3] = probabilities[0, 4] = 0.1
    last = torch.tensor([1 - 2.0**-52], dtype=torch.float64)
    assert inverse_cdf(probabilities, last).tolist() == [4]


def test_repetition_counts_prompt_and_output_and_lowers_both_signs():
    logits = torch.tensor([3.0, -1.0, 2.0, -0.9])
    sampling = SamplingParams(max_tokens=9, temperature=0.0, repetition_penalty=2.0)
    assert draw(logits, sampling, prompt=(0,)) == 2
    assert draw(logits, sampling, prompt=(0,), output=(2,)) == 0
    negative = torch.tensor([-1.0, -1.5, -9.0, -9.0])
    assert draw(negative, sampling, prompt=(0,)) == 1


def test_frequency_and_presence_count_the_output_only():
    logits = torch.tensor([3.0, 2.5, 0.0])
    frequency = SamplingParams(max_tokens=9, temperature=0.0, frequency_penalty=0.4)
    assert draw(logits, frequency, prompt=(0, 0, 0)) == 0
    assert draw(logits, frequency, output=(0,)) == 0
    assert draw(logits, frequency, output=(0, 0)) == 1
    presence = SamplingParams(max_tokens=9, temperature=0.0, presence_penalty=0.6)
    assert draw(logits, presence, output=(0,)) == 1


def test_a_bias_is_added_before_penalties_and_to_its_token_only():
    logits = torch.tensor([3.0, 2.5, 0.0])
    biased = SamplingParams(max_tokens=9, temperature=0.0, logit_bias=((0, -1.0), (2, 2.9)))
    assert draw(logits, biased) == 2
    twice = replace(biased, repetition_penalty=2.0)
    assert draw(logits, twice, prompt=(2,)) == 1  # (0.0 + 2.9) / 2
    assert logits.tolist() == [3.0, 2.5, 0.0]


@given(logits_rows, params, st.integers(0, WORDS - 1))
@settings(max_examples=40, deadline=None)
def test_a_token_with_the_largest_bias_is_drawn_and_one_with_the_least_is_not(logits, params, word):
    unpenalised = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
    for bias in (100.0, -100.0):
        wanted = replace(params, temperature=1.0, logit_bias=((word, bias),), **unpenalised)
        assert (draw(logits, wanted) == word) is (bias > 0)


@given(logits_rows, params, st.integers(0, 5), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_no_stop_token_is_drawn_before_there_are_enough_tokens(logits, params, so_far, min_tokens):
    stops = tuple(range(0, WORDS, 2))
    sampling = replace(params, min_tokens=min_tokens, stop_token_ids=stops)
    biased = replace(sampling, logit_bias=tuple((stop, 100.0) for stop in stops))
    # Penalties of many repetitions cannot outweigh the bias.
    token_id = draw(logits, biased, output=(1,) * so_far)
    assert (token_id in stops) == (so_far >= min_tokens)


def test_where_only_stop_tokens_are_left_one_is_drawn():
    logits = torch.full((WORDS,), float("-inf"))
    logits[3] = 1.0
    sampling = SamplingParams(max_tokens=9, min_tokens=5, stop_token_ids=(3,))
    assert draw(logits, sampling) == 3


def test_drawn_tokens_join_the_history():
    sampling = SamplingParams(max_tokens=9, temperature=0.0, presence_penalty=2.0)
    sequence = history(sampling)
    logits = torch.tensor([[3.0, 2.5, 2.0]])
    words = [sample(logits, [sequence], [n])[0].token_id for n in range(3)]
    assert words == [0, 1, 2]
    assert sequence.output_tokens == 3
    assert sequence.counts.token_ids.tolist() == [0, 1, 2]
    assert sequence.counts.counts.tolist() == [1, 1, 1]


@given(logits_rows, st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_logprobs_are_those_of_the_raw_logits(logits, count):
    changed = {"temperature": 2.0, "frequency_penalty": 1.0, "logit_bias": ((3, 5.0),)}
    sampling = SamplingParams(max_tokens=9, top_k=3, logprobs=count, **changed)
    (token,) = sample(logits[None], [history(sampling, output=(1, 2))], [2])
    wanted = logits.log_softmax(0)
    assert token.logprob == float(wanted[token.token_id])
    assert [value for _, value in token.top] == wanted.sort(descending=True).values[:count].tolist()
    assert all(value == float(wanted[word]) for word, value in token.top)


def test_a_large_vocabulary_with_flat_logits_has_the_right_nucleus():
    """The threshold lies beyond the candidates that are sorted first."""
    words = 5000
    logits = torch.linspace(0.001, 0, words)
    sampling = SamplingParams(max_tokens=9, top_p=0.5)
    drawn = drawn_set(logits, sampling)
    assert max(drawn) <= words // 2
    assert max(drawn) > 2000


TINY = (1e-6, 1e-20, 1e-37, 1e-38, 1e-45, 2.3e-308, 5e-324)
TRUNCATED = (
    {},
    {"top_p": 0.9},
    {"min_p": 0.1, "top_k": 5},
    {"top_k": 1},
    {"min_p": 1.0},
    {"repetition_penalty": 1.3, "frequency_penalty": 2.0, "presence_penalty": -2.0},
    {"repetition_penalty": 5e-324},
    {"logit_bias": ((3, 100.0), (4, -100.0))},
)


@given(logits_rows, st.sampled_from(TINY), st.sampled_from(TRUNCATED))
@settings(max_examples=60, deadline=None)
def test_temperatures_near_zero_are_greedy_beside_any_neighbour(logits, temperature, truncated):
    """Logits of a real model, too, are no wider than these, and tie as these do."""
    asked = SamplingParams(99, logprobs=5, seed=3, temperature=temperature, **truncated)
    greedy, beside = replace(asked, temperature=0.0), SamplingParams(99, temperature=1.0, seed=8)
    known = {"prompt": (3, 4, 5), "output": (4, 4, 6)}
    rows = logits[None].expand(3, -1) * 3000
    found, expected, _ = sample(
        rows, [history(asked, **known), history(greedy, **known), history(beside)], [6, 6, 0]
    )
    assert found == expected
    assert np.isfinite([found.logprob, *(logprob for _, logprob in found.top)]).all()


@pytest.mark.parametrize("penalty", [5e-324, 1e-45, 1e-40, 1e-20, 100.0])
@pytest.mark.parametrize("temperature", [1e-5, 1.0, 100.0])
def test_penalties_at_their_bounds_leave_a_distribution(penalty, temperature):
    """Not the last word of the vocabulary, as where sums are no numbers."""
    logits = torch.linspace(-2.0, 1.0, WORDS)
    asked = SamplingParams(99, temperature=temperature, repetition_penalty=penalty, seed=1)
    grown = {draw(logits, replace(asked, seed=seed), 2, prompt=(20, 21)) for seed in range(20)}
    if penalty < 1e-3:
        assert grown == {21}
    assert all(0 <= word < WORDS for word in grown)
