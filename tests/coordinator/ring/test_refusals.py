"""A ring's client: what neither a link, a head nor a stage takes ends one request, or the ring."""

import asyncio
from types import SimpleNamespace

import pytest

from molink.coordinator.ring import live_sequence
from molink.coordinator.ring.links import (
    HeadLost,
    RingClientLinks,
)
from molink.errors import (
    FrameError,
    InvalidRequestError,
    LinkFullError,
    RingError,
    RowsRefusedError,
)
from molink.serving.service import GenerationRequest
from molink.transport.link.process_links import ProcessLinks
from molink.wire.frames import (
    Cancel,
    FinishReason,
    TokenSample,
)
from molink_scheduler.request import SamplingParams
from tests.coordinator.ring.ring_serving import (
    LENGTH,
    Serving,
    asked,
)


async def test_a_full_link_refuses_and_keeps_nothing():
    async with Serving() as s:
        s.links.is_full = True
        with pytest.raises(RingError, match="lost"):
            await s.ask()
        assert s.client.outstanding_tokens == 0
        await asyncio.wait_for(s.client.until_idle(), 1)


async def test_a_cancel_that_finds_a_full_link_is_no_error():
    async with Serving() as s:
        answer = s.ask()
        await s.submitted()
        s.links.is_full = True
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
        assert s.client.outstanding_tokens == 0


async def test_a_head_that_takes_nothing_more_counts_as_lost(monkeypatch):
    links = RingClientLinks.bind("127.0.0.1", 1)
    links.head = object()

    def refuse(*arguments: object) -> None:
        raise LinkFullError("9 messages wait for it")

    monkeypatch.setattr(ProcessLinks, "send", refuse)
    with pytest.raises(RingError, match="9 messages wait"):
        links.send(Cancel(1))
    assert await links.next_event() == HeadLost(
        "The link to the head is lost: 9 messages wait for it."
    )
    links.close()


async def test_words_that_the_model_has_no_row_for_never_reach_the_ring():
    async with Serving() as s:
        for asked in ({"logit_bias": ((100, 1.0),)}, {"stop_token_ids": (3, 100)}):
            with pytest.raises(InvalidRequestError, match=r"none for the token 100\b"):
                await s.ask(**asked)
        for request, output in (((1, 100), ()), ((1, 2), (100,))):
            with pytest.raises(InvalidRequestError, match=r"none for the token 100\b"):
                await s.drain(GenerationRequest(request, SamplingParams(4)), output)
        assert s.links.sent == [] and s.client.outstanding_tokens == 0


async def test_what_the_head_refuses_ends_that_request_alone():
    async with Serving() as s:
        answer, request_id = await asked(s)
        beside, other = await asked(s)
        health = SimpleNamespace(
            recent_refused=((request_id, "it cannot be"), (99, "of nobody")),
            recent_prompts=(),
            recent_pieces=(),
        )
        for _ in range(2):  # A head repeats what it says, for a report may be lost.
            s.client.note_prompts(health, 0.0)
        with pytest.raises(InvalidRequestError, match="The ring cannot compute this: it cannot be"):
            await answer
        s.links.tell(TokenSample(other, 7), TokenSample(other, 8, LENGTH))
        assert await beside == [7, 8]
        assert s.client.unready_reason is None and not any(one.failed for one in s.stages)


@pytest.mark.parametrize(
    ("finish", "said"),
    [(FinishReason.REFUSED, "send it again"), (FinishReason.OVERFLOWN, "--dtype float32")],
)
async def test_what_a_stage_refuses_ends_that_request_alone_whatever_it_still_waits_for(
    finish, said
):
    async with Serving() as s:
        answer, request_id = await asked(s)
        beside, other = await asked(s)
        s.links.tell(TokenSample(request_id, 0, finish), TokenSample(request_id, 0, finish))
        with pytest.raises(RowsRefusedError, match=said):
            await answer
        s.links.tell(TokenSample(request_id, 0, finish), TokenSample(other, 8, LENGTH))
        assert await beside == [8]
        assert s.client.unready_reason is None and not any(one.failed for one in s.stages)


async def test_what_no_head_could_read_is_refused_before_it_is_sent(monkeypatch):
    def unreadable(frames, role):
        raise FrameError("a header of 5000000 bytes, 4194304 is the most")

    monkeypatch.setattr(live_sequence, "decode_message", unreadable)
    async with Serving() as s:
        with pytest.raises(InvalidRequestError, match="No ring can read this request: a header of"):
            await s.ask()
        assert s.links.sent == []
