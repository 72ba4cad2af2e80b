"""A stage's core from the moment at which it joins a ring, or goes on in another epoch of it.

The core says what survivors keep and how a replaced stage is fed (`molink_scheduler.resume`).
"""

from molink.engine_protocol.values import Prepared, RowsKept
from molink.stage.entering import resume_of
from molink.stage_protocol.messages import EnterRing, FollowRing
from molink.wire.elements import ELEMENT_BYTES
from molink.wire.frames import TOKEN_ID
from molink_scheduler.head.kept_requests import KeptRequests
from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import HeadSettings
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.capacity import StageRoom
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.resume import Resume
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.core import StageCore, WorkSource
from molink_scheduler.stage.queue import StageQueue
from molink_scheduler.stage.shadow_queue import ShadowQueue
from molink_scheduler.timing.steps import fed_rows_max

NOTHING_KEPT = RowsKept((), frozenset(), frozenset(), chains_stay=False)


def new_core(
    layers: Prepared,
    join: EnterRing,
    room: StageRoom,
    kept: RowsKept = NOTHING_KEPT,
    before: WorkSource | None = None,
) -> StageCore:
    """Decision maker of a stage from the moment at which it joins, with what it has `kept`. It
    counts with the stage's `room`, which outlives it.
    `before`: the source of work of the ring's epoch before, if what was cached may stay."""
    resume = resume_of(join).without(kept.missing)
    source = _source(layers, join, room, resume, kept, before)
    return StageCore(source, layers.is_tail, resume)


def _source(
    layers: Prepared,
    join: EnterRing,
    room: StageRoom,
    resume: Resume,
    kept: RowsKept,
    before: WorkSource | None,
) -> WorkSource:
    if layers.is_head:
        row_bytes = layers.hidden_size * ELEMENT_BYTES[layers.dtype]
        row_bytes += TOKEN_ID.itemsize * layers.takes_token_ids
        settings = HeadSettings(join.ring, row_bytes, limits=layers.limits)
        cache = before.book.cache if isinstance(before, HeadScheduler) else None
        requests = KeptRequests(resume, frozenset(kept.missing))
        head = HeadScheduler(settings, requests, cache, room)
        if isinstance(before, HeadScheduler):
            head.book.fetches.follow(before.book.fetches)
        return head
    ledger = KvLedger(room.blocks, layers.loaded.state_slots, layers.loaded.folds)
    table = BlockTable.of(ledger, join.ring.tiers)
    book = StageBook.of(table, layers.limits, join.ring.state_snapshots, room)
    book.resume(resume, frozenset() if before is None else kept.cached, kept.away)
    chosen = join.ring.span_tokens
    fed_max = fed_rows_max(chosen, passed_on=resume.next_fresh)
    rows_max, cut_tokens = chosen or SPAN_TOKENS, join.ring.cut_tokens
    queue = ShadowQueue if isinstance(join, FollowRing) else StageQueue
    refills = resume.chains_stay
    return queue.for_steps_of(rows_max, book, cut_tokens, fed_max, refills=refills)
