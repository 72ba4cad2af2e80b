"""Room for KV that stages offer: what the head is told of it, and who is told that it waits."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from molink.coordinator.ring import client as ring_client
from molink.coordinator.ring.live_sequence import RequestStalledError
from molink.coordinator.ring.room_watch import BACK_WITHIN_S, terms_now
from molink.errors import InvalidRequestError
from molink.serving.timeline import RequestTimeline
from molink.wire.frames import Cancel, SetCapacity, SetCodec, TokenSample
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.capacity import Offer, RingCapacity
from tests.coordinator.ring.ring_serving import (
    FakeStage,
    Serving,
    asked,
    going_on,
    next_ring,
    until,
)
from tests.coordinator.upkeep.world import REPORT


def nowhere(tokens: int) -> bool:
    return False


async def test_the_head_counts_with_the_least_that_any_stage_offers():
    async with Serving() as s:
        s.client.update_capacity(nowhere)
        assert s.links.sent == [], "all offer what they have loaded, which the head knows"
        s.stages[1].offer = Offer(1, 2)
        for _ in range(2):
            s.client.update_capacity(nowhere)
        assert s.links.sent == [SetCapacity(RingCapacity(2, (0, 1)))]
        s.stages[0].offer, s.stages[1].offer = Offer(4, 3), Offer(2, 9)
        s.client.update_capacity(nowhere)
        assert s.links.sent[1:] == [SetCapacity(RingCapacity(3, (4, 2)))]


async def test_in_the_next_epoch_the_head_hears_of_it_before_anything_is_asked_of_it():
    async with Serving() as s:
        s.stages[1].offer = Offer(1, 2)
        s.client.update_capacity(nowhere)
        s.client.pause()
        s.stages[1].offer = Offer(2, 1)
        s.client.update_capacity(nowhere)
        s.client.resume(next_ring(s), going_on(), "lost")
        s.client.update_capacity(nowhere)
        assert s.links.sent[1:] == [SetCapacity(RingCapacity(1, (0, 2))), SetCodec("raw")]


async def test_no_more_requests_go_on_than_there_is_room_for_now():
    async with Serving() as s:
        ids = []
        for count in (1, 2, 3):
            s.ask(max_tokens=30)
            ids.append(await s.submitted(count))
            s.links.tell(TokenSample(ids[-1], 7))
            await until(lambda: s.client.tokens_sent == len(ids))
        assert dict(s.client.to_resume()).keys() == set(ids)
        s.stages[0].offer = Offer(1, 2)
        assert dict(s.client.to_resume()).keys() == set(ids[:2])


@pytest.mark.parametrize(
    ("offers", "now", "most"),
    [
        ((Offer(0, 4), Offer(0, 9)), 64, 64),
        ((Offer(1, 3), Offer(0, 9)), 48, 64),
        ((Offer(3, 4), Offer(0, 9)), 64, 64),
    ],
)
def test_the_longest_request_is_what_the_ring_holds_with_all_places(offers, now, most):
    stages = [FakeStage("anna", offer=offer) for offer in offers]
    terms = terms_now(RingTerms(64), stages)
    assert (terms.kv_tokens_capacity, terms.tokens_most) == (now, most)
    again = terms_now(terms, [FakeStage("anna", offer=Offer(0, 4))])
    assert again.kv_tokens_capacity == 64, "who had offered less is not there any more"


async def test_who_waits_for_room_is_told_so_with_both_figures():
    async with Serving() as s:
        _, request_id = await asked(s, max_tokens=50)
        live = s.client._live[request_id]
        live.timeline = timeline = RequestTimeline("m", 2, 50)
        s.stages[0].offer = Offer(1, 2)
        s.stages[0].health = replace(REPORT, without_room=(request_id,))
        s.client.update_capacity(nowhere)
        assert timeline.report(0.0).waits_for == (
            "It may grow to 51 tokens, and its ring has room for 32 of 64 now: it waits until more "
            "is back."
        )
        lent = replace(s.client.ring.terms.ring, requests_max=4)
        s.client.ring.terms = SimpleNamespace(ring=lent)
        s.client.update_capacity(nowhere)
        assert timeline.report(0.0).waits_for == (
            "It may grow to 51 tokens, and its ring has room for 32 of 64 now: it waits for a "
            "lender with room for 19 tokens more of anna, 1.9e-05 GB."
        )
        s.stages[0].health = REPORT
        s.client.update_capacity(nowhere)
        assert timeline.report(0.0).waits_for == ""


async def lacking_room(s: Serving, max_tokens: int = 50):
    """A request that waits for room that its ring has had, and has no more."""
    answer, request_id = await asked(s, max_tokens=max_tokens)
    s.stages[0].offer = Offer(1, 2)
    s.stages[0].health = replace(REPORT, without_room=(request_id,))
    return answer, request_id


async def test_what_is_too_long_is_refused_at_once_where_nobody_may_lend():
    async with Serving() as s:
        answer, request_id = await lacking_room(s)
        s.client.update_capacity(nowhere, may_grow=False)
        with pytest.raises(InvalidRequestError, match=r"50 exceed the model.s 32: .* 32"):
            await answer
        assert s.links.sent[-1] == Cancel(request_id)
        with pytest.raises(InvalidRequestError, match=r"exceed the model's 32"):
            await s.ask(max_tokens=31)
        kept = s.ask(max_tokens=30)
        await s.submitted(len(s.links.sent) + 1)
        s.client.update_capacity(nowhere, may_grow=False)
        assert not kept.done() and s.client.card.model_len_max == 32


async def test_what_is_too_long_waits_for_a_lender_for_some_minutes(monkeypatch):
    times = SimpleNamespace(now=0.0)
    monkeypatch.setattr(ring_client, "time", SimpleNamespace(monotonic=lambda: times.now))
    async with Serving() as s:
        answer, _ = await lacking_room(s)
        for times.now in (0.0, 100.0, BACK_WITHIN_S - 0.1):
            s.client.update_capacity(nowhere)
            assert s.client.card.model_len_max == 64 and not answer.done()
        times.now = BACK_WITHIN_S
        s.client.update_capacity(nowhere)
        with pytest.raises(InvalidRequestError, match="32"):
            await answer


async def test_what_has_come_back_is_let_in_again_and_waited_for_again(monkeypatch):
    times = SimpleNamespace(now=0.0)
    monkeypatch.setattr(ring_client, "time", SimpleNamespace(monotonic=lambda: times.now))
    async with Serving() as s:
        s.stages[0].offer = Offer(1, 2)
        s.client.update_capacity(nowhere, may_grow=False)
        assert s.client.card.model_len_max == 32
        s.stages[0].offer = Offer(2, 4)
        s.client.update_capacity(nowhere, may_grow=False)
        assert s.client.card.model_len_max == 64
        times.now = 1000.0
        answer, _ = await lacking_room(s)
        s.stages[0].offer = Offer(3, 3)
        s.client.update_capacity(nowhere)
        assert not answer.done() and s.client.card.model_len_max == 64


async def test_what_is_too_long_goes_on_in_another_ring_that_holds_it():
    async with Serving() as s:
        answer, _ = await lacking_room(s)
        moved = []
        s.client.update_capacity(lambda tokens: not moved.append(tokens), may_grow=False)
        with pytest.raises(RequestStalledError):
            await answer
        assert moved == [52]
