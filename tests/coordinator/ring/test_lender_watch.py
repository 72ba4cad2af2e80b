"""A ring is told of a lender that a stage has lost, whenever that was."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from molink.coordinator.ring.lender_watch import watch_lenders
from molink.errors import LenderLostError
from tests.coordinator.upkeep.world import REPORT

EPOCH = 7


def stages(lost_in: int | None) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(name=f"pc{number}", epoch=EPOCH, health=health)
        for number, health in enumerate((None, replace(REPORT, lender_lost_in=lost_in)))
    ]


async def test_a_lender_may_be_lost_before_its_rings_epoch_is_watched():
    """The stage has entered the epoch, and others have not."""
    with pytest.raises(LenderLostError, match="pc1"):
        async with asyncio.timeout(5):
            await watch_lenders(stages(EPOCH))


@pytest.mark.parametrize("lost_in", [None, EPOCH - 1])
async def test_what_was_lost_in_an_epoch_before_counts_no_more(lost_in):
    watched = stages(lost_in)
    watch = asyncio.create_task(watch_lenders(watched))
    await asyncio.sleep(0)
    assert not watch.done()
    watched[1].health = replace(REPORT, lender_lost_in=EPOCH)
    with pytest.raises(LenderLostError):
        async with asyncio.timeout(5):
            await watch
