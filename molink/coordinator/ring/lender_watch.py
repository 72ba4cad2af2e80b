"""Lenders of a ring's stages: processes of their PCs that hold KV for them."""

import asyncio
from collections.abc import Sequence

from molink.coordinator.ring.agent_stage import AgentStage
from molink.errors import LenderLostError

PERIOD_S = 0.02
"""How often it is looked whether a stage has lost its lender: its ring stands until then."""


async def watch_lenders(stages: Sequence[AgentStage]) -> None:
    """Wait until a stage has lost what its lender held of its KV in the ring's present epoch,
    perhaps before this watch began, then raise LenderLostError. The stage is whole, but its ring
    has to go on in another epoch."""
    while True:
        for stage in stages:
            if stage.health is not None and stage.health.lender_lost_in == stage.epoch:
                raise LenderLostError(f"{stage.name} has lost what its lender held of its KV")
        await asyncio.sleep(PERIOD_S)
