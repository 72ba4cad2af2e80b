"""Several tokens of a request in one message: told together, as if they had come one by one."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.coordinator.ring.live_sequence import LiveSequence
from molink.coordinator.ring.round_tokens import events_for, tokens_of
from molink.errors import InvalidRequestError, RingError, RowsRefusedError, StageError
from molink.serving.service import GenerationRequest
from molink.serving.timeline import RequestTimeline
from molink.serving.token_events import TokenEvent
from molink.stage_protocol.progress import StageProgress
from molink.wire.frames import FinishReason, Sampled, TokenSample
from molink_scheduler.batch import DRAFTS_MAX, BatchClass
from molink_scheduler.request import SamplingParams
from molink_scheduler.routing.line_watch import STALLED_S
from tests.coordinator.ring.ring_serving import (
    CARD,
    LENGTH,
    Serving,
    asked,
    going_on,
    next_ring,
    until,
)

STOP, FAILED = FinishReason.STOP, FinishReason.GRAMMAR_FAILED
EOS = 255


class ByteTokenizer:
    """One token for each byte: characters come in halves."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return bytes(token_ids).decode("utf-8", "replace")


BYTES = replace(CARD, vocabulary_size=256, model_len_max=500, tokenizer=ByteTokenizer())
SAMPLING = SamplingParams(
    max_tokens=200, stop=("stop!", "é?"), stop_token_ids=(EOS, 0), logprobs=1, grammar="{}"
)


def a_sequence(timeline: RequestTimeline | None = None) -> LiveSequence:
    request = GenerationRequest((1, 2), SAMPLING, timeline=timeline)
    return LiveSequence.of(1, request, (), 1.0, BYTES, 0.0)


def message(samples: list[TokenSample], drafts: int = 0) -> Sampled:
    drafted = ((1, drafts),) if drafts else ()
    return Sampled(BatchClass.DECODE, 0, (), tuple(samples), drafted=drafted)


def told(live: LiveSequence, samples: list[TokenSample], cuts: set[int]) -> list[object]:
    """All news of an answer whose tokens come in messages that end at these places."""
    found: list[object] = []
    ends = [place for place in range(1, len(samples)) if place in cuts] + [len(samples)]
    for begin, end in zip([0, *ends], ends, strict=False):
        for tokens in tokens_of(message(samples[begin:end])):
            found += events_for(tokens, live, (EOS,), float(end))
            live.has_token = True
    return found


def by_token(tokens: list[object]) -> list[object]:
    """Token by token, without how many drafts were verified for them."""
    return [
        replace(one, drafts=0) if isinstance(one, TokenEvent) else one
        for event in tokens
        for one in (event.by_token() if isinstance(event, TokenEvent) else [str(event)])
    ]


@st.composite
def answers(draw: st.DrawFn) -> list[TokenSample]:
    text = draw(st.text(st.sampled_from("ab é😀?st o\ufffd"), max_size=20))
    text += draw(st.sampled_from(["", "stop!", "sto", "é?", "x"]))
    ids = list(text.encode()) or [97]
    samples = [TokenSample(1, one, logprob=-0.1 * one, top=((one, -0.5),)) for one in ids]
    how = draw(st.sampled_from([FinishReason.NONE, LENGTH, STOP, FAILED, FinishReason.REFUSED]))
    last = draw(st.sampled_from([97, EOS, 0])) if how is STOP else samples[-1].token_id
    return [*samples, TokenSample(1, last, how, -0.3, ())]


@given(answers(), st.sets(st.integers(1, 60)))
def test_however_tokens_are_cut_into_messages_they_tell_the_same(samples, cuts):
    alone, together = a_sequence(), a_sequence()
    one_by_one = told(alone, samples, set(range(100)))
    assert by_token(told(together, samples, cuts)) == by_token(one_by_one)
    assert (together.output, together.held_tokens) == (alone.output, alone.held_tokens)
    assert all(len(event.token_ids) == 1 for event in one_by_one if isinstance(event, TokenEvent))


def test_one_message_is_one_event_with_its_drafts():
    samples = [TokenSample(1, 97), TokenSample(1, 98)]
    (tokens,) = tokens_of(message(samples, drafts=4))
    (event,) = events_for(tokens, a_sequence(), (), 0.0)
    assert (event.token_ids, event.text, event.drafts) == ((97, 98), "ab", 4)
    assert tokens.rows == 5
    (unsaid,) = tokens_of(message(samples))
    assert (unsaid.drafts, unsaid.rows) == (1, 2)


def test_tokens_before_an_error_are_told_with_it():
    samples = [TokenSample(1, 97), TokenSample(1, 98, FAILED)]
    (tokens,) = tokens_of(message(samples))
    event, error = events_for(tokens, a_sequence(), (), 0.0)
    assert event.text == "a" and event.finish_reason is None
    assert isinstance(error, InvalidRequestError) and "beyond 1 tokens" in str(error)
    (tokens,) = tokens_of(message([TokenSample(1, 0, FinishReason.REFUSED)], drafts=3))
    live = a_sequence()
    (error,) = events_for(tokens, live, (), 0.0)
    assert isinstance(error, RowsRefusedError) and not live.output


def test_gaps_are_of_messages_and_pace_is_of_tokens():
    timeline = RequestTimeline("m", 2, 200)
    timeline.submitted(1, (), 0.0)
    live = a_sequence(timeline)
    for at in (1.0, 2.0, 3.0):
        many = [TokenSample(1, 97)] * (1 if at == 1.0 else 4)
        for tokens in tokens_of(message(many)):
            events_for(tokens, live, (), at)
    assert (timeline.tokens, timeline.tpot_s) == (9, pytest.approx(0.25))
    rounds = timeline.attempts[0].rounds
    assert rounds.count == 2 and rounds.longest_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("tokens", "drafted", "words"),
    [
        ([TokenSample(1, 7, STOP), TokenSample(1, 8)], (), "behind the end"),
        ([TokenSample(1, 7)] * (DRAFTS_MAX + 2), (), "than a span has"),
        ([TokenSample(1, 7)], ((1, DRAFTS_MAX + 1),), "than a span has"),
        ([TokenSample(1, 7)] * 5, (), "more tokens than were asked for"),
        ([TokenSample(1, 7), TokenSample(1, 100)], (), "not in the vocabulary"),
    ],
)
async def test_a_message_is_told_whole_or_not_at_all(tokens, drafted, words):
    """Another request of the message has honest tokens: they are drawn again in the next ring."""
    async with Serving() as s:
        answer, _ = await asked(s, max_tokens=4)
        other, other_id = await asked(s, max_tokens=4)
        all_tokens = (TokenSample(other_id, 5), TokenSample(other_id, 6), *tokens)
        bad = Sampled(BatchClass.DECODE, 0, (), all_tokens, drafted=drafted)
        s.links.events.put_nowait(bad)
        with pytest.raises(StageError, match=words):
            await s.run
        assert s.client.tokens_sent == 0 and [one.failed for one in s.stages] == [False, True]
        for one in (answer, other):
            with pytest.raises(RingError):
                await one


async def test_a_request_goes_on_behind_all_tokens_of_its_last_message():
    async with Serving() as s:
        answer, request_id = await asked(s, max_tokens=6)
        s.links.tell(*(TokenSample(request_id, 7 + place) for place in range(4)))
        await until(lambda: s.client.tokens_sent == 4)
        s.client.pause()
        listed = dict(s.client.to_resume())
        assert listed == {request_id: 5}, "two of the prompt, and three drafts that came true"
        s.links.sent.clear()
        s.client.resume(next_ring(s), going_on(listed), "lost")
        assert s.links.sent[-1].request.output == (7, 8, 9, 10)
        s.links.tell(TokenSample(request_id, 11), TokenSample(request_id, 12, LENGTH))
        assert await answer == [7, 8, 9, 10, 11, 12]


async def test_rows_of_wrong_drafts_are_no_rows_of_prompts():
    """A head that lets a prompt lie while another request is drafted for is found out."""
    async with Serving() as s:
        answer, request_id = await asked(s, max_tokens=20)
        waiting, _ = await asked(s, max_tokens=4)
        now, rows = 0.0, 0
        for number in range(19):
            some = (TokenSample(request_id, 7),)
            drafted = ((request_id, 4),) if number else ()
            s.links.events.put_nowait(Sampled(BatchClass.DECODE, 0, (), some, drafted=drafted))
            await until(lambda sent=number: s.client.tokens_sent == sent + 1)
            rows, now = rows + (5 if number else 2), now + STALLED_S
            tail = StageProgress(reports=number + 1, rows_out=rows)
            s.client.give_up_stalled(now, lambda tokens: True, tail)
        assert s.client.forecaster.watch.starved_count >= 1
        for one in (answer, waiting):
            one.cancel()
        await asyncio.gather(answer, waiting, return_exceptions=True)


async def test_a_prediction_goes_to_the_head_and_on_with_the_request():
    async with Serving() as s:
        request = GenerationRequest((1, 2), SamplingParams(max_tokens=4), prediction=(5, 6))
        answer = asyncio.create_task(s.drain(request))
        request_id = await s.submitted()
        assert s.links.sent[-1].request.prediction == (5, 6)
        s.client.pause()
        s.client.resume(next_ring(s), going_on(), "lost")
        assert s.links.sent[-1].request.prediction == (5, 6)
        assert s.links.sent[-1].request.request_id > request_id
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)
