"""Engines that compute nothing, for tests of what a stage does around them."""

import threading
from dataclasses import dataclass, field

import numpy as np

from molink.engine_protocol.values import (
    EngineReport,
    Prepared,
    RowsKept,
    StepInputs,
    StepResult,
)
from molink.stage_protocol.messages import StageLoaded
from molink_scheduler.batch import BatchClass
from molink_scheduler.request import ModelLimits

HIDDEN = 64
KV_BLOCKS = 32
LAST_REQUEST = 99
"""Ends the stage."""

LOADED = StageLoaded(1, None, "cpu", "float32", 16 * KV_BLOCKS, 0)


class Ended(Exception):
    """The stage was told to end."""


def layers(*, is_head: bool = False, is_tail: bool = False) -> Prepared:
    """Layers of a stage with little KV."""
    limits = ModelLimits(1024, 100)
    return Prepared(LOADED, range(4), is_head, is_tail, False, HIDDEN, KV_BLOCKS, 1024, limits)


@dataclass
class EchoTail:
    """Computes nothing; keeps the rows that it was given."""

    held: set[int] = field(default_factory=set)
    kept: list[tuple[int, int]] = field(default_factory=list)
    """Requests that went on, and tokens of each."""
    kv_tokens_used: int = 0
    host_is_short: bool = False
    lender_is_lost: bool = False
    wiped: list[int] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)
    computed_s: float | None = None
    places: list[int] = field(default_factory=list)
    """KV blocks that it was told to have places for."""
    in_prefill: threading.Event = field(default_factory=threading.Event)

    def admit(self, batch, interrupt, make_room):
        return ()

    def step(self, inputs: StepInputs, interrupt, make_room) -> StepResult:
        if inputs.batch.batch_class is BatchClass.PREFILL:
            self.in_prefill.set()
            while not self.rows:
                interrupt()
        self.rows.append(np.concatenate(inputs.rows))
        self.held |= {span.request_id for span in inputs.batch.spans}
        return StepResult(None, computed_s=self.computed_s)

    def release(self, release, *, wiped):
        if wiped:
            self.wiped.append(release.request_id)
        self.kv_tokens_used = 0
        self.held.discard(release.request_id)
        if release.request_id == LAST_REQUEST:
            raise Ended

    def rows_kept(self, resume, computed, has_rows):
        missing = resume.missing(computed, has_rows)
        self.kept += resume.without(missing).requests
        gone = frozenset(self.held) - dict(self.kept).keys()
        self.lender_is_lost = False
        return RowsKept(missing, gone, frozenset(), chains_stay=False)

    def blocks_out(self, change):
        return None

    def hold(self, blocks):
        self.places.append(blocks)

    def report(self, *, watched):
        return EngineReport(
            self.kv_tokens_used, 0, None, self.host_is_short, lender_is_lost=self.lender_is_lost
        )


@dataclass
class EchoHead:
    """Computes zeros; ends with the release of its request."""

    token_ids: list[tuple[int, ...]] = field(default_factory=list)

    def admit(self, batch, interrupt, make_room):
        return ()

    def step(self, inputs: StepInputs, interrupt, make_room) -> StepResult:
        self.token_ids.append(inputs.token_ids)
        return StepResult(np.zeros((inputs.batch.tokens, HIDDEN), np.float32))

    def release(self, release, *, wiped):
        raise Ended

    def report(self, *, watched):
        return EngineReport(0, 0, None, host_is_short=False)
