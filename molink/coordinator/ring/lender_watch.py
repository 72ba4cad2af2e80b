"""Lenders of a ring's stages, which hold KV for them: those that are lost, and those that come."""

import asyncio
from dataclasses import replace

from molink.coordinator.ring.lent_room import grown_terms
from molink.coordinator.ring.ring import Ring
from molink.errors import LenderLostError, RoomGrownError

PERIOD_S = 0.02
"""How often it is looked whether a stage has lost its lender: its ring stands until then."""


async def watch_lenders(ring: Ring) -> None:
    """Wait until the ring has to go on in another epoch, with all of its stages: raises
    LenderLostError when one has lost what its lender held of its KV in the present epoch, perhaps
    before this watch began, and RoomGrownError when lenders have brought more room than the ring's
    terms let it count with."""
    while True:
        for stage in ring.stages:
            if stage.health is not None and stage.health.lender_lost_in == stage.epoch:
                raise LenderLostError(f"{stage.name} has lost what its lender held of its KV")
        if (grown := grown_terms(ring.terms.ring, ring.stages)) is not None:
            raise RoomGrownError(
                f"lenders have brought room for {grown.kv_tokens_capacity:,} tokens"
            )
        await asyncio.sleep(PERIOD_S)


def on_grown_terms(ring: Ring) -> Ring:
    """The ring on the terms on which it counts with all that lenders have brought."""
    grown = grown_terms(ring.terms.ring, ring.stages)
    return ring if grown is None else replace(ring, terms=replace(ring.terms, ring=grown))
