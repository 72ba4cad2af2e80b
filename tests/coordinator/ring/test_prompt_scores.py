"""Scores of a prompt come with its first token, whole or not at all."""

import asyncio

import pytest

from molink.errors import RingError
from molink.serving.service import GenerationRequest
from molink.wire.frames import FinishReason, PromptScore, Sampled, TokenSample
from molink_scheduler.batch import BatchClass
from molink_scheduler.request import SamplingParams
from tests.coordinator.ring.ring_serving import Serving

PROMPT = (5, 6, 7)


def scores(*told):
    return Sampled(BatchClass.PREFILL, -1, (), (), scores=told)


def asked(serving, output=(), **sampling):
    params = SamplingParams(max_tokens=3, **sampling)

    async def answer():
        request = GenerationRequest(PROMPT, params)
        return [event async for event in serving.client.generate(request, output)]

    return asyncio.create_task(answer())


async def test_they_come_with_the_first_token():
    async with Serving() as s:
        answer = asked(s, prompt_logprobs=1)
        one = await s.submitted()
        s.links.events.put_nowait(scores(PromptScore(one, 1, -0.5, 1, ((6, -0.5),))))
        s.links.events.put_nowait(scores(PromptScore(one, 2, -9.0, 4)))
        s.links.events.put_nowait(scores(PromptScore(one, 2, -2.0, 3, ((8, -1.0),))))
        s.links.tell(TokenSample(one, 7))
        s.links.tell(TokenSample(one, 8, FinishReason.STOP))
        first, last = await answer
        told = first.prompt_logprobs
        assert [(score.token_id, score.logprob, score.rank) for score in told] == [
            (6, -0.5, 1),
            (7, -2.0, 3),
        ], "a prompt that is computed anew is scored anew"
        assert told[1].top == ((8, -1.0),) and last.prompt_logprobs == ()


async def test_another_ring_has_told_them():
    async with Serving() as s:
        answer = asked(s, output=(9,), prompt_logprobs=1)
        one = await s.submitted()
        s.links.tell(TokenSample(one, 7, FinishReason.STOP))
        (event,) = await answer
        assert event.prompt_logprobs == ()


@pytest.mark.parametrize(
    ("wanted", "told", "words"),
    [
        (1, [(1, 1, ())], "before the log-probabilities"),
        (1, [(1, 3, ())], "beyond a prompt"),
        (1, [(1, 0, ())], "beyond a prompt"),
        (1, [(1, 1, ((1, -1.0),) * 2)], "more log-probabilities of a prompt"),
        (20, [(1, 1, ((1, -1.0),) * 21)], "more than 20"),
        (1, [(1, 1, ((100, -1.0),))], "not in the vocabulary"),
        (1, [(2, 1, ())], "nobody has made"),
        (None, [(1, 1, ())], "unasked"),
    ],
)
async def test_what_cannot_be_true_ends_the_ring(wanted, told, words):
    async with Serving() as s:
        answer = asked(s, prompt_logprobs=wanted)
        one = await s.submitted()
        assert one == 1
        for request_id, position, top in told:
            score = PromptScore(request_id, position, -1.0, 1, top)
            s.links.events.put_nowait(scores(score))
        s.links.tell(TokenSample(one, 7))
        with pytest.raises(RingError):
            await answer
        with pytest.raises(Exception, match=words):
            await s.run
        assert [stage.failed for stage in s.stages] == [False, True]
