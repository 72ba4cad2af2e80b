"""A sequence that is put aside goes on behind the tokens that have come, and none comes twice."""

import asyncio
from dataclasses import dataclass

import pytest

from molink.api.openai.batches import idle_service
from molink.api.openai.batches.idle_service import IdleService
from molink.errors import InvalidRequestError, RingError
from molink.serving.service import GenerationRequest
from molink.serving.timeline import RequestTimeline
from molink_scheduler.request import SamplingParams
from tests.api.conftest import FakeService


@dataclass
class Room:
    """A room as the test says."""

    most: int = 1

    def know(self, kv_tokens):
        self.known = kv_tokens

    def look(self, now, others, own):
        self.others, self.own = len(others), len(own)

    def aside(self, now, own):
        return {one.key for one in own[self.most :]}

    def avoided(self, now, kv_tokens):
        return frozenset({7}) if self.own < self.most else None


class GoingOn(FakeService):
    """As rings do: behind the tokens that the log knows of."""

    async def _generate(self, request):
        known = len(request.log.before.token_ids) if request.log is not None else 0
        place = 0
        async for event in super()._generate(request):
            place += 1
            if place > known:
                yield event

    async def _before_event(self, position):
        await asyncio.sleep(0.01)
        await super()._before_event(position)


def request_of(tokens=10):
    timeline = RequestTimeline("tiny", 2, tokens)
    return GenerationRequest((1, 2), SamplingParams(max_tokens=tokens), timeline=timeline)


async def text_of(service, request):
    return "".join([event.text async for event in service.generate(request)])


@pytest.fixture
async def idle(monkeypatch):
    monkeypatch.setattr(idle_service, "RETRY_S", 0.05)
    service = IdleService(GoingOn(), Room())
    running = asyncio.create_task(service.run())
    yield service
    running.cancel()


async def test_a_sequence_that_is_put_aside_goes_on(idle):
    asked = asyncio.create_task(text_of(idle, request_of()))
    for _ in range(3):
        await asyncio.sleep(0.06)
        idle.room.most = 0
        await asyncio.sleep(0.05)
        assert not idle.request_log.live and idle.room.others == 0
        idle.room.most = 1
    assert await asyncio.wait_for(asked, 5) == "abcdefghij"
    stays = idle.service.requests
    assert len(stays) > 1 and idle.request_log.ended[-1].finish_reason == "cancelled"
    assert idle.wants_more


async def test_where_it_is_not_to_begin_is_told_with_the_request(idle):
    assert await text_of(idle, request_of()) == "abcdefghij"
    assert idle.service.requests[-1].avoids == {7} and idle.room.known == {}


async def test_others_are_told_from_ours(idle):
    asked = asyncio.create_task(text_of(idle, request_of()))
    other = asyncio.create_task(text_of(idle.service, request_of()))
    await asyncio.sleep(0.08)
    assert idle.room.others == 1
    await asyncio.gather(asked, other)


async def test_a_ring_that_fails_is_tried_again_and_a_wrong_request_is_not(idle):
    idle.service.failure, idle.service.events_before_failure = RingError("lost"), 4
    asked = asyncio.create_task(text_of(idle, request_of()))
    await asyncio.sleep(0.1)
    idle.service.failure = None
    assert await asyncio.wait_for(asked, 5) == "abcdefghij"
    idle.service.failure = InvalidRequestError("too long")
    with pytest.raises(InvalidRequestError):
        await asyncio.wait_for(text_of(idle, request_of()), 5)


async def test_nothing_begins_while_the_service_is_not_ready(idle):
    idle.service.unready_reason = "no ring"
    asked = asyncio.create_task(text_of(idle, request_of()))
    await asyncio.sleep(0.06)
    assert not idle.service.requests and not idle.wants_more
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert idle.wants_more


async def test_closing_the_generator_cancels_it(idle):
    idle.service.events_before_hold = 2
    events = idle.generate(request_of())
    assert (await anext(events)).text == "a"
    await events.aclose()
    assert not idle.request_log.live
