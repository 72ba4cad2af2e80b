"""Whose download runs, waits or goes on beside the slots."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from molink.agents_api.slots import (
    SLOW_AFTER_S,
    SLOW_BYTES_PER_S,
    DownloadSlots,
    NoSlotError,
    RateCap,
    TakenOverError,
)


async def test_slots_go_round_and_the_line_is_bounded():
    slots = DownloadSlots(count=1, wait_s=0.0)
    async with slots.one("a"):
        assert slots.busy == 1
        assert (slots.has_others("a"), slots.has_others("b")) == (False, True)
        with pytest.raises(NoSlotError):
            async with slots.one("b"):
                pass
    async with slots.one("b"):
        assert slots.busy == 1
    assert slots.busy == 0


async def hold(slots, pc):
    """A download that ends when its PC asks anew; returns once it has its slot."""
    has_slot = asyncio.Event()

    async def download():
        async with slots.one(pc):
            has_slot.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(download())
    async with asyncio.timeout(5):
        await has_slot.wait()
    return task


async def test_a_pcs_newer_download_takes_over_from_its_older_one():
    slots = DownloadSlots(count=2)
    other, older = await hold(slots, "b"), await hold(slots, "a")
    async with asyncio.timeout(5), slots.one("a"):
        with pytest.raises(TakenOverError):
            await older
        assert slots.busy == 2 and not other.done()
    other.cancel()
    await asyncio.wait([other])
    assert slots.busy == 0


async def test_a_pcs_newer_request_takes_over_from_one_that_waits():
    slots = DownloadSlots(count=1)
    async with slots.one("b"):
        older = asyncio.create_task(slots.one("a").__aenter__())
        await asyncio.sleep(0)
        newer = asyncio.create_task(slots.one("a").__aenter__())
        async with asyncio.timeout(5):
            with pytest.raises(TakenOverError):
                await older
    async with asyncio.timeout(5):
        await newer
    assert slots.busy == 1


async def test_who_is_too_slow_for_those_who_wait_goes_on_beside_the_slots():
    now = 0.0
    slots = DownloadSlots(count=2, clock=lambda: now)
    async with AsyncExitStack() as stack:
        slow, quick = [await stack.enter_async_context(slots.one(pc)) for pc in ("a", "b")]
        now = SLOW_AFTER_S - 0.1
        slots.give_away_slow()
        assert slots.busy == 2, "nobody is judged by a moment"
        now = SLOW_AFTER_S
        slow.sent_bytes, quick.sent_bytes = 43_000, int(SLOW_BYTES_PER_S * SLOW_AFTER_S)
        async with slots.one("c"):
            assert slots.busy == 2
        async with asyncio.timeout(5), slots.one("c"):
            assert slots.busy == 2, "the slot was given away once"
    assert slots.busy == 0
    async with slots.one("a"), slots.one("b"):
        assert slots.busy == 2


async def test_no_more_than_so_many_go_on_beside_the_slots(monkeypatch):
    monkeypatch.setattr("molink.agents_api.slots.SLOW_MAX", 1)
    now = 0.0
    slots = DownloadSlots(count=2, wait_s=0.0, clock=lambda: now)
    async with slots.one("a"), slots.one("b"):
        now = 2 * SLOW_AFTER_S
        slots.give_away_slow()
        assert slots.busy == 1


async def test_who_stops_waiting_takes_no_slot_along():
    slots = DownloadSlots(count=1)
    async with slots.one("a"):
        waiting = asyncio.create_task(slots.one("b").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    async with asyncio.timeout(5), slots.one("b"):
        assert slots.busy == 1


def test_the_cap_spaces_all_downloads_together():
    now = 10.0
    cap = RateCap(1000.0, lambda: now)
    assert [cap.reserve(500), cap.reserve(250), cap.reserve(1)] == [0.0, 0.5, 0.75]
    now = 12.0
    assert cap.reserve(1) == 0.0
    assert RateCap(None).reserve(10**12) == 0.0
