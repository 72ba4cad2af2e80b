"""Which rows of a span with drafts count."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from molink.engine.sampling import tail_rows
from molink.engine.sampling.history import SequenceHistory
from molink.engine.sampling.sampler import rows_that_count, sample
from molink.engine.sampling.tail_rows import TailRows
from molink.engine_protocol.drawn import GrammarState
from molink_scheduler.batch import DECODE, Admission, Batch, Span
from molink_scheduler.request import SamplingParams
from tests.engine.sampling.test_grammar import EOS, WORDS, begin, grammars_of

words = st.integers(0, 2)


@given(st.lists(words, max_size=6), st.data())
def test_rows_count_up_to_the_first_draft_that_was_not_drawn(drafts, data):
    size = len(drafts) + 1
    drawn = data.draw(st.lists(words, min_size=size, max_size=size))
    count = rows_that_count(drafts, drawn)
    assert drawn[: count - 1] == drafts[: count - 1]
    assert count == size or drawn[count - 1] != drafts[count - 1]


def test_a_row_without_a_mask_is_none():
    assert rows_that_count((1, 2), (None, 2, 3)) == 0
    assert rows_that_count((1, 2), (1, None, 3)) == 1
    assert rows_that_count((1, 2), (1, 2, 3)) == 3


def drawn(history, drafts, logits):
    """Tokens of a step with drafts behind two tokens that are known, and what is late."""
    span = Span(1, 1, 2 + len(drafts), True, drafts)
    batch, rows = Batch(1, DECODE, 0, (span,)), torch.tensor(logits)
    tail = TailRows.of(batch, {1: history}, rows.shape[1], rows.device)
    assert tail.rows == list(range(len(drafts) + 1))
    sent = [torch.from_numpy(array) for array in tail.settings]
    tokens, _, late = tail.results(rows, sent, lambda table: table)
    return [(one.token_id, one.grammar) for one in tokens], late


def counting(**sampling):
    params = SamplingParams(max_tokens=9, temperature=0.0, **sampling)
    return SequenceHistory.from_admission(Admission(1, 1, 9, params, (3,), (0,)))


def test_each_row_is_drawn_at_its_own_position():
    params = SamplingParams(max_tokens=9, temperature=1.0, seed=11)
    rows = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    plain = SequenceHistory(1, 2, params)
    words = [sample(row[None], [plain], [2 + at])[0].token_id for at, row in enumerate(rows)]
    tokens, _ = drawn(SequenceHistory(1, 2, params), tuple(words[:4]), rows.tolist())
    assert [word for word, _ in tokens] == words and len(set(words)) == 5


def test_only_drafts_before_a_row_are_in_its_penalties():
    """Each draft is drawn at its own place, and would not be if it counted there."""
    history = counting(presence_penalty=1.5)
    logits = [[0.0, 3.0, 2.0, 0.0], [0.0, 3.0, 2.0, 0.0], [0.0, 3.0, 2.0, 1.9]]
    tokens, _ = drawn(history, (1, 2), logits)
    assert [word for word, _ in tokens] == [1, 2, 3]
    assert history.output_tokens == 4
    assert dict(zip(history.counts.token_ids, history.counts.counts, strict=True)) == {
        3: 1,
        0: 1,
        1: 1,
        2: 1,
    }


def test_drafts_that_were_wrong_leave_nothing_behind():
    history = counting(frequency_penalty=1.0)
    tokens, _ = drawn(history, (2, 2, 2), [[0.0, 3.0, 2.0, 0.0]] * 4)
    assert [word for word, _ in tokens] == [1]
    assert history.output_tokens == 2 and 2 not in history.counts.token_ids


def test_min_tokens_counts_drafts_in_front_of_a_row():
    history = counting(min_tokens=3, stop_token_ids=(1,))
    tokens, _ = drawn(history, (2, 2, 2), [[0.0, 3.0, 2.0, 0.0]] * 4)
    assert [word for word, _ in tokens] == [2, 2, 1]  # The second and the third of three.


def test_a_row_that_is_no_number_is_the_last():
    history = counting()
    tokens, _ = drawn(history, (1, 1), [[0.0, 1.0], [float("nan"), 1.0], [0.0, 1.0]])
    assert [word for word, _ in tokens] == [1, 0] and history.output_tokens == 2


# -- grammars -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grammars():
    return grammars_of(WORDS)


def following(grammars, expression):
    grammar = f'%llguidance {{"no_forcing": true}}\nstart: /{expression}/'
    params = SamplingParams(max_tokens=9, temperature=0.0, grammar=grammar)
    return SequenceHistory(1, 2, params, constraint=begin(grammars, grammar))


@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr(tail_rows, "MASKS_WAIT_S", 30.0)


A, B, C = WORDS.index("a"), WORDS.index("b"), WORDS.index("c")


def likeliest(*words):
    """Logits of rows by which each of these would come, were it allowed."""
    rows = torch.zeros(len(words), 40)
    for row, word in enumerate(words):
        rows[row, word] = 1.0
    return rows.tolist()


def test_each_row_has_the_mask_behind_its_drafts(grammars, patient):
    history = following(grammars, "abcb")
    tokens, late = drawn(history, (A, B), likeliest(A, B, A))
    assert ([word for word, _ in tokens], late) == ([A, B, C], ())
    tokens, _ = drawn(history, (), likeliest(A))
    assert tokens[0][0] == B, "its matcher has taken what was drawn"


def test_nothing_is_drawn_behind_a_draft_that_is_forbidden(grammars, patient):
    history = following(grammars, "ab[ab]b")
    tokens, _ = drawn(history, (A, C, A), likeliest(A, B, A, B))
    assert [word for word, _ in tokens] == [A, B]
    assert {A, B} >= {drawn(history, (), likeliest(C))[0][0][0]}


def test_a_grammar_ends_within_a_run(grammars, patient):
    history = following(grammars, "ab")
    tokens, _ = drawn(history, (A, B, EOS), likeliest(A, B, EOS, A))
    states = [state for _, state in tokens]
    assert [word for word, _ in tokens][:2] == [A, B]
    assert states[-1] is GrammarState.ENDED and set(states[:-1]) == {GrammarState.OPEN}


def test_a_first_mask_that_is_late_makes_the_token_late_and_the_drafts_void(grammars, monkeypatch):
    monkeypatch.setattr(tail_rows, "MASKS_WAIT_S", 0.0)
    history = following(grammars, "ab")
    ready = history.constraint.is_ready
    history.constraint.is_ready = lambda within_s=0.0: False
    tokens, (late,) = drawn(history, (A,), likeliest(A, B))
    assert tokens == [] and late.known_tokens == 2 and late.history is history
    history.constraint.is_ready = ready
    history.constraint.is_ready(30.0)
    assert late.drawn(late.since).token_id == A
    assert history.output_tokens == 1


def test_drafts_whose_masks_are_late_are_void(grammars, monkeypatch):
    monkeypatch.setattr(tail_rows, "MASKS_WAIT_S", 0.0)
    history = following(grammars, "abc")
    assert history.constraint.is_ready(30.0)
    monkeypatch.setattr(type(grammars), "turn_behind", lambda *_: SimpleNamespace())
    monkeypatch.setattr(
        type(history.constraint),
        "is_ready",
        lambda own, within_s=0.0, first=history.constraint: own is first,
    )
    tokens, late = drawn(history, (A, B), likeliest(A, B, C))
    assert ([word for word, _ in tokens], late) == ([A], ())
