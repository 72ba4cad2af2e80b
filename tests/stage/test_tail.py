"""The tail's rules: which token ends a sequence."""

from dataclasses import dataclass

import pytest

from molink.engine_protocol.drawn import DrawnToken, GrammarState
from molink.stage.tail import EndRules
from molink.wire.frames import SAMPLES_MAX, FinishReason, PromptScore
from molink_scheduler.batch import DECODE, Admission, Batch, BatchClass, Refusal, RowFault, Span
from molink_scheduler.request import SamplingParams


@dataclass
class LetterTokenizer:
    """Token i is letter i of the alphabet."""

    chat_template: str | None = None

    def encode(self, text, *, add_special_tokens=True):
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, token_ids, *, skip_special_tokens=False):
        return "".join(chr(ord("a") + token) for token in token_ids)

    def apply_chat_template(self, conversation, **options):
        return ""


def rules(output=(), tokenizer=None, **sampling) -> EndRules:
    rules = EndRules(tokenizer or LetterTokenizer())
    params = SamplingParams(**{"max_tokens": 5, **sampling})
    rules.admit([Admission(1, 3, 8, params, output=output)])
    return rules


def judged(rules: EndRules, *token_ids: int) -> list[FinishReason]:
    return [rules.judge(1, token_id) for token_id in token_ids]


NONE, STOP, LENGTH = FinishReason.NONE, FinishReason.STOP, FinishReason.LENGTH


def test_length():
    assert judged(rules(max_tokens=3), 7, 7, 7) == [NONE, NONE, LENGTH]


def test_a_stop_token_wins_over_length():
    assert judged(rules(max_tokens=2, stop_token_ids=(9,)), 7, 9) == [NONE, STOP]


def test_a_grammar_that_ends_wins_over_length_and_one_that_fails_over_all():
    ending = rules(max_tokens=1, stop_token_ids=(9,))
    assert ending.judge(1, 7, GrammarState.ENDED) is STOP
    assert rules(max_tokens=1).judge(1, 7, GrammarState.OPEN) is LENGTH
    failing = rules(max_tokens=1, stop_token_ids=(9,))
    assert failing.judge(1, 9, GrammarState.FAILED) is FinishReason.GRAMMAR_FAILED


def test_a_stop_string_may_span_tokens():
    assert judged(rules(stop=("bcd",)), 0, 1, 2, 3) == [NONE, NONE, NONE, STOP]


def test_a_recomputed_sequence_goes_on_where_it_was():
    assert judged(rules(output=(0, 1), max_tokens=4, stop=("bc",)), 2) == [STOP]
    assert judged(rules(output=(0, 1), max_tokens=3), 2) == [LENGTH]


def test_a_forgotten_sequence_may_come_back():
    again = rules()
    again.forget(1)
    again.forget(1)
    again.admit([Admission(1, 3, 8, SamplingParams(max_tokens=1))])
    assert judged(again, 4) == [LENGTH]


def test_the_coordinator_hears_with_a_first_token_how_long_its_request_had_waited():
    ending, params = EndRules(LetterTokenizer()), SamplingParams(max_tokens=5)
    admitted = Admission(1, 3, 8, params, output=(2,), waited_s=4.0)
    prefill = Batch(1, BatchClass.PREFILL, -1, (Span(1, 0, 4, True),), (admitted,))
    decode = Batch(2, BatchClass.DECODE, 0, (Span(1, 4, 5, True),))
    returned, (copy,) = ending.sampled(prefill, [DrawnToken(1, 7)])
    assert (returned.waits, copy.waits) == ((), ((1, 4.0, 0),))
    _, (copy,) = ending.sampled(decode, [DrawnToken(1, 7)])
    assert copy.waits == ()


def test_the_first_end_in_a_run_of_tokens_voids_what_follows():
    """Tokens of two requests side by side, in the order in which they were drawn."""
    ending = EndRules(LetterTokenizer())
    drafts = (4, 9, 4, 5)
    spans = tuple(Span(one, 3, 8, True, drafts) for one in (1, 2, 3))
    params = (
        SamplingParams(max_tokens=9, stop_token_ids=(9,), logprobs=0),
        SamplingParams(max_tokens=9, stop=("ef",)),
        SamplingParams(max_tokens=3),
    )
    ending.admit(Admission(n, 3, 12, own) for n, own in enumerate(params, 1))
    drawn = [DrawnToken(n, word, -0.5 if n == 1 else None) for n in (1, 2, 3) for word in drafts]
    returned, (copy,) = ending.sampled(Batch(1, BatchClass.DECODE, 0, spans), drawn)
    ends = [(one.request_id, one.token_id, one.finish) for one in returned.tokens]
    assert ends == [
        *((1, 4, NONE), (1, 9, STOP)),
        *((2, 4, NONE), (2, 9, NONE), (2, 4, NONE), (2, 5, STOP)),
        *((3, 4, NONE), (3, 9, NONE), (3, 4, LENGTH)),
    ]
    assert [one.logprob for one in copy.tokens[:2]] == [-0.5, -0.5]


def test_a_run_ends_with_a_row_that_is_no_number():
    """The head begins such a request anew, so the coordinator hears of no end."""
    drawn = [DrawnToken(1, 4), DrawnToken(1, 0, is_lost=True)]
    batch = Batch(1, BatchClass.DECODE, 0, (Span(1, 3, 6, True, (4, 5)),))
    returned, (copy,) = rules().sampled(batch, drawn)
    assert [one.finish for one in returned.tokens] == [NONE, FinishReason.OVERFLOWN]
    assert copy.tokens == returned.tokens[:1]


@pytest.mark.parametrize("fault", RowFault)
def test_the_coordinator_hears_no_end_where_a_draft_may_have_overflowed(fault):
    """But of rows that came as no numbers, whatever was drafted."""
    drafted, plain = Span(1, 3, 6, True, (4, 5)), Span(2, 3, 4, True)
    batch = Batch(1, BatchClass.DECODE, 0, (drafted, plain))
    batch = batch.refusing([Refusal(1, fault), Refusal(2, fault)])
    ending = EndRules(None)
    ending.admit(Admission(one, 3, 12, SamplingParams(max_tokens=9)) for one in (1, 2))
    returned, (copy,) = ending.sampled(batch, [DrawnToken(1, 4), DrawnToken(2, 4)])
    assert [one.request_id for one in returned.tokens] == [1, 2]
    told = [2] if fault is RowFault.OVERFLOWN else [1, 2]
    assert [one.request_id for one in copy.tokens] == told


def test_what_is_no_number_ends_without_a_token_and_others_have_theirs():
    params = SamplingParams(max_tokens=5)
    admissions = tuple(Admission(one, 3, 8, params) for one in (1, 2, 3, 4))
    spans = tuple(Span(one, 0, 3, samples=True) for one in (1, 2, 3, 4))
    refused = (Refusal(3, RowFault.RECEIVED),)
    batch = Batch(1, BatchClass.PREFILL, -1, spans, admissions, refused=refused)
    drawn = [DrawnToken(1, 7), DrawnToken(2, 0, is_lost=True), DrawnToken(3, 9)]
    scores = [PromptScore(4, 1, float("nan"), 1), PromptScore(1, 1, -0.5, 1)]
    returned, copies = EndRules(None).sampled(batch, drawn, scores)
    ends = {one.request_id: one.finish for one in returned.tokens}
    assert ends == {
        1: NONE,
        2: FinishReason.OVERFLOWN,
        3: FinishReason.REFUSED,
        4: FinishReason.OVERFLOWN,
    }
    assert [score.request_id for copy in copies for score in copy.scores] == [1]
    assert [token for copy in copies for token in copy.tokens] == list(returned.tokens)


def test_the_coordinator_hears_of_drafts_and_has_a_requests_tokens_in_one_message():
    """Users are told all tokens of a round together, however full a message is."""
    rules = EndRules(None)
    requests = range(1, SAMPLES_MAX // 17 + 3)
    spans = tuple(Span(one, 3, 20, True, (5,) * 16) for one in requests)
    admissions = tuple(Admission(one, 3, 90, SamplingParams(max_tokens=80)) for one in requests)
    batch = Batch(1, DECODE, 0, spans, admissions)
    drawn = [DrawnToken(one, 7) for one in requests for _ in range(17)]
    returned, copies = rules.sampled(batch, drawn)
    assert not returned.drafted and len(returned.tokens) == len(drawn)
    assert len(copies) == 2 and all(len(one.tokens) <= SAMPLES_MAX for one in copies)
    assert [token for one in copies for token in one.tokens] == list(returned.tokens)
    for one in copies:
        own = {token.request_id for token in one.tokens}
        assert one.drafted == tuple((request_id, 16) for request_id in sorted(own))
    assert len([request_id for one in copies for request_id, _ in one.drafted]) == len(requests)


def test_drafts_go_home_of_those_that_go_on_and_the_coordinator_hears_of_none():
    ending = EndRules(None)
    ending.admit(Admission(n, 3, 12, SamplingParams(max_tokens=n)) for n in (1, 2, 3))
    spans = tuple(Span(n, 3, 4, samples=True, wants=2) for n in (1, 2, 3))
    drawn, drafts = [DrawnToken(1, 7), DrawnToken(2, 7)], tuple((n, (8, 9)) for n in (1, 2, 3))
    batch = Batch(1, DECODE, 0, spans)
    returned, (copy,) = ending.sampled(batch, drawn, drafts=drafts)
    assert returned.drafts == ((2, (8, 9)),), "one has ended, and a mask of the third is late"
    assert returned.spans == spans and not (returned.forced or copy.drafts)


def test_what_a_grammar_forces_goes_before_other_drafts():
    ending = EndRules(None)
    ending.admit(Admission(n, 3, 12, SamplingParams(max_tokens=9)) for n in (1, 2, 3))
    batch = Batch(1, DECODE, 0, tuple(Span(n, 3, 4, samples=True, wants=2) for n in (1, 2, 3)))
    drawn, drafts = [DrawnToken(n, 7) for n in (1, 2, 3)], ((1, (8, 9)), (2, (8,)), (3, (4, 6)))
    forced = ((2, (5,)), (3, (4,)), (4, (6,)))
    returned, (copy,) = ending.sampled(batch, drawn, drafts=drafts, forced=forced)
    assert returned.drafts == ((1, (8, 9)), (2, (5,)), (3, (4, 6)))
    assert returned.forced == (2,), "the third's guess begins so, and goes on"
    assert not copy.forced
