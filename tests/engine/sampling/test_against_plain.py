"""Mixed batches draw what a plain implementation of one row draws, whatever their rows ask for."""

from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from molink.engine.device.streams import uploaded
from molink.engine.sampling import sampler, truncation
from molink.engine.sampling.history import SequenceHistory
from molink.engine.sampling.sampler import Sampling, sample
from molink.engine_protocol.drawn import GrammarState
from molink_scheduler.batch import Admission
from molink_scheduler.request import SamplingParams
from tests.engine.sampling.plain_sampling import plain_token

WORDS = 40

bounded = st.floats(-30, 30, width=16).map(float)
settings_of_rows = st.builds(
    SamplingParams,
    max_tokens=st.just(99),
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.5]),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    top_k=st.integers(0, WORDS + 5),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
    seed=st.integers(0, 2**64 - 1),
    frequency_penalty=st.sampled_from([0.0, -1.0, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5, -2.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    logprobs=st.sampled_from([None, 0, 5]),
    logit_bias=st.dictionaries(st.integers(0, WORDS - 1), bounded, max_size=4).map(
        lambda biases: tuple(biases.items())
    ),
    min_tokens=st.integers(0, 5),
    stop_token_ids=st.lists(st.integers(0, WORDS - 1), max_size=3).map(tuple),
)
words_so_far = st.lists(st.integers(0, WORDS - 1), max_size=8).map(tuple)


class FixedMask:
    """Constraint that forbids the same words for ever."""

    def __init__(self, forbidden, words, device="cpu"):
        self._mask = torch.zeros(words, dtype=torch.bool)
        self._mask[list(forbidden)] = True
        self._mask = self._mask.to(device)

    def forbidden(self):
        return self._mask

    def take(self, token_id, wants=0):
        return GrammarState.OPEN


class Row:
    """One sequence of a batch, with all that decides its next token."""

    def __init__(self, number, logits, params, prompt, output, forbidden=frozenset()):
        self.logits, self.prompt, self.output = logits, prompt, output
        self.forbidden = forbidden
        self.params = replace(params, grammar="some" if forbidden else "")
        self.number = number

    def history(self, device="cpu") -> SequenceHistory:
        admission = Admission(
            self.number, len(self.prompt), 99, self.params, self.prompt, self.output
        )
        constraint = None
        if self.forbidden:
            constraint = FixedMask(self.forbidden, len(self.logits), device)
        return SequenceHistory.from_admission(admission, constraint)

    def plain(self) -> int:
        return plain_token(
            self.logits.float().numpy(), self.params, self.prompt, self.output, self.forbidden
        )


def tokens_of(rows: list[Row]):
    known = [len(row.prompt) + len(row.output) for row in rows]
    logits = torch.stack([row.logits for row in rows])
    return sample(logits, [row.history() for row in rows], known)


rows_of_batches = st.lists(
    st.tuples(
        st.lists(bounded, min_size=WORDS, max_size=WORDS).map(torch.tensor),
        settings_of_rows,
        words_so_far,
        words_so_far,
        st.frozensets(st.integers(0, WORDS - 1), max_size=WORDS - 1),
    ),
    min_size=1,
    max_size=6,
).map(lambda cases: [Row(number, *case) for number, case in enumerate(cases)])


@given(rows_of_batches)
@settings(max_examples=150, deadline=None)
def test_each_row_draws_as_the_plain_implementation(rows):
    assert [token.token_id for token in tokens_of(rows)] == [row.plain() for row in rows]


def random_row(random: Random, number: int, words: int) -> Row:
    """A row of any settings; its logits as a model in bfloat16 gives them, flat or peaked."""
    generator = torch.Generator().manual_seed(random.randrange(2**32))
    logits = torch.randn(words, generator=generator) * random.choice([0.3, 1.0, 3.0, 8.0])
    some = lambda most: tuple(random.randrange(words) for _ in range(random.randrange(most)))  # noqa: E731
    params = SamplingParams(
        max_tokens=999,
        temperature=random.choice([0.0, 0.5, 1.0, 1.0, 1.7]),
        top_p=random.choice([1.0, 0.2, 0.9, 0.99]),
        top_k=random.choice([0, 0, 1, 40, 3000]),
        min_p=random.choice([0.0, 0.0, 0.05]),
        seed=random.randrange(2**64),
        frequency_penalty=random.choice([0.0, 0.3]),
        presence_penalty=random.choice([0.0, -0.4]),
        repetition_penalty=random.choice([1.0, 1.15]),
        logprobs=random.choice([None, 3]),
        logit_bias=tuple({word: random.uniform(-9, 9) for word in some(9)}.items()),
        min_tokens=random.choice([0, 20]),
        stop_token_ids=some(4),
    )
    forbidden = frozenset(some(words)) if random.random() < 0.3 else frozenset()
    return Row(number, logits.bfloat16(), params, some(200), some(40), forbidden)


@pytest.mark.parametrize(
    ("words", "batches"), [(3_000, 12), (32_000, 3), (128_256, 1), (262_144, 1)]
)
def test_large_vocabularies_too_and_a_row_is_the_same_alone(words, batches):
    random = Random(words)
    for _ in range(batches):
        rows = [random_row(random, number, words) for number in range(8)]
        together = tokens_of(rows)
        assert [token.token_id for token in together] == [row.plain() for row in rows]
        assert [tokens_of([row])[0] for row in rows] == together
        assert tokens_of(rows[::-1])[::-1] == together


def test_as_a_gpu_computes_it_the_tokens_are_the_same(monkeypatch):
    """Whole batches at once, and thresholds by sorting."""
    random = Random(5)
    rows = [random_row(random, number, 5_000) for number in range(40)]
    wanted = tokens_of(rows)
    monkeypatch.setitem(sampler.LOGITS_AT_ONCE, "cpu", 2**22)
    monkeypatch.setattr(truncation, "SELECTS_ON", frozenset())
    assert tokens_of(rows) == wanted


def test_a_sequence_that_begins_again_elsewhere_draws_the_same_tokens():
    random = Random(11)
    rows = [random_row(random, number, 3_000) for number in range(8)]
    lasting = [row.history() for row in rows]
    for _ in range(6):
        known = [len(row.prompt) + len(row.output) for row in rows]
        drawn = sample(torch.stack([row.logits for row in rows]), lasting, known)
        assert drawn == tokens_of(rows)
        for row, token in zip(rows, drawn, strict=True):
            row.output += (token.token_id,)


def test_nothing_is_read_before_the_table_is_whole():
    """On the meta device there is nothing that could be read."""
    random = Random(3)
    rows = [random_row(random, number, 3_000) for number in range(40)]
    histories = [row.history("meta") for row in rows]
    logits = torch.empty(len(rows), 3_000, dtype=torch.bfloat16, device="meta")
    known = [len(row.prompt) + len(row.output) for row in rows]
    sampling = Sampling(histories, known, 3_000, logits.device)
    table = sampling.table(logits, uploaded(sampling.settings, logits.device))
    assert table.device.type == "meta" and table.shape == (40, 2 + 2 * 20)


@pytest.mark.parametrize("kinds", [{"cpu"}, set()])
def test_a_row_of_no_numbers_harms_no_other(monkeypatch, kinds):
    monkeypatch.setattr(truncation, "SELECTS_ON", kinds)
    rows = [random_row(Random(4), number, 5_000) for number in range(3)]
    rows[1] = Row(1, torch.full((5_000,), torch.nan), SamplingParams(9, top_p=0.5, top_k=9), (), ())
    rows[1].logits = rows[1].logits.bfloat16()
    tokens = [token.token_id for token in tokens_of(rows)]
    assert [tokens[0], tokens[2]] == [rows[0].plain(), rows[2].plain()]
    assert 0 <= tokens[1] < 5_000
