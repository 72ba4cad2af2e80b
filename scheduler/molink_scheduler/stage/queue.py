"""Order in which a stage computes what has arrived: decode first, prefill in what is left.

A decode batch is small and its users wait for the next token; a prefill span is large and only its
own user waits. So decode goes first, in order of arrival. Prefill goes in order of arrival too, as
many rows as fit before the next decode step is due: spans that came one after the other are laid
together, a long one is cut. Rows keep their order; what is cut remains a span of the same request.
After a run of decode batches prefill gets one turn, or a ring that is full of decode would never
admit anyone.

A step of prefill takes long; decode that arrives meanwhile need not wait for its end: between two
layers the stage asks `next_decode`. What a step in progress waits for is bounded like what a span
waits for that has not begun.

Pure: rows stay with the driver, under the numbers of their messages.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from molink_scheduler.batch import (
    ADMITTED_BULK_BYTES_MAX,
    DECODE,
    PREFILL,
    Batch,
    Span,
    bulk_bytes,
)
from molink_scheduler.drafting.asks import Drafted
from molink_scheduler.events import (
    BatchArrived,
    BatchReturned,
    BlocksRead,
    BookOrder,
    CacheChanged,
    CacheCleared,
    CapacityChosen,
    CodecChosen,
    FetchArrived,
    Piece,
    Refuse,
    ReleaseArrived,
    RequestCancelled,
    RequestSubmitted,
    RoomOffered,
    RunBatch,
    SendCacheChange,
    SendCapacity,
    SendFetched,
    SendRelease,
    StageEvent,
)
from molink_scheduler.kv.capacity import StageRoom
from molink_scheduler.stage.book import StageBook
from molink_scheduler.timing.steps import (
    DECODES_BEFORE_PREFILL_MAX,
    DecodeClock,
    PrefillBudget,
    StepProfile,
)


@dataclass(slots=True)
class StageQueue:
    """Source of a stage's work: what the previous stage sent, as far as its book allows."""

    order: "StageOrder"
    book: StageBook

    @classmethod
    def for_steps_of(
        cls,
        rows_max: int,
        book: StageBook,
        cut_tokens: int = 1,
        replay_rows_max: int | None = None,
        *,
        refills: bool = False,
    ) -> "StageQueue":
        """A queue whose prefill steps have at most `rows_max` rows, and cut as the ring does;
        `replay_rows_max`: of those that are replayed to this stage only."""
        budget = PrefillBudget(rows_max, DecodeClock(), StepProfile(), replay_rows_max)
        return cls(StageOrder(budget, cut_tokens, refills), book)

    @property
    def clock(self) -> DecodeClock:
        """The rhythm of the micro-batches that arrive."""
        return self.order.budget.clock

    @property
    def room(self) -> StageRoom:
        """Blocks that the stage has places for, and those that it offers."""
        return self.book.room

    @property
    def wait_until(self) -> float | None:
        """Time to ask again although nothing arrived; None when there is nothing to wait for."""
        return self.order.wait_until

    @property
    def decode_rows_waiting(self) -> int:
        """Rows of the micro-batch that has waited longest; 0: none waits."""
        return self.order.decode_rows_waiting

    def computed_tokens(self) -> dict[int, int]:
        """Tokens of each request of which the stage holds KV."""
        return self.book.computed_tokens()

    def handle(self, event: StageEvent, now: float) -> Sequence[BookOrder | Refuse]:
        """Queue a batch or pass a release on, unless the book objects."""
        match event:
            case BatchArrived(batch):
                objection = self.book.objection(batch)
                if objection is None:
                    self.book.received(batch)
                    self.order.push(event, now)
                    return ()
            case ReleaseArrived(release):
                objection = self.book.release_objection(release)
                if objection is None:
                    self.book.released(release)
                    return (SendRelease(release),)
            case CacheChanged(change):
                objection = self.book.change_objection(change)
                if objection is None:
                    self.book.changed(change)
                    return (SendCacheChange(change),)
            case CapacityChosen() | RoomOffered():
                return self._resize(event)
            case FetchArrived(fetched):
                objection = self.book.table.answers.arrived_objection(fetched)
                if objection is None:
                    answer = self.book.table.answers.arrived(fetched)
                    return () if answer is None else (SendFetched(answer),)
            case BlocksRead(fetched):
                answer = self.book.table.read(fetched)
                return () if answer is None else (SendFetched(answer),)
            case (
                RequestSubmitted()
                | RequestCancelled()
                | CodecChosen()
                | CacheCleared()
                | BatchReturned()
                | Drafted()
            ):
                objection = f"{type(event).__name__} is for the head of the ring"
            case _:
                assert_never(event)
        return (Refuse(objection),)

    def _resize(self, event: CapacityChosen | RoomOffered) -> Sequence[BookOrder | Refuse]:
        """Offer other places, or pass on with which capacity the head counts."""
        if isinstance(event, RoomOffered):
            self.book.offer(event.blocks)
            return ()
        capacity = event.capacity
        if (objection := self.book.capacity_objection(capacity)) is not None:
            return (Refuse(objection),)
        return (SendCapacity(capacity.for_next, self.book.counted(capacity)),)

    def next_batch(
        self, link_bytes_per_s: float, now: float
    ) -> tuple[list[BookOrder], RunBatch | None]:
        """Decode first, then prefill rows that fit before the next decode."""
        return [], self.order.next_batch(now)

    def next_decode(self, now: float) -> tuple[list[BookOrder], RunBatch | None]:
        """The micro-batch that has waited longest."""
        return [], self.order.next_decode()

    def computed(self, run: RunBatch, elapsed_s: float, now: float) -> None:
        """Feed the book, and the profile by which prefill steps are sized."""
        self.book.computed(run.batch)
        if run.batch.batch_class is PREFILL:
            self.order.budget.profile.observe(run.batch.tokens, elapsed_s)


@dataclass(slots=True)
class StageOrder:
    """Order of the batches that have arrived and wait for the device."""

    budget: PrefillBudget
    cut_tokens: int = 1
    """Prompts are cut at its multiples where a step has time for one."""
    refills: bool = False
    """Whether a fresh stage may lack cached blocks that newcomers begin with, see
    `KvBook.refills`."""
    _decode: deque[BatchArrived] = field(init=False, default_factory=deque)
    _prefill: deque[BatchArrived] = field(init=False, default_factory=deque)
    _first_rows_done: int = field(init=False, default=0)
    """Rows of the first prefill batch that were computed before."""
    _decodes_in_a_row: int = field(init=False, default=0)

    def __len__(self) -> int:
        return len(self._decode) + len(self._prefill)

    def push(self, arrived: BatchArrived, now: float) -> None:
        """Add a batch that has arrived."""
        if arrived.batch.batch_class is DECODE:
            self.budget.clock.seen(arrived.batch.micro_batch, now)
            self._decode.append(arrived)
        else:
            self._prefill.append(arrived)

    def next_batch(self, now: float) -> RunBatch | None:
        """Batch to compute now, in one step; None when nothing is there or it had better wait."""
        prefill_due = self._decodes_in_a_row >= DECODES_BEFORE_PREFILL_MAX and self._prefill
        if self._decode and not prefill_due:
            self._decodes_in_a_row = self._decodes_in_a_row + 1 if self._prefill else 0
            return self._take_decode()
        if not self._prefill:
            return None
        self._decodes_in_a_row = 0
        stay = self._prefill[0].batch.replay
        return self._take_rows(self.budget.rows_now(now, stay=stay))

    def next_decode(self) -> RunBatch | None:
        """Decode step that may interrupt a prefill step under way; None when no decode waits."""
        if not self._decode or self._decodes_in_a_row >= DECODES_BEFORE_PREFILL_MAX:
            return None
        self._decodes_in_a_row += 1
        return self._take_decode()

    @property
    def wait_until(self) -> float | None:
        """Time to ask again although nothing arrived; None when there is nothing to wait for."""
        return self.budget.wait_until if self._prefill else None

    @property
    def decode_rows_waiting(self) -> int:
        """Rows of the micro-batch that has waited longest; 0: none waits."""
        return self._decode[0].batch.tokens if self._decode else 0

    def _take_decode(self) -> RunBatch:
        batch, message = self._decode.popleft()
        whole = Piece(message, 0, batch.tokens)
        return RunBatch(batch, (), (whole,))

    def _take_rows(self, rows: int) -> RunBatch | None:
        batches: list[Batch] = []
        pieces: list[Piece] = []
        bulk = 0
        while rows > 0 and self._prefill:
            batch, message = self._prefill[0]
            start = self._first_rows_done
            bulk += bulk_bytes(batch.admissions)
            is_apart = self.refills and any(one.cached for one in batch.admissions)
            may_join = _may_join(batches[-1], batch) if batches else True
            if batches and (bulk > ADMITTED_BULK_BYTES_MAX or is_apart or not may_join):
                break
            end = _cut_at(batch, start, min(batch.tokens, start + rows), self.cut_tokens)
            if end == start and batches:
                break
            end = end if end > start else start + rows
            batches.append(cut_rows(batch, start, end))
            pieces.append(Piece(message, start, end))
            rows -= end - start
            self._first_rows_done = end
            if end == batch.tokens:
                self._prefill.popleft()
                self._first_rows_done = 0
        return RunBatch(join_batches(batches), (), tuple(pieces)) if batches else None


def cut_rows(batch: Batch, start: int, end: int) -> Batch:
    """Rows [start, end) of a batch; its admissions stay with the piece that holds its first row."""
    if not 0 <= start < end <= batch.tokens:
        raise ValueError(f"rows [{start}, {end}) of a batch of {batch.tokens}")
    if (start, end) == (0, batch.tokens):
        return batch
    spans: list[Span] = []
    row = 0
    for span in batch.spans:
        first, last = max(start, row), min(end, row + span.tokens)
        if first < last:
            spans.append(_cut_span(span, first - row, last - row))
        row += span.tokens
    ends = {(span.request_id, span.known_end) for span in spans}
    return replace(
        batch,
        spans=tuple(spans),
        admissions=batch.admissions if start == 0 else (),
        snapshots=tuple(one for one in batch.snapshots if (one.request_id, one.tokens) in ends),
        refused=tuple(one for one in batch.refused if one.request_id in dict(ends)),
    )


def _cut_at(batch: Batch, start: int, end: int, cut_tokens: int) -> int:
    """The last row up to `end` behind which a span ends, or a prompt may be cut; `start`: none."""
    row = 0
    for span in batch.spans:
        if row + span.tokens >= end:
            break
        row += span.tokens
    excess = 0 if row + span.tokens == end else (span.start + end - row) % cut_tokens
    return max(start, row, end - excess)


def _may_join(first: Batch, second: Batch) -> bool:
    """Whether two batches may be one step: replayed rows go elsewhere than others, who goes on
    after them is admitted for the second time, and states are kept at the end of a step."""
    kept = any(admission.kept_tokens for admission in second.admissions)
    return first.replay == second.replay and not kept and not first.snapshots


def join_batches(batches: Sequence[Batch]) -> Batch:
    """Batch with the rows of all, in order, under the first one's id."""
    if len(batches) == 1:
        return batches[0]
    spans: list[Span] = []
    for span in (span for batch in batches for span in batch.spans):
        if spans and spans[-1].request_id == span.request_id and spans[-1].end == span.start:
            last = replace(spans[-1], end=span.end, samples=span.samples, wants=span.wants)
            spans[-1] = last
        else:
            spans.append(span)
    admissions = tuple(admission for batch in batches for admission in batch.admissions)
    snapshots = tuple(kept for batch in batches for kept in batch.snapshots)
    joined = replace(batches[0], spans=tuple(spans), admissions=admissions, snapshots=snapshots)
    refused = [one for batch in batches[1:] for one in batch.refused]
    return joined.refusing(refused) if refused else joined


def _cut_span(span: Span, first: int, last: int) -> Span:
    if (first, last) == (0, span.tokens):
        return span
    if span.drafts:
        raise ValueError("a span with drafts is verified as a whole")
    start, end = span.start + first, span.start + last
    if last < span.tokens:
        return Span(span.request_id, start, end, samples=False)
    return Span(span.request_id, start, end, span.samples, wants=span.wants)
