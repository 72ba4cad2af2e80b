"""A stage's place in its ring, when it joins and when it goes on in another epoch.

What survivors keep and how a replaced stage is fed is the core's to say; here are the rows
themselves, of which a stage keeps a log for the one behind it (`molink_scheduler.resume`).
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import torch

from molink.engine.step.extended_stage import Executor
from molink.stage.packing import Packing
from molink.stage_protocol.messages import EnterRing, FollowRing, JoinRing
from molink.wire.frames import TOKEN_ID, Activations
from molink_scheduler.batch import Admission, Batch
from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import HeadSettings
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.request import ModelLimits
from molink_scheduler.resume import Resume
from molink_scheduler.stage.away import AwayBook
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.core import StageCore, WorkSource
from molink_scheduler.stage.queue import StageQueue
from molink_scheduler.stage.replay_log import ReplayLog, SentRows
from molink_scheduler.stage.shadow_queue import ShadowQueue
from molink_scheduler.timing.steps import REPLAY_ROWS_MAX


def new_core(
    executor: Executor,
    join: EnterRing,
    missing: Collection[int] = (),
    before: WorkSource | None = None,
) -> StageCore:
    """Decision maker of a stage from the moment at which it joins. Of the requests listed in
    `resume` it cannot go on with those that are `missing`. `before`: that of the ring's epoch
    before, if what was cached may stay."""
    resume = resume_of(join).without(missing)
    return StageCore(_source(executor, join, resume, missing, before), executor.is_tail, resume)


def resume_of(command: EnterRing) -> Resume:
    """What a stage keeps that enters a ring's epoch: nothing where the ring begins."""
    match command:
        case JoinRing(resume=resume):
            return resume or Resume()
        case FollowRing():
            return Resume()
        case _:
            assert_never(command)


def _source(
    executor: Executor,
    join: EnterRing,
    resume: Resume,
    missing: Collection[int],
    before: WorkSource | None,
) -> WorkSource:
    model = executor.description
    limits = ModelLimits(model.model_len_max, model.vocabulary_size)
    if executor.is_head:
        row_bytes = executor.hidden_size * executor.dtype.itemsize
        row_bytes += TOKEN_ID.itemsize * executor.takes_token_ids
        settings = HeadSettings(join.ring, row_bytes, limits=limits)
        directory = before.book.directory if isinstance(before, HeadScheduler) else None
        return HeadScheduler(settings, resume, frozenset(missing), directory)
    away = AwayBook(join.ring.tiers or CacheTiers())
    ledger = KvLedger(executor.kv.blocks_total, executor.state_slots)
    book = StageBook(ledger, limits, away, join.ring.state_snapshots)
    book.resume(resume, frozenset() if before is None else executor.kv.cached_numbers())
    chosen = join.ring.span_tokens
    replayed_max = None if resume.next_fresh else chosen or REPLAY_ROWS_MAX
    rows_max, cut_tokens = chosen or SPAN_TOKENS, join.ring.cut_tokens
    queue = ShadowQueue if isinstance(join, FollowRing) else StageQueue
    refills = resume.chains_stay
    return queue.for_steps_of(rows_max, book, cut_tokens, replayed_max, refills=refills)


@dataclass(slots=True)
class SentLog:
    """Rows that a stage has sent of live requests, and the messages that send them again."""

    packing: Packing
    dtype: torch.dtype
    bytes_max: float
    log: ReplayLog = field(init=False)
    codec: str = field(init=False, default="raw")
    """Codec of the rows that were kept last."""

    def __post_init__(self) -> None:
        self.log = ReplayLog(self.bytes_max)

    def keep(self, batch: Batch, hidden_TD: torch.Tensor, token_ids: tuple[int, ...]) -> None:
        """Keep the [T, D] rows of a batch, which are on the host, and their ids where layers read
        them."""
        self.codec = batch.codec
        self.log.admit(batch.admissions)
        raw_TB = hidden_TD.detach().contiguous().view(torch.uint8).numpy()
        row = 0
        for span in batch.spans:
            end = row + span.tokens
            sent = SentRows(span.start, span.end, raw_TB[row:end].tobytes(), token_ids[row:end])
            self.log.add(span.request_id, sent)
            row = end

    def messages(self, batch: Batch, admission: Admission) -> Iterator[Activations]:
        """Messages that the stage behind lacks of a request, before the batch that admits it."""
        for piece, sent in self.log.batches(batch, admission, SPAN_TOKENS):
            yield self.message(piece, [sent])

    def message(self, batch: Batch, sent: Sequence[SentRows]) -> Activations:
        """The message of a batch whose spans have these rows."""
        rows = b"".join(one.rows for one in sent)
        token_ids = tuple(token_id for one in sent for token_id in one.token_ids)
        packed = self.packing.pack(self.packing.rows_of(rows, self.dtype), batch.codec)
        return Activations(batch, *packed, token_ids or None)
