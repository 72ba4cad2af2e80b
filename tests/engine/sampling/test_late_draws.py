"""A row whose mask is not ready sits its step out; its token is the same when it is."""

from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest
import torch

from molink.engine.sampling import tail_rows
from molink.engine.sampling.grammar import Constraint
from molink.engine.sampling.history import SequenceHistory
from molink.engine.sampling.late_draws import LATE_MAX_S
from molink.engine.sampling.sampler import sample
from molink.engine.sampling.tail_rows import TailRows
from molink.engine_protocol.drawn import GrammarState
from molink_scheduler.batch import DECODE, Batch, Span
from molink_scheduler.request import SamplingParams

WORDS = 6


@dataclass
class OneTurn:
    """What comes of a grammar's thread: a mask that leaves one word, once a test says so."""

    word: int
    turn: Future = field(default_factory=Future)
    taken: list[int] = field(default_factory=list)

    @property
    def forbidden_W(self):
        return torch.arange(WORDS) != self.word

    @property
    def matcher(self):
        return self

    def consume_token(self, token_id):
        self.taken.append(token_id)
        return True

    def is_stopped(self):
        return False

    def next_turn(self, matcher):
        self.turn = Future()
        return self.turn

    def ready(self):
        self.turn.set_result(self)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    monkeypatch.setattr(tail_rows, "MASKS_WAIT_S", 0.0)


def history(request_id: int, turn: OneTurn | None = None) -> SequenceHistory:
    params = SamplingParams(max_tokens=9, temperature=0.0, grammar="g" if turn else "")
    constraint = None if turn is None else Constraint(turn, turn.turn)
    return SequenceHistory(request_id, 3, params, constraint=constraint)


def step(*histories: SequenceHistory, logits=None):
    """Tokens, and what is late."""
    spans = tuple(Span(one.request_id, 3, 4, samples=True) for one in histories)
    known = {one.request_id: one for one in histories}
    rows = TailRows.of(Batch(1, DECODE, 0, spans), known, WORDS, torch.device("cpu"))
    if logits is None:
        logits = torch.arange(len(histories) * WORDS, dtype=torch.float32).view(-1, WORDS)
    sent = [torch.from_numpy(array) for array in rows.settings]
    drawn, _, late = rows.results(logits, sent, lambda tensor: tensor)
    return drawn, late


def test_only_the_row_whose_mask_is_late_waits():
    turn = OneTurn(2)
    drawn, (late,) = step(history(1), history(2, turn), history(3))
    assert [token.request_id for token in drawn] == [1, 3]
    assert late.request_id == 2 and late.drawn(late.since) is None
    turn.ready()
    token = late.drawn(late.since + LATE_MAX_S)
    assert (token.request_id, token.token_id, turn.taken) == (2, 2, [2])


def test_it_is_drawn_from_its_own_logits_as_it_would_have_been():
    logits = torch.randn(2, WORDS, generator=torch.Generator().manual_seed(1))
    turn = OneTurn(4)
    _, (late,) = step(history(1), history(2, turn), logits=logits)
    row = logits[1].clone()
    logits.zero_()  # A step's memory is used again.
    assert torch.equal(late.logits_W, row)
    turn.ready()
    own = OneTurn(4)
    own.ready()
    (expected,) = sample(row[None], [history(2, own)], [4])
    assert late.drawn(late.since) == expected


def test_a_mask_that_is_ready_costs_nobody_a_step():
    turn = OneTurn(1)
    turn.ready()
    drawn, late = step(history(1), history(2, turn))
    assert [token.token_id for token in drawn] == [5, 1] and late == ()


def test_a_mask_that_never_comes_ends_its_sequence():
    _, (late,) = step(history(1, OneTurn(1)))
    token = late.drawn(late.since + LATE_MAX_S)
    assert token.grammar is GrammarState.FAILED


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_no_token(bad):
    logits = torch.zeros(3, WORDS)
    logits[1, 2], logits[0, 3] = bad, 1.0
    asked = SamplingParams(max_tokens=9, temperature=0.0, logprobs=2)
    histories = [history(1), history(2), SequenceHistory(3, 3, asked)]
    drawn, _ = step(*histories, logits=logits)
    assert [token.is_lost for token in drawn] == [False, True, False]
    assert drawn[0].token_id == 3 and len(drawn[2].top) == 2
    assert [one.output_tokens for one in histories] == [1, 0, 1]
