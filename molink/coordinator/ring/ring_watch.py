"""Watches over a ring that serves, each of which waits until its epoch has to end.

One looks for stages that are silent, one for rows that are no numbers, and one for lenders of KV
that are lost, or have come. Whether the ring moves on at all is seen from its progress
(`upkeep/ring_progress.py`).
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from molink.coordinator.ring.lent_room import grown_terms
from molink.coordinator.ring.ring import Ring
from molink.coordinator.ring.stage_watch import StageFailure, silences_s
from molink.errors import LenderLostError, RoomGrownError
from molink.serving.events import EventKind

PERIOD_S = 0.02
"""How often it is looked whether a stage has lost its lender: its ring stands until then."""

SILENCE_PERIOD_S = 0.1
"""Between two looks for stages that are silent."""

ROWS_REFUSED_MAX = 3
"""Requests that a stage may refuse for its neighbour's rows, until one of both is left out."""

SILENT = "neither its neighbours nor the coordinator get anything from its stage"

Note = Callable[[EventKind, str, str], None]
"""Adds an event of the ring: its kind, what the ring does, and the name of a node or nothing."""


async def watch_silence(
    ring: Ring, is_lost: Callable[[Ring, int, float], bool], note: Note, clock: Callable[[], float]
) -> None:
    """Note each stage that falls silent; raises StageError when one stays so. `is_lost`: whether
    the stage of that place is, which has been silent for so many seconds."""
    known: set[int] = set()
    while True:
        await asyncio.sleep(SILENCE_PERIOD_S)
        found = silences_s([stage.seen for stage in ring.stages], now := clock())
        silent = {place: silent_s for place, silent_s in enumerate(found) if silent_s}
        for one in (ring.stages[place] for place in silent.keys() - known):
            note("stage_silent", f"waits for {one.name}: {SILENT}", one.name)
        for place, silent_s in silent.items():
            stage = ring.stages[place]
            if is_lost(ring, place, silent_s):
                silence = f"{stage.name} has been silent for {silent_s:.0f} s"
                raise stage.silent(f"{silence}: {SILENT}.", now)
        known = set(silent)


async def watch_rows(ring: Ring, complained: Callable[[StageFailure], bool], note: Note) -> None:
    """Note each stage that refuses rows of the one before, which costs their requests only; raises
    StageError when that is all too often, or not the first ring of one of both."""
    known = [stage.rows_refused for stage in ring.stages]
    while True:
        await asyncio.sleep(SILENCE_PERIOD_S)
        for place, stage in enumerate(ring.stages):
            if (refused := stage.rows_refused) <= known[place]:
                continue
            previous, known[place] = ring.stages[place - 1], refused
            what = f"{stage.name} has refused rows of {previous.name} that are no numbers"
            failure = StageFailure(stage.node.node_id, f"{what}.", previous.node.node_id)
            note("rows_refused", f"goes on, but {what}", "")
            if complained(failure) or refused >= ROWS_REFUSED_MAX:
                raise stage.fail(failure.reason, failure.about)


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
