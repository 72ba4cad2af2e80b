"""Requests whose ring has lost stages: what is computed anew, and when it is given up."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from molink.coordinator.ring import client as ring_client
from molink.errors import InvalidRequestError, StageError
from molink.serving.service import GenerationRequest
from molink.wire.frames import Cancel, ChangeCache, SetCodec, TokenSample
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.changes import AwayBlocks, RetainBlocks
from molink_scheduler.request import SamplingParams
from tests.coordinator.ring.ring_serving import (
    LENGTH,
    Serving,
    asked,
    going_on,
    next_ring,
    until,
)


async def test_a_request_without_a_token_since_the_last_loss_is_computed_anew():
    async with Serving() as s:
        _, request_id = await asked(s)
        s.links.tell(TokenSample(request_id, 7))
        await until(lambda: s.client.tokens_sent == 1)
        s.client.pause()
        s.client.resume(next_ring(s), going_on(dict(s.client.to_resume())), "lost")
        s.client.pause()
        assert s.client.to_resume() == ()


async def test_states_of_recurrent_layers_do_not_go_back():
    async with Serving() as s:
        _, request_id = await asked(s)
        s.links.tell(TokenSample(request_id, 7))
        await until(lambda: s.client.tokens_sent == 1)
        s.client.ring = SimpleNamespace(
            stages=s.stages, terms=SimpleNamespace(ring=RingTerms(64, state_slots=4))
        )
        assert s.client.to_resume() == ()
        windows = RingTerms(64, state_slots=4, can_go_back=True)
        s.client.ring = SimpleNamespace(stages=s.stages, terms=SimpleNamespace(ring=windows))
        assert s.client.to_resume() == ((request_id, 2),)


async def test_what_all_stages_have_cached_is_kept_unless_it_is_to_be_cleared():
    async with Serving() as s:
        here = RetainBlocks(((3, 4),), AwayBlocks(file=((7, 2),), directory=5))
        nothing = RetainBlocks(away=AwayBlocks(directory=5))
        for is_cleared, kept in ((False, here), (True, nothing)):
            s.client.pause()
            if is_cleared:
                s.client.clear_cache()
            s.links.sent.clear()
            s.client.resume(next_ring(s), replace(going_on(), cached=here), "lost")
            assert s.links.sent[0] == ChangeCache(kept)


async def test_a_request_that_has_met_too_many_losses_fails():
    async with Serving() as s:
        answer, _ = await asked(s)
        for _ in range(ring_client.LOSSES_MAX):
            s.client.pause()
            s.client.resume(next_ring(s), going_on(), "lost")
        assert not answer.done()
        s.client.pause()
        s.client.resume(next_ring(s), going_on(), "lost")
        with pytest.raises(StageError, match="losses of a stage"):
            await answer
        assert not s.client.outstanding_tokens


async def test_a_request_goes_on_under_its_number_from_the_tokens_that_came():
    async with Serving() as s:
        answer, request_id = await asked(s, max_tokens=3)
        s.links.tell(TokenSample(request_id, 7))
        await until(lambda: s.client.tokens_sent == 1)
        s.client.pause()
        listed = dict(s.client.to_resume())
        assert listed == {request_id: 2}, "two of the prompt; the drawn token is not computed yet"
        assert (s.client.served().held_tokens, s.client.served().interrupted) == (2, 0)
        s.links.sent.clear()
        s.client.resume(next_ring(s), going_on(listed), "lost")
        assert (s.client.served().held_tokens, s.client.served().interrupted) == (0, 1)
        _, again = s.links.sent
        assert isinstance(s.links.sent[0], SetCodec)
        assert (again.request.request_id, again.request.output) == (request_id, (7,))
        s.links.tell(TokenSample(request_id, 8), TokenSample(request_id, 9, LENGTH))
        assert await answer == [7, 8, 9]


async def test_what_a_stage_misses_is_computed_anew():
    async with Serving() as s:
        answer, request_id = await asked(s, max_tokens=2)
        s.links.tell(TokenSample(request_id, 7))
        await until(lambda: s.client.tokens_sent == 1)
        s.client.pause()
        s.links.sent.clear()
        s.client.resume(next_ring(s), going_on({request_id}, {request_id}), "lost")
        _, cancelled, again = s.links.sent
        assert cancelled == Cancel(request_id) and again.request.request_id > request_id
        assert again.request.output == (7,) and not s.client.to_resume()
        s.links.tell(TokenSample(again.request.request_id, 8, LENGTH))
        assert await answer == [7, 8]


async def test_who_goes_away_or_comes_during_a_loss_is_told_afterwards():
    async with Serving() as s:
        gone, gone_id = await asked(s)
        s.links.tell(TokenSample(gone_id, 7))
        await until(lambda: s.client.tokens_sent == 1)
        s.client.pause()
        s.links.sent.clear()
        gone.cancel()
        new = s.ask(max_tokens=1)
        await until(lambda: s.client.outstanding_tokens == 3)
        assert not s.links.sent
        s.client.resume(next_ring(s), going_on({gone_id}), "lost")
        _, cancelled, submitted = s.links.sent
        assert cancelled == Cancel(gone_id)
        s.links.tell(TokenSample(submitted.request.request_id, 5, LENGTH))
        assert await new == [5]


def cut_request() -> GenerationRequest:
    return GenerationRequest((1,) * 50, SamplingParams(max_tokens=5, kv_budget=0.7))


async def test_a_request_that_is_cut_is_computed_anew_when_a_stage_is_lost():
    """A replaced stage would be sent the rows of all tokens, and survivors have lost some."""
    async with Serving() as s:
        answer = asyncio.create_task(s.drain(cut_request()))
        request_id = await s.submitted()
        s.links.tell(TokenSample(request_id, 7))
        await until(lambda: s.client.tokens_sent == 1)
        assert s.client.to_resume() == ()
        s.client.pause()
        s.client.resume(next_ring(s), going_on(), "lost")
        again = s.links.sent[-1].request
        assert again.request_id != request_id and again.output == (7,)
        assert again.sampling.kv_budget == 0.7 and again.prompt_tokens == 50
        answer.cancel()


async def test_a_ring_that_lends_kv_cuts_none():
    async with Serving() as s:
        terms = SimpleNamespace(ring=RingTerms(64, requests_max=8))
        s.client.ring = SimpleNamespace(stages=s.stages, terms=terms)
        with pytest.raises(
            InvalidRequestError, match=r"others' of their LAN.*leave 'kv_budget' out"
        ):
            await s.drain(cut_request())
        assert not s.links.sent


async def test_a_ring_to_which_a_lender_comes_gives_up_what_is_cut():
    """Its stages would lend keys that a cut is to score and move; others go on."""
    async with Serving() as s:
        whole, _ = await asked(s)
        cut = asyncio.create_task(s.drain(cut_request()))
        await s.submitted(2)
        s.client.pause()
        grown = SimpleNamespace(ring=RingTerms(64, requests_max=8))
        s.client.resume(
            SimpleNamespace(**vars(next_ring(s)) | {"terms": grown}), going_on(), "room"
        )
        with pytest.raises(InvalidRequestError, match="leave 'kv_budget' out"):
            await cut
        assert not whole.done() and s.client.requests_live == 1
        whole.cancel()
