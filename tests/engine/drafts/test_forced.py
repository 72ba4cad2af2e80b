"""What a grammar allows alone goes home as drafts: all of it comes true, and no answer changes."""

import json

import pytest
from transformers import AutoTokenizer

from molink.engine.sampling import tail_rows
from molink.engine.sampling.grammar import Grammars
from molink.serving.grammar_check import GrammarQuestion, answer_to
from molink.wire.frames import FinishReason
from molink_scheduler.request import SamplingParams
from tests.engine.drafts.drafting_ring import DraftingRing, ids_of
from tests.engine.drafts.test_answers import DEMO, prompts_of
from tests.engine.ring_driver import load_stages

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "description": {"type": "string", "maxLength": 30},
        "is_available": {"type": "boolean"},
        "category": {"enum": ["vegetables", "household goods"]},
        "quantity": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["name", "description", "is_available", "category", "quantity"],
    "additionalProperties": False,
}
"""A record of five fields, as applications ask for."""

WIDTH = 8


@pytest.fixture(scope="module")
def demo():
    stages = load_stages(DEMO, (0, 4, 9))
    tail = stages[-1]
    tail.grammars = Grammars(AutoTokenizer.from_pretrained(DEMO), tail.description, tail.device)
    return stages


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A ring in one process is round before any mask is made."""
    monkeypatch.setattr(tail_rows, "MASKS_WAIT_S", 30.0)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_records_take_fewer_rounds_and_are_the_same(demo, temperature):
    grammar = answer_to(GrammarQuestion("json", json.dumps(SCHEMA))).grammar
    params = [SamplingParams(160, temperature, seed=one, grammar=grammar) for one in range(4)]
    prompts = prompts_of(3, (4, 9, 21, 40), 4_000)
    plain, forced = DraftingRing(demo), DraftingRing(demo, wants=WIDTH)
    expected = plain.answers(prompts, params)
    assert forced.answers(prompts, params) == expected
    tokens = sum(map(len, expected)) - len(expected)
    assert plain.rounds == tokens and not plain.forced_drafts
    print(f"{tokens} tokens in {forced.rounds} rounds: {tokens / forced.rounds:.2f}")
    if all(answer[-1].finish is FinishReason.STOP for answer in expected):
        assert tokens / forced.rounds > 1.3
    right = tokens - forced.rounds
    assert right == forced.forced_drafts, "all that is forced comes true, and nothing else"


def test_nothing_is_forced_that_nobody_wants_nor_without_a_grammar(demo):
    grammar = answer_to(GrammarQuestion("regex", "(red|green) apples and pears")).grammar
    params = [SamplingParams(40, 0.0, grammar=grammar), SamplingParams(8, 0.0)]
    ring = DraftingRing(demo, wants=2)
    answers = ring.answers(prompts_of(5, (4, 9)), params)
    assert ring.forced_drafts > 0
    assert ids_of(answers) == ids_of(DraftingRing(demo).answers(prompts_of(5, (4, 9)), params))
