"""Requests whose ring has lost stages: what is computed anew, and when it is given up."""

from types import SimpleNamespace

import pytest

from molink.coordinator.requests import ring_client
from molink.errors import StageError
from molink.wire.frames import TokenSample
from molink_scheduler.head.settings import RingTerms
from tests.coordinator.requests.test_ring_client import Serving, asked, next_ring, until


async def test_a_request_without_a_token_since_the_last_loss_is_computed_anew():
    async with Serving() as s:
        _, request_id = await asked(s)
        s.links.tell(TokenSample(request_id, 7))
        await until(lambda: s.client.tokens_sent == 1)
        s.client.pause()
        s.client.go_on(next_ring(s), dict(s.client.to_resume()), (), "lost")
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


async def test_a_request_that_has_met_too_many_losses_fails():
    async with Serving() as s:
        answer, _ = await asked(s)
        for _ in range(ring_client.LOSSES_MAX):
            s.client.pause()
            s.client.go_on(next_ring(s), (), (), "lost")
        assert not answer.done()
        s.client.pause()
        s.client.go_on(next_ring(s), (), (), "lost")
        with pytest.raises(StageError, match="losses of a stage"):
            await answer
        assert not s.client.outstanding_tokens
