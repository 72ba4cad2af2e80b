"""Answers are the same with an adversary's drafts, with none, and by the library's `generate`."""

import json
from functools import cache
from itertools import chain
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from molink.engine.sampling import tail_rows
from molink.engine.sampling.grammar import Grammars
from molink.serving.grammar_check import GrammarQuestion, answer_to
from molink.wire.frames import FinishReason
from molink_scheduler.request import SamplingParams
from tests.engine.drafts.drafting_ring import Adversary, DraftingRing, ids_of
from tests.engine.ring_driver import load_stages
from tests.engine.step.test_lending import lent
from tests.engine.tiny_models import ARCHITECTURES, LAYERS, WINDOW, generate, save_tiny
from tests.sweeps import swept

DEMO = Path("molink/models/demo")
TOKENS = 24

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
}


@pytest.fixture(scope="module")
def demo():
    stages = load_stages(DEMO, (0, 3, 6, 9))
    tail = stages[-1]
    tail.grammars = Grammars(AutoTokenizer.from_pretrained(DEMO), tail.description, tail.device)
    return stages


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A ring in one process is round before any mask is made."""
    monkeypatch.setattr(tail_rows, "MASKS_WAIT_S", 30.0)


def prompts_of(seed: int, lengths: tuple[int, ...], words: int = 160) -> list[list[int]]:
    rng = Random(seed)
    return [[rng.randrange(3, words) for _ in range(length)] for length in lengths]


def same_answers(stages, prompts, params, seed=0, tokenizer=None):
    """Answers without drafts, which are those with an adversary's."""
    plain = DraftingRing(stages, tokenizer)
    expected = plain.answers(prompts, params)
    drafter = Adversary(ids_of(expected), Random(seed))
    drafting = DraftingRing(stages, tokenizer, drafter, Random(seed))
    found = drafting.answers(prompts, params)
    assert ids_of(found) == ids_of(expected)
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert one.finish is other.finish
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [word for word, _ in one.top] == [word for word, _ in other.top]
    assert drafting.rounds < plain.rounds, "no draft came true"
    return expected


KINDS = {
    "greedy": dict(temperature=0.0, logprobs=4),
    "seeded": dict(temperature=0.8),
    "top p": dict(top_p=0.8, logprobs=0),
    "min p and top k": dict(min_p=0.05, top_k=40),
    "frequency penalty": dict(temperature=0.7, frequency_penalty=0.8, logprobs=2),
    "presence penalty": dict(temperature=0.0, presence_penalty=1.0),
    "repetition penalty": dict(temperature=0.7, repetition_penalty=1.3),
    "stop tokens that come too soon": dict(min_tokens=9, stop_token_ids=tuple(range(100, 1500))),
    "biases": dict(logit_bias=((50, 8.0), (60, 7.0), (70, 7.5))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_change_no_answer(kind, demo):
    """Of four requests two have one prompt, as choices of one request do."""
    one, two, three = prompts_of(1, (3, 20, 40), 4_000)
    params = [SamplingParams(TOKENS, seed=seed, **KINDS[kind]) for seed in range(4)]
    answers = same_answers(demo, [one, two, three, two], params)
    finishes = {answer[-1].finish for answer in answers}
    assert FinishReason.STOP in finishes or kind != "stop tokens that come too soon"
    assert min(map(len, answers)) >= params[0].min_tokens


def test_an_answer_ends_within_a_run_of_drafts(demo):
    """By a stop string or a stop token in the middle of it, with others beside it."""
    tokenizer, prompts = AutoTokenizer.from_pretrained(DEMO), prompts_of(2, (5, 30, 8), 4_000)
    params = [SamplingParams(TOKENS, temperature=0.0) for _ in prompts]
    free = ids_of(DraftingRing(demo).answers(prompts, params))
    text = tokenizer.decode(free[0][:14])
    params[0] = SamplingParams(TOKENS, temperature=0.0, stop=(text[-6:],))
    params[1] = SamplingParams(TOKENS, temperature=0.0, stop_token_ids=(free[1][11],))
    # Drafts reach beyond the end, as nobody who drafts knows of it.
    on = DraftingRing(demo, tokenizer, lambda n, output: free[n][len(output) :][:5]).answers(
        prompts, params
    )
    off = DraftingRing(demo, tokenizer).answers(prompts, params)
    assert ids_of(on) == ids_of(off)
    assert [answer[-1].finish for answer in on] == [answer[-1].finish for answer in off]
    assert on[0][-1].finish is on[1][-1].finish is FinishReason.STOP
    assert len(on[0]) <= 14 and len(on[1]) <= 12 and len(on[2]) == TOKENS


@pytest.mark.parametrize(
    ("kind", "text"),
    [("json", json.dumps(SCHEMA)), ("regex", "(red|green|blue)( and (red|green|blue)){1,3}")],
)
def test_grammars_hold_behind_drafts(kind, text, demo):
    grammar = answer_to(GrammarQuestion(kind, text)).grammar
    params = [
        SamplingParams(60, temperature=1.0, seed=seed, grammar=grammar, logprobs=1)
        for seed in range(3)
    ]
    answers = same_answers(demo, prompts_of(3, (4, 9, 21), 4_000), params)
    finishes = [answer[-1].finish for answer in answers]
    assert FinishReason.STOP in finishes or kind == "json"
    assert set(finishes) <= {FinishReason.STOP, FinishReason.LENGTH}


@cache
def tiny_ring(directory: Path):
    return save_tiny("llama", directory), load_stages(directory, (0, 2, 5, LAYERS))


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1))
def test_any_drafts_beside_any_others_change_nothing(tmp_path_factory, seed, kinds):
    _, stages = tiny_ring(tmp_path_factory.getbasetemp())
    rng = Random(seed)
    params = []
    for number, kind in enumerate(kinds[:4]):
        own = dict(KINDS[kind])
        own |= {"stop_token_ids": (7, 60, 100, 130)} if "stop_token_ids" in own else {}
        params.append(SamplingParams(rng.randint(9, 25), seed=seed + number, **own))
    lengths = tuple(rng.choice([1, 3, 16, 33, 60]) for _ in params)
    drafter_seed = rng.randrange(2**32)
    prompts = prompts_of(seed, lengths)
    expected = DraftingRing(stages).answers(prompts, params)
    drafter = Adversary(ids_of(expected), Random(drafter_seed))
    assert DraftingRing(stages, None, drafter, rng).answers(prompts, params) == expected


@pytest.mark.parametrize("name", swept(ARCHITECTURES, "llama", "gemma3_text", "deepseek_v3"))
def test_families_answer_as_the_library_does(name, tmp_path):
    model = save_tiny(name, tmp_path)
    stages = load_stages(tmp_path, (0, 3, LAYERS))
    prompts = prompts_of(4, (2, 17, 5 * WINDOW))
    params = [SamplingParams(TOKENS, temperature=0.0)] * 3
    answers = same_answers(stages, prompts, params, seed=5)
    assert ids_of(answers) == [generate(model, prompt, TOKENS) for prompt in prompts]
    assert all(stage.kv.tokens_used == 0 for stage in stages)


def test_drafts_of_requests_that_lent_blocks_change_nothing(tmp_path):
    """Rewound rows are written where they were: at home."""
    model = save_tiny("llama", tmp_path)
    stages = load_stages(tmp_path, (0, 3, LAYERS))
    lenders = [lent(stage, 12) for stage in stages]
    prompts = prompts_of(6, (90, 60))
    params = [SamplingParams(70, temperature=0.0)] * 2
    answers = same_answers(stages, prompts, params, seed=6)
    assert ids_of(answers) == [generate(model, prompt, 70) for prompt in prompts]
    assert all(one.pushed for one in lenders)
