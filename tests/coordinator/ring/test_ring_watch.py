"""An epoch ends for a lender that is lost or comes, and for rows that are often no numbers."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from molink.coordinator.ring import ring_watch
from molink.coordinator.ring.ring import JoinTerms, Ring
from molink.coordinator.ring.ring_watch import on_grown_terms, watch_lenders, watch_rows
from molink.errors import LenderLostError, RoomGrownError, StageError
from molink.stage_protocol.messages import StageLoaded
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.capacity import Offer
from tests.coordinator.upkeep.world import LOADED, REPORT

EPOCH = 7
TERMS = RingTerms(kv_tokens_capacity=640)


def ring(lost_in: int | None = None, terms: RingTerms = TERMS) -> Ring:
    """A ring of two stages with 640 tokens each."""
    loaded = StageLoaded(**LOADED | {"kv_tokens_capacity": 640})
    stages = [
        SimpleNamespace(
            name=f"pc{number}", epoch=EPOCH, health=health, loaded=loaded, offer=Offer(0, 40)
        )
        for number, health in enumerate((None, replace(REPORT, lender_lost_in=lost_in)))
    ]
    return Ring(stages, JoinTerms(terms, None), None)


async def test_a_lender_may_be_lost_before_its_rings_epoch_is_watched():
    """The stage has entered the epoch, and others have not."""
    with pytest.raises(LenderLostError, match="pc1"):
        async with asyncio.timeout(5):
            await watch_lenders(ring(EPOCH))


@pytest.mark.parametrize("lost_in", [None, EPOCH - 1])
async def test_what_was_lost_in_an_epoch_before_counts_no_more(lost_in):
    watched = ring(lost_in)
    watch = asyncio.create_task(watch_lenders(watched))
    await asyncio.sleep(0)
    assert not watch.done()
    watched.stages[1].health = replace(REPORT, lender_lost_in=EPOCH)
    with pytest.raises(LenderLostError):
        async with asyncio.timeout(5):
            await watch


async def test_a_ring_goes_on_on_other_terms_once_all_of_its_stages_offer_more():
    watched = ring()
    watch = asyncio.create_task(watch_lenders(watched))
    watched.stages[0].offer = Offer(1, 100)
    await asyncio.sleep(0.1)
    assert not watch.done()
    watched.stages[1].offer = Offer(1, 90)
    with pytest.raises(RoomGrownError, match="room for 1,440 tokens"):
        async with asyncio.timeout(5):
            await watch
    terms = on_grown_terms(watched).terms.ring
    assert (terms.kv_tokens_capacity, terms.tokens_most) == (1440, 1440)
    assert terms.requests_max == 40 // 6
    assert on_grown_terms(grown := on_grown_terms(watched)) == grown


async def test_each_stage_that_refuses_rows_is_noted_until_it_is_too_often(monkeypatch):
    """What was refused before the watch began counts for the bound alone."""
    monkeypatch.setattr(ring_watch, "SILENCE_PERIOD_S", 0.0)
    held, noted = [], []
    one, other = [SimpleNamespace(name=name, rows_refused=1) for name in ("anna", "ben")]
    for stage in (one, other):
        stage.node = SimpleNamespace(node_id=f"id of {stage.name}")
        stage.fail = lambda reason, about: StageError(f"{reason} {about}")

    def complained(failure):
        held.append((failure.node_id, failure.about))
        other.rows_refused += 1  # Before the next look.
        return False

    watched = SimpleNamespace(stages=[one, other])
    watch = watch_rows(watched, complained, lambda kind, what, node: noted.append(kind))
    watching = asyncio.create_task(watch)
    await asyncio.sleep(0)
    other.rows_refused += 1
    with pytest.raises(StageError, match="ben has refused rows of anna"):
        async with asyncio.timeout(5):
            await watching
    assert held == [("id of ben", "id of anna")] * 2 and noted == ["rows_refused"] * 2
