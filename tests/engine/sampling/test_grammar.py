"""Masks are those of a brute-force oracle, and follow from the grammar and the tokens alone."""

import json
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from molink.checkpoint.description import ModelDescription
from molink.engine.sampling.grammar import GrammarError, Grammars
from molink.engine.sampling.history import SequenceHistory
from molink.engine.sampling.sampler import sample
from molink.engine_protocol.drawn import GrammarState
from molink.serving.grammar_check import GrammarQuestion, answer_to
from molink_scheduler.batch import Admission
from molink_scheduler.request import SamplingParams
from tools.experiments.grammars.schemas import json_schemas

WORDS = ["a", "b", "c", "aa", "ab", "ba", "abc", "cab", "<eos>"]
EOS = WORDS.index("<eos>")
ROWS = 40
"""Models have more rows of logits than their tokenizer has words."""

JSON_WORDS = [*map(chr, range(32, 127)), '{"', '":', '",', '"}', "true", "null", "\n", "<eos>"]


def grammars_of(words: list[str], rows: int = ROWS) -> Grammars:
    """Of a model whose tokens are these words, the last of which ends an answer."""
    written = [word.replace(" ", "\u0120").replace("\n", "\u010a") for word in words]
    tokenizer = Tokenizer(models.BPE({word: at for at, word in enumerate(written)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    eos = (len(words) - 1,)
    model = ModelDescription("tiny", Path("tiny"), "llama", 1, 8, rows, 64, eos, "float32")
    return Grammars(fast, model, torch.device("cpu"))


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return grammars_of(WORDS)


@pytest.fixture(scope="module")
def json_grammars() -> Grammars:
    return grammars_of(JSON_WORDS, len(JSON_WORDS))


def begin(grammars: Grammars, grammar: str, output=()):
    params = SamplingParams(max_tokens=500, grammar=grammar)
    return grammars.constrain(Admission(1, 1, 500, params, output=tuple(output)))


def allowed(constraint) -> set[int]:
    return set(torch.nonzero(~constraint.forbidden())[:, 0].tolist())


def free(expression: str) -> str:
    """A grammar by which every way to cut a text into words counts; else the library insists on
    its own where the text is certain."""
    return f'%llguidance {{"no_forcing": true}}\nstart: /{expression}/'


def checked(kind: str, text: str) -> str:
    answer = answer_to(GrammarQuestion(kind, text))
    assert not answer.error
    return answer.grammar


languages = st.recursive(
    st.text("abc", min_size=1, max_size=3).map(lambda text: (text, {text})),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(
            lambda two: (two[0][0] + two[1][0], {a + b for a in two[0][1] for b in two[1][1]})
        ),
        st.tuples(inner, inner).map(
            lambda two: (f"({two[0][0]}|{two[1][0]})", two[0][1] | two[1][1])
        ),
        inner.map(lambda one: (f"({one[0]})?", one[1] | {""})),
    ),
    max_leaves=6,
)
"""A regular expression, and all texts that match it."""


def oracle(texts: set[str], so_far: str) -> set[int]:
    """The words after which some text can still come; the end where the text is whole."""
    words = {
        at
        for at, word in enumerate(WORDS)
        if at != EOS and any(text.startswith(so_far + word) for text in texts)
    }
    return words | ({EOS} if so_far in texts else set())


@given(languages, st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_a_mask_allows_exactly_what_some_text_goes_on_with(grammars, language, random):
    expression, texts = language
    constraint, so_far, state = begin(grammars, free(expression)), "", GrammarState.OPEN
    while state is GrammarState.OPEN:
        assert allowed(constraint) == oracle(texts, so_far)
        word = random.choice(sorted(allowed(constraint)))
        state = constraint.take(word)
        so_far += "" if word == EOS else WORDS[word]
        is_last = word == EOS or oracle(texts, so_far) == {EOS}
        assert state is (GrammarState.ENDED if is_last else GrammarState.OPEN)
    assert so_far in texts


@given(st.sets(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=5), st.data())
@settings(max_examples=100, deadline=None)
def test_a_choice_ends_as_one_of_its_texts(grammars, texts, data):
    constraint = begin(grammars, checked("choice", json.dumps(sorted(texts))))
    so_far, state = "", GrammarState.OPEN
    while state is GrammarState.OPEN:
        assert allowed(constraint) <= oracle(texts, so_far)
        assert (EOS in allowed(constraint)) is (so_far in texts)
        word = data.draw(st.sampled_from(sorted(allowed(constraint))))
        state = constraint.take(word)
        so_far += "" if word == EOS else WORDS[word]
    assert state is GrammarState.ENDED and so_far in texts


@pytest.mark.parametrize("number", range(0, 210, 15))
def test_a_replayed_sequence_has_the_same_masks(json_grammars, number):
    _, schema = json_schemas()[number]
    grammar, random = checked("json", json.dumps(schema)), Random(number)
    first, output = begin(json_grammars, grammar), []
    for _ in range(60):
        again = begin(json_grammars, grammar, output)
        assert torch.equal(first.forbidden(), again.forbidden())
        word = random.choice(sorted(allowed(first)))
        output.append(word)
        states = first.take(word), again.take(word)
        assert states[0] is states[1]
        if states[0] is not GrammarState.OPEN:
            break


def test_sequences_of_one_grammar_do_not_touch_each_other(grammars):
    one, other = (begin(grammars, free("a(b|c)a?")) for _ in range(2))
    one.take(WORDS.index("a"))
    assert allowed(other) == {WORDS.index("a"), WORDS.index("ab")}
    assert allowed(one) == {WORDS.index(word) for word in ("b", "c", "ba")}


def test_what_no_word_of_the_model_can_begin_fails(grammars):
    with pytest.raises(GrammarError):
        begin(grammars, free("z")).forbidden()


def test_an_output_that_does_not_match_fails(grammars):
    with pytest.raises(GrammarError):
        begin(grammars, free("ab"), output=(WORDS.index("b"),)).forbidden()


def test_what_is_no_grammar_fails(grammars):
    with pytest.raises(GrammarError):
        begin(grammars, "start: ((").forbidden()


class SlowTokenizer(list):
    eos_token_id = chat_template = None


def test_a_tokenizer_of_no_known_form_fails_when_it_is_needed():
    model = ModelDescription("tiny", Path("tiny"), "llama", 1, 8, ROWS, 64, (EOS,), "float32")
    slow = Grammars(SlowTokenizer(WORDS), model, torch.device("cpu"))
    with pytest.raises(GrammarError, match="fast tokenizers"):
        begin(slow, free("a")).forbidden()


def history_of(grammars: Grammars | None, grammar: str, **sampling) -> SequenceHistory:
    params = SamplingParams(max_tokens=50, grammar=grammar, **sampling)
    admission = Admission(1, 1, 50, params)
    constraint = grammars.constrain(admission) if grammars and grammar else None
    return SequenceHistory.from_admission(admission, constraint)


def test_a_row_keeps_to_its_grammar_and_its_neighbours_to_none(grammars):
    logits = torch.zeros(3, ROWS)
    logits[:, WORDS.index("c")] = 5.0
    rows = [
        history_of(grammars, free("ab?"), temperature=0.0, logprobs=4),
        history_of(None, "", temperature=0.0),
        history_of(None, free("ab?"), temperature=0.0),
    ]
    own, free_row, lost = sample(logits, rows, [1, 1, 1])
    assert own.token_id == WORDS.index("a") and own.grammar is GrammarState.OPEN
    assert free_row.token_id == WORDS.index("c") and free_row.grammar is GrammarState.OPEN
    assert lost.grammar is GrammarState.FAILED
    assert dict(own.top).keys() == {WORDS.index("a"), WORDS.index("ab")}
    assert own.logprob == pytest.approx(torch.tensor(0.5).log().item())


@given(st.integers(0, 2**64 - 1), st.integers(0, 30), st.floats(0.05, 1.0), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_whatever_truncates_no_forbidden_word_is_drawn(grammars, seed, top_k, top_p, min_p):
    logits = torch.randn(1, ROWS, generator=torch.Generator().manual_seed(seed % 2**63)) * 8
    cut = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "repetition_penalty": 1.7}
    bias = ((WORDS.index("c"), 100.0),)
    row = history_of(grammars, free("(ab|ba)a"), seed=seed, logit_bias=bias, **cut)
    text, grammar = "", GrammarState.OPEN
    while grammar is GrammarState.OPEN:
        (token,) = sample(logits, [row], [1 + len(text)])
        text, grammar = text + WORDS[token.token_id], token.grammar
    assert text in ("aba", "baa")
