"""Who does not read an answer gives its place on the ring to others, and gets all of it later."""

import asyncio
from dataclasses import replace

import pytest

from molink.coordinator.ring.live_sequence import HOLDS_MAX, UNREAD_CHARS_MAX, UNREAD_EVENTS_MAX
from molink.errors import InvalidRequestError
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest
from molink.wire.frames import Cancel, Submit, TokenSample
from molink_scheduler.request import SamplingParams
from tests.coordinator.ring.ring_serving import LENGTH, Serving, going_on, next_ring, until

CARD = ModelCard("m", 0, 100, 100_000, (), None)


class Reader:
    """Reader of one answer, who reads when told."""

    def __init__(self, s: Serving, max_tokens: int) -> None:
        s.client.whole_card = CARD
        request = GenerationRequest((1, 2), SamplingParams(max_tokens=max_tokens))
        self.serving, self.tokens = s, []
        self.events = s.client.generate(request)

    async def read(self, count: int = 1) -> None:
        for _ in range(count):
            self.tokens += (await anext(self.events)).token_ids

    async def asked(self) -> int:
        """Its first token is read; the number of the request."""
        reading = asyncio.create_task(self.read())
        request_id = await self.serving.submitted(len(self.serving.links.sent) + 1)
        self.serving.links.tell(TokenSample(request_id, 1))
        await reading
        return request_id


async def told(s: Serving, request_id: int, count: int) -> None:
    """The tail has drawn so many tokens more."""
    before = s.client.tokens_sent
    for number in range(count):
        s.links.tell(TokenSample(request_id, number % 100))
    await until(lambda: s.client.tokens_sent == before + count)


async def test_who_does_not_read_leaves_the_ring_and_goes_on_when_he_has():
    async with Serving() as s:
        reader = Reader(s, 1000)
        request_id = await reader.asked()
        await told(s, request_id, UNREAD_EVENTS_MAX)
        assert s.links.sent[-1] == Cancel(request_id)
        s.links.tell(TokenSample(request_id, 99))  # It was under way.
        await reader.read(UNREAD_EVENTS_MAX)
        assert s.links.sent[-1] == Cancel(request_id), "not before all is read"
        reading = asyncio.create_task(reader.read())
        await until(lambda: isinstance(s.links.sent[-1], Submit))
        again = s.links.sent[-1].request
        assert again.output == (1, *(number % 100 for number in range(UNREAD_EVENTS_MAX)))
        s.links.tell(TokenSample(again.request_id, 42))
        await reading
        assert reader.tokens == [*again.output, 42]


async def test_others_are_not_hindered():
    async with Serving() as s:
        slow = Reader(s, 1000)
        request_id = await slow.asked()
        await told(s, request_id, UNREAD_EVENTS_MAX)
        answer = s.ask(max_tokens=1)
        other = await s.submitted(len(s.links.sent) + 1)
        s.links.tell(TokenSample(other, 5, LENGTH))
        assert await answer == [5]
        assert s.client.served().decoding == 0
        assert s.client.served().prompt_tokens == 0, "nobody waits for the ring"


async def test_an_end_that_nobody_has_read_stays():
    async with Serving() as s:
        reader = Reader(s, UNREAD_EVENTS_MAX + 1)
        request_id = await reader.asked()
        for number in range(UNREAD_EVENTS_MAX - 1):
            s.links.tell(TokenSample(request_id, number % 100))
        s.links.tell(TokenSample(request_id, 9, LENGTH))
        await until(lambda: s.client.tokens_sent == UNREAD_EVENTS_MAX + 1)
        await reader.read(UNREAD_EVENTS_MAX)
        assert len(reader.tokens) == UNREAD_EVENTS_MAX + 1
        with pytest.raises(StopAsyncIteration):
            await reader.read()


async def test_who_is_too_slow_too_often_is_told_so_behind_what_came():
    async with Serving() as s:
        reader = Reader(s, 90_000)
        request_id = await reader.asked()
        for _ in range(HOLDS_MAX):
            await told(s, request_id, UNREAD_EVENTS_MAX)
            await reader.read(UNREAD_EVENTS_MAX)
            reading = asyncio.create_task(reader.read())
            await until(lambda: isinstance(s.links.sent[-1], Submit))
            request_id = s.links.sent[-1].request.request_id
            await told(s, request_id, 1)
            await reading
        await told(s, request_id, UNREAD_EVENTS_MAX)
        await reader.read(UNREAD_EVENTS_MAX)
        with pytest.raises(InvalidRequestError, match="faster than it was read"):
            await reader.read()
        assert s.client.outstanding_tokens == 0


async def test_a_lost_stage_does_not_bring_him_back():
    async with Serving() as s:
        reader = Reader(s, 1000)
        await told(s, await reader.asked(), UNREAD_EVENTS_MAX)
        s.client.pause()
        assert s.client.to_resume() == ()
        s.links.sent.clear()
        s.client.resume(next_ring(s), going_on(), "lost")
        assert not any(isinstance(one, Submit) for one in s.links.sent)
        await reader.events.aclose()
        await asyncio.wait_for(s.client.until_idle(), 1)


async def test_he_counts_as_waiting_only_while_the_ring_computes_for_him():
    async with Serving() as s:
        reader = Reader(s, 1000)
        line = s.client.forecaster.line
        request_id = await reader.asked()
        assert (line.waiting, line.running) == (0, 1)
        await told(s, request_id, UNREAD_EVENTS_MAX)
        assert (line.waiting, line.running) == (0, 0)
        await reader.read(UNREAD_EVENTS_MAX)
        reading = asyncio.create_task(reader.read())
        await until(lambda: line.waiting == 1)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert (line.waiting, line.running) == (0, 0)


class LongWords:
    """Tokenizer of tokens that are long."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return "x" * (UNREAD_CHARS_MAX // 4) * len(token_ids)


async def test_long_text_fills_what_may_wait_sooner():
    async with Serving() as s:
        reader = Reader(s, 1000)
        s.client.whole_card = replace(CARD, tokenizer=LongWords())
        request_id = await reader.asked()
        await told(s, request_id, 3)
        assert isinstance(s.links.sent[-1], Submit)
        await told(s, request_id, 1)
        assert s.links.sent[-1] == Cancel(request_id)
        await reader.read(4)
        reading = asyncio.create_task(reader.read())
        await until(lambda: isinstance(s.links.sent[-1], Submit))
        await told(s, s.links.sent[-1].request.request_id, 3)
        await reading
        assert isinstance(s.links.sent[-1], Submit), "what was read counts no more"
