"""A ring's client: what a tail may not say ends the ring, never a user's request."""

import asyncio
from types import SimpleNamespace

import pytest

from molink.coordinator.ring import client as ring_client
from molink.coordinator.ring.links import (
    TailRefused,
)
from molink.coordinator.ring.live_sequence import (
    FIRST_TOKEN_WITHIN_S,
    TOKEN_WITHIN_S,
    RequestStalledError,
)
from molink.errors import (
    InvalidRequestError,
    RingError,
    StageError,
)
from molink.serving.service import GenerationRequest
from molink.serving.timeline import Arrival, RequestTimeline
from molink.stage_protocol.progress import StageProgress
from molink.wire.frames import (
    Cancel,
    ClearCache,
    FinishReason,
    PromptScore,
    Sampled,
    Submit,
    TokenSample,
)
from molink_scheduler.batch import BatchClass
from molink_scheduler.codec_choice import choose_codec
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.capacity import Offer
from molink_scheduler.request import SamplingParams
from tests.coordinator.ring.ring_serving import (
    LENGTH,
    Serving,
    asked,
    going_on,
)

UNHEARD = StageProgress()


async def test_tokens_are_handed_out_and_those_of_ended_requests_dropped():
    async with Serving() as s:
        answer = s.ask()
        request_id = await s.submitted()
        s.links.tell(TokenSample(request_id, 7), TokenSample(request_id, 99, LENGTH))
        assert await answer == [7, 99]
        s.links.tell(TokenSample(request_id, 8))
        again = s.ask(max_tokens=1)
        s.links.tell(TokenSample(await s.submitted(2), 8, LENGTH))
        assert await again == [8]
        assert not any(stage.failed for stage in s.stages)


async def test_what_was_cached_counts_once_for_each_request():
    async with Serving() as s:
        answer = s.ask()
        request_id = await s.submitted()
        for token in (TokenSample(request_id, 7), TokenSample(request_id, 7, LENGTH)):
            waits = ((request_id, 0.1, 1), (99, 0.1, 1))
            s.links.events.put_nowait(Sampled(BatchClass.DECODE, 0, (), (token,), (), waits))
        await answer
        use = s.client.cache_use
        assert (use.requests, use.prompt_tokens, use.cached_tokens) == (1, 2, 1)


async def test_a_prompt_whose_tokens_are_scored_is_no_miss():
    """An audit's is one of these: nothing may be looked up."""
    async with Serving() as s:
        answer = s.ask(max_tokens=1, prompt_logprobs=0)
        request_id = await s.submitted()
        score = PromptScore(request_id, 1, -0.5, 1)
        token, waits = TokenSample(request_id, 7, LENGTH), ((request_id, 0.1, 0),)
        s.links.events.put_nowait(Sampled(BatchClass.PREFILL, -1, (), (), scores=(score,)))
        s.links.events.put_nowait(Sampled(BatchClass.DECODE, 0, (), (token,), (), waits))
        assert await answer == [7]
        use = s.client.cache_use
        assert (use.requests, use.prompt_tokens) == (0, 0)


async def test_what_a_codec_was_checked_with_is_no_miss(monkeypatch):
    """The hit rate is that of users' prompts."""

    async def checked(client, set_codec, ring, wanted):
        client.cache_use.began(12, 0)
        return choose_codec("raw", None)

    monkeypatch.setattr(ring_client, "checked_codec", checked)
    async with Serving() as s:
        await s.client.choose_codec("auto")
        assert s.client.cache_use.requests == 0


async def test_the_head_is_told_to_clear_its_cache():
    async with Serving() as s:
        s.client.clear_cache()
        assert s.links.sent == [ClearCache()]
        s.client.pause()
        s.client.clear_cache()
        assert s.links.sent == [ClearCache()]


async def test_a_cache_that_is_cleared_while_its_ring_is_paused_is_cleared_when_it_goes_on():
    """After the requests that go on, of which the head has KV: nobody else is to find that."""
    async with Serving() as s:
        answer = s.ask()
        await s.submitted()
        s.client.pause()
        s.client.clear_cache()
        s.client.resume(s.client.ring, going_on(), "lost")
        kinds = [type(one) for one in s.links.sent]
        assert kinds[-2:] == [Submit, ClearCache] and kinds.count(ClearCache) == 1
        s.client.pause()
        s.client.resume(s.client.ring, going_on(), "lost")
        assert [type(one) for one in s.links.sent].count(ClearCache) == 1
        answer.cancel()


async def test_a_timeline_says_when_tokens_came(monkeypatch):
    times = SimpleNamespace(now=10.0)
    monkeypatch.setattr(ring_client, "time", SimpleNamespace(monotonic=lambda: times.now))
    timeline = RequestTimeline("m", 2, 2, arrival=Arrival("r", at=9.0))
    timeline.submitted(0, (), 10.0)
    async with Serving() as s:
        request = GenerationRequest((1, 2), SamplingParams(max_tokens=2), timeline=timeline)
        answer = asyncio.create_task(s.drain(request))
        request_id = await s.submitted()
        times.now = 12.0
        s.links.tell(TokenSample(request_id, 7))
        while not timeline.tokens:  # noqa: ASYNC110 - it happens by itself
            await asyncio.sleep(0)
        times.now = 15.0
        s.links.tell(TokenSample(request_id, 7, LENGTH))
        await answer
    assert (timeline.tokens, timeline.ttft_s, timeline.tpot_s) == (2, 3.0, 3.0)


@pytest.mark.parametrize(
    ("waited_s", "queue_s"), [(0.5, 1.5), (1e9, 3.0), (-1.0, 1.0), (float("nan"), 1.0)]
)
async def test_the_wait_comes_with_the_first_token_and_is_never_longer(
    monkeypatch, waited_s, queue_s
):
    monkeypatch.setattr(ring_client, "time", SimpleNamespace(monotonic=lambda: 12.0))
    timeline = RequestTimeline("m", 2, 2, arrival=Arrival("r", at=9.0))
    timeline.submitted(0, (), 10.0)
    async with Serving() as s:
        request = GenerationRequest((1, 2), SamplingParams(max_tokens=1), timeline=timeline)
        answer = asyncio.create_task(s.drain(request))
        token = TokenSample(await s.submitted(), 7, LENGTH)
        waits = ((token.request_id, waited_s, 0), (99, 1.0, 0))
        sampled = Sampled(BatchClass.DECODE, 0, (), (token,), (), waits)
        s.links.events.put_nowait(sampled)
        await answer
    assert (timeline.queue_s, timeline.ttft_s) == (queue_s, 3.0)


@pytest.mark.parametrize(
    ("finish", "stop_token_ids", "reason"),
    [(FinishReason.STOP, (7, 2), 7), (FinishReason.STOP, (2,), None), (LENGTH, (7,), None)],
)
async def test_a_stop_token_that_was_asked_for_is_told(finish, stop_token_ids, reason):
    async with Serving() as s:
        sampling = SamplingParams(max_tokens=1, stop_token_ids=stop_token_ids)
        events = s.client.generate(GenerationRequest((1, 2), sampling))
        answer = asyncio.create_task(anext(events))
        s.links.tell(TokenSample(await s.submitted(), 7, finish))
        assert (await answer).stop_reason == reason
        await events.aclose()


@pytest.mark.parametrize(
    "tokens, words",
    [
        ([TokenSample(1, -1)], "not in the vocabulary"),
        ([TokenSample(1, 100)], "not in the vocabulary"),
        ([TokenSample(1, 1, logprob=-0.1, top=((2**70, -0.1),))], "not in the vocabulary"),
        ([TokenSample(1, 1, logprob=-0.1, top=((1, -0.1),) * 21)], "log-probabilities"),
        ([TokenSample(1, 7), TokenSample(1, 8)], "more tokens than were asked for"),
        ([TokenSample(2, 7)], "nobody has made"),
        ([TokenSample(0, 7)], "nobody has made"),
        ([TokenSample(-5, 7)], "nobody has made"),
        ([TokenSample(1, 7, FinishReason.GRAMMAR_FAILED)], "grammar that nobody has asked for"),
        (None, "no ring's last stage sends"),
    ],
)
async def test_a_lying_tail_ends_its_ring_and_is_to_blame(tokens, words):
    """A token of -1 once left its request waiting for ever."""
    async with Serving() as s:
        answer = s.ask()
        assert await s.submitted() == 1
        if tokens is None:
            s.links.events.put_nowait(TailRefused())
        else:
            s.links.tell(*tokens)
        with pytest.raises(StageError, match=words):
            await s.run
        assert [stage.failed for stage in s.stages] == [False, True]
        with pytest.raises(RingError):
            await answer
        assert s.client.unready_reason is not None, "requests go on in another ring"


async def test_a_grammar_that_fails_is_its_requests_end_and_nobody_elses():
    async with Serving() as s:
        answer = s.ask(max_tokens=3, grammar="start: /a+/")
        request_id = await s.submitted()
        failed = TokenSample(request_id, 8, FinishReason.GRAMMAR_FAILED)
        s.links.tell(TokenSample(request_id, 7), failed)
        with pytest.raises(InvalidRequestError, match="not be followed beyond 1 tokens"):
            await answer
        assert s.client.unready_reason is None
        assert not any(stage.failed for stage in s.stages)


async def test_tokens_of_rings_before_count():
    async with Serving() as s:
        answer = s.ask(max_tokens=3, output=(5, 6))
        s.links.tell(TokenSample(await s.submitted(), 7))
        with pytest.raises(StageError, match="more tokens"):
            await s.run
        with pytest.raises(RingError):
            await answer


@pytest.mark.parametrize("stall_factor", [1.0, 4.0])
@pytest.mark.parametrize("tokens, within_s", [(0, FIRST_TOKEN_WITHIN_S), (1, TOKEN_WITHIN_S)])
async def test_a_request_left_lying_keeps_its_place_until_another_ring_is_there(
    monkeypatch, tokens, within_s, stall_factor
):
    """A single ring's queue may be hours long; cancelled, its requests would go to its end."""
    monkeypatch.setattr(ring_client, "time", SimpleNamespace(monotonic=lambda: 0.0))
    async with Serving() as s:
        answer = s.ask(stall_factor=stall_factor)
        request_id = await s.submitted()
        for _ in range(tokens):
            s.links.tell(TokenSample(request_id, 7))
        while s.client.tokens_sent < tokens:  # noqa: ASYNC110 - it happens by itself
            await asyncio.sleep(0)
        asked = []
        s.client.give_up_stalled(
            100 * within_s, lambda tokens: asked.append(tokens) or False, UNHEARD
        )
        s.client.give_up_stalled(stall_factor * within_s, lambda tokens: True, UNHEARD)
        await asyncio.sleep(0)
        assert asked == [4]
        assert not answer.done()
        s.client.give_up_stalled(stall_factor * within_s + 0.1, lambda tokens: True, UNHEARD)
        with pytest.raises(RequestStalledError):
            await answer
        assert s.links.sent[-1] == Cancel(request_id)


@pytest.mark.parametrize(("has_other", "error"), [(True, RequestStalledError), (False, RingError)])
async def test_a_request_that_the_head_lets_lie_has_an_answer_or_an_error_in_a_minute(
    monkeypatch, has_other, error
):
    """One ring or several; its others have tokens all the time. In virtual time."""
    times = SimpleNamespace(now=0.0)
    monkeypatch.setattr(ring_client, "time", SimpleNamespace(monotonic=lambda: times.now))
    async with Serving() as s:
        s.client.ring.terms = SimpleNamespace(ring=RingTerms(1000))
        for stage in s.client.ring.stages:
            stage.offer = Offer(0, 64)
        served, first = await asked(s, max_tokens=62)
        s.links.tell(TokenSample(first, 7))
        lying, request_id = await asked(s)
        for second in range(1, 60):
            times.now = float(second)
            s.links.tell(TokenSample(first, 7))
            while s.client.tokens_sent <= second:  # noqa: ASYNC110 - it happens by itself
                await asyncio.sleep(0)
            tail = StageProgress(reports=second, rows_out=second)
            s.client.give_up_stalled(times.now, lambda tokens: has_other, tail)
            await asyncio.sleep(0)
            if lying.done():
                break
        with pytest.raises(error) as raised:
            await lying
        assert type(raised.value) is error and s.links.sent[-1] == Cancel(request_id)
        assert s.client.forecaster.watch.starved_count == 1 and not served.done()
        served.cancel()


async def test_the_newest_is_given_up_where_memory_runs_short_but_never_the_last():
    """To another ring if there is one, else with a sentence; its tokens leave the short one."""
    async with Serving() as s:
        s.client.short_of_memory = "pc-2"
        answers, ids = [], []
        for count in (1, 2, 3):
            answers.append(s.ask())
            ids.append(await s.submitted(count))
        s.client.shed_newest(lambda tokens: False)
        s.client.shed_newest(lambda tokens: True)
        s.client.shed_newest(lambda tokens: True)
        with pytest.raises(RingError, match=r"The memory of pc-2 runs short: send the request"):
            await answers[2]
        with pytest.raises(RequestStalledError):
            await answers[1]
        assert s.links.sent[3:] == [Cancel(ids[2]), Cancel(ids[1])]
        s.links.tell(TokenSample(ids[0], 7), TokenSample(ids[0], 8, LENGTH))
        assert await answers[0] == [7, 8]
