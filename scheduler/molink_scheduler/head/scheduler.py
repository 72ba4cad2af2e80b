"""Scheduler of a ring: what it computes next, each time that the head's device is free.

Batching is continuous: a sequence goes round with the decode micro-batches from its first token
until it ends (`decode_batcher`), so every round has exactly the members that are alive. What the
device has left over goes to prompts, cut into spans that follow one another down the ring
(`prompt_queue`). When running requests outgrow the smallest KV capacity on the ring, newer ones sit
out before the last blocks are gone; when the oldest finds none, or the ring's capacity is lowered
(`changing_capacity`), the newest of the lowest priority is preempted: its blocks are released, its
tokens kept. What it has computed stays cached like any chain, also in host memory or a file, and
comes back as often as it is admitted again (`fetches`); what no tier has room for is computed anew.

Pure: `handle` takes what happened, `next_batch` is asked when the device is free.
"""

from collections import abc
from dataclasses import InitVar, dataclass, field
from typing import assert_never

from molink_scheduler.batch import DECODE, PREFILL, Admission, Batch, BatchClass, Release, Span
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
    EventOrder,
    FetchArrived,
    Refuse,
    RefuseRequest,
    ReleaseArrived,
    RequestCancelled,
    RequestSubmitted,
    RoomOffered,
    RunBatch,
    SampledToken,
    SendCacheChange,
    SendFetched,
    SendRelease,
    StageEvent,
)
from molink_scheduler.head.changing_capacity import ChangingCapacity
from molink_scheduler.head.decode_batcher import DecodeBatcher, DecodeRoom
from molink_scheduler.head.drafts import drafts_of
from molink_scheduler.head.kept_requests import KeptRequests
from molink_scheduler.head.kv_book import KvBook
from molink_scheduler.head.micro_batches import MicroBatches
from molink_scheduler.head.objections import (
    is_awaited,
    request_objection,
    return_objection,
    token_objection,
    tokens_by_request,
)
from molink_scheduler.head.prompt_queue import PromptQueue
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.head.settings import HeadSettings
from molink_scheduler.kv.capacity import StageRoom
from molink_scheduler.kv.changes import RetainBlocks, TakeBlocks
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.ring_cache import RingCache
from molink_scheduler.request import Request
from molink_scheduler.timing.steps import DECODES_BEFORE_PREFILL_MAX, DecodeClock

__all__ = ["HeadScheduler", "HeadSettings"]


@dataclass(slots=True)
class HeadScheduler:
    """The requests of one ring, from arrival to their last token."""

    settings: HeadSettings
    kept: KeptRequests = field(default_factory=KeptRequests)
    """Requests that go on from the ring's epoch before."""
    before: InitVar[RingCache | None] = None  # What was cached in that epoch.
    own_room: InitVar[StageRoom | None] = None  # Blocks of its own; None: as the ring has.
    book: KvBook = field(init=False)
    room: StageRoom = field(init=False)
    capacity: ChangingCapacity = field(init=False)
    _sequences: dict[int, Sequence] = field(init=False, default_factory=dict)
    clock: DecodeClock = field(init=False, default_factory=DecodeClock)
    decode: DecodeBatcher = field(init=False)
    room_to_decode: DecodeRoom = field(init=False)
    prompts: PromptQueue = field(init=False)
    codec: str = "raw"
    """Codec of the activations of batches planned from now on."""
    _next_batch_id: int = field(init=False, default=0)
    _decodes_in_a_row: int = field(init=False, default=0)

    def __post_init__(self, before: RingCache | None, own_room: StageRoom | None) -> None:
        self.book = KvBook.of(self.settings.ring, before, chains_stay=self.kept.resume.chains_stay)
        self.room = own_room or StageRoom(self.kv.blocks_total)
        self.capacity = ChangingCapacity(self.book, self.room)
        for request_id, tokens in self.kept.tokens:
            self.kv.grow(request_id, tokens)
        self.room_to_decode = DecodeRoom(self.book)
        self.decode = DecodeBatcher(self.settings, self.clock, drafts_of(self.settings, self.book))
        self.prompts = PromptQueue(self.settings, self.book, self.clock)

    @property
    def kv(self) -> KvLedger:
        """Ledger of the blocks that each request and the cache hold."""
        return self.book.ledger

    @property
    def running_count(self) -> int:
        """Requests that hold KV."""
        return len(self._sequences) - self.waiting_count

    def computed_tokens(self) -> dict[int, int]:
        """Tokens of each request of which the head holds KV."""
        return {one.request_id: one.planned_tokens for one in self._sequences.values()}

    @property
    def micro_batches(self) -> MicroBatches:
        """Number of micro-batches that circle, and the slots that they take."""
        return self.decode.micro_batches

    @property
    def waiting_count(self) -> int:
        """Requests that wait for room."""
        return len(self.prompts.waiting)

    def round_waits_s(self, now: float) -> float:
        """Seconds since the oldest micro-batch under way has left; 0: none is."""
        left_at = self.decode.tracker.oldest_departure
        return 0.0 if left_at is None else now - left_at

    def prompt_waits_s(self, now: float) -> float:
        """The longest for which rows of a prompt are under way and none has come back."""
        return self.prompts.waits_s(now)

    def computed(self, run: RunBatch, elapsed_s: float, now: float) -> None:
        """A step on the head's own device ended: learn to size the next one of prefill."""
        if run.batch.batch_class is PREFILL:
            self.prompts.computed(run.batch.tokens, elapsed_s, now)

    @property
    def wait_until(self) -> float | None:
        """Time to ask for a batch again although nothing happened; None: only an event helps."""
        times = (self.prompts.wait_until, self.book.fetches.due_at)
        return min((one for one in times if one is not None), default=None)

    @property
    def decode_rows_waiting(self) -> int:
        """Rows of the micro-batch that could depart now; 0: none could."""
        return self.decode.rows_waiting

    def handle(self, event: StageEvent, now: float) -> abc.Sequence[EventOrder]:
        """Take one event into account."""
        self.book.cache.tree.pass_time(now)
        match event:
            case BatchReturned():
                return [*self._return(event, now), *self.decode.take_asks(event.micro_batch)]
            case RequestSubmitted(request):
                return self._submit(request)
            case RequestCancelled(request_id):
                return self._cancel(request_id)
            case CodecChosen(codec):
                self.codec = codec
            case CacheCleared():
                self.book.clear(self._sequences.values())
            case Drafted():
                return self.decode.drafted(event)
            case CapacityChosen() | RoomOffered():
                self.prompts.released()
                return self.capacity.changed(event)
            case BlocksRead(fetched):
                return [SendFetched(fetched)]
            case FetchArrived(fetched):
                objection = self.book.fetches.answered(fetched, now)
                self.prompts.released()
                return [] if objection is None else [Refuse(objection)]
            case CacheChanged(RetainBlocks() | TakeBlocks() as change):
                return self._change_cache(change)
            case BatchArrived() | ReleaseArrived() | CacheChanged():
                return [Refuse(f"{type(event).__name__} is for a stage behind the head")]
            case _:
                assert_never(event)
        return []

    def next_batch(
        self, link_bytes_per_s: float, now: float
    ) -> tuple[list[BookOrder], RunBatch | None]:
        """The next batch for a free device, and the orders that must go out before it.

        Decode first; prefill when no group is ready, or when decode has passed it often enough.
        """
        self.book.cache.tree.pass_time(now)
        self.prompts.link_measured(link_bytes_per_s)
        if self.book.fetches.give_up(now):
            self.prompts.released()
        orders = self.capacity.fit(self._sequences.values(), self._settle)
        prefill_first = self._decodes_in_a_row >= DECODES_BEFORE_PREFILL_MAX
        run = self._prefill_batch(now, passed=True) if prefill_first else None
        run = run or self._decode_batch(orders, now) or self._prefill_batch(now)
        if run is None and (stuck := self.prompts.stuck(self._sequences.values())) is not None:
            orders += self._settle(stuck)
            run = self._prefill_batch(now)
        is_decode = run is not None and run.batch.batch_class is DECODE
        self._decodes_in_a_row = self._decodes_in_a_row + 1 if is_decode else 0
        return [*orders, *self._drops(), *self.capacity.orders()], run

    def next_decode(self, now: float) -> tuple[list[BookOrder], RunBatch | None]:
        """Decode step that may interrupt a prefill step under way on the head's device."""
        orders: list[BookOrder] = []
        if self._decodes_in_a_row >= DECODES_BEFORE_PREFILL_MAX:
            return orders, None
        run = self._decode_batch(orders, now)
        self._decodes_in_a_row += run is not None
        return [*orders, *self._drops()], run

    def _drops(self) -> list[BookOrder]:
        """Orders for blocks that leave the cache, or device memory, now, or come back."""
        return [SendCacheChange(change) for change in self.book.cache.take_changes()]

    # -- events ---------------------------------------------------------------------------------

    def _submit(self, request: Request) -> list[Refuse]:
        if request.request_id in self._sequences:
            return [Refuse(f"request {request.request_id} was submitted twice")]
        if (objection := request_objection(request, self.kv, self.settings)) is not None:
            return [RefuseRequest(objection, request.request_id)]
        sequence = Sequence(request)
        if (objection := self.kept.take_up(sequence)) is not None:
            return [RefuseRequest(objection, request.request_id)]
        self._sequences[request.request_id] = sequence
        self.prompts.join(sequence)
        return []

    def _cancel(self, request_id: int) -> list[BookOrder]:
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return self._forget_kept(request_id)
        self._stop(sequence)
        return self._settle(sequence)

    def _change_cache(self, change: RetainBlocks | TakeBlocks) -> list[SendCacheChange | Refuse]:
        if isinstance(change, TakeBlocks):
            self.book.fetches.offered(change)
            return []
        if (retained := self.book.cache.retain(change)) is not None:
            return [SendCacheChange(retained)]
        return [Refuse("what stays cached from the epoch before was said already")]

    def _stop(self, sequence: Sequence) -> None:
        if not sequence.cancelled:
            self.prompts.forecast.ended(sequence, by_itself=False)
        sequence.cancelled = True

    def _forget_kept(self, request_id: int) -> list[BookOrder]:
        """Release a request that does not go on after all; stages without it pass that on."""
        if not self.kept.forget(request_id):
            return []
        self.kv.release(request_id)
        self.prompts.released()
        return [SendRelease(Release(request_id))]

    def _return(self, event: BatchReturned, now: float) -> abc.Sequence[EventOrder]:
        if not event.spans:
            return self._take_late(event)
        if not is_awaited(event, self._sequences):
            return []  # The copy of a return, or nothing that ever left.
        departed = self.decode.departed(event.micro_batch)
        limits, wanted = self.settings.limits, self.decode.drafts.wanted
        if objection := return_objection(event, self._sequences, departed, limits, wanted):
            return [Refuse(objection)]
        if event.batch_class is DECODE:
            self.decode.round_completed(event.micro_batch, event.stamps, self.prompts.load, now)
        sampled, drafts = tokens_by_request(event.sampled), dict(event.drafts)
        orders: list[BookOrder] = []
        sequences, is_prefill = self._sequences, event.batch_class is PREFILL
        for span in event.spans:
            sequence, tokens = sequences[span.request_id], sampled.get(span.request_id, ())
            sequence.returned_tokens = span.end
            if any([token.refused for token in tokens]):
                sequence.is_cached = False  # Of zeros nothing is found again.
            if is_prefill:
                self.prompts.returned(sequence, span, now)
                orders += map(SendCacheChange, self.book.computed(sequence))
            self._take_tokens(sequence, tokens, span)
            if own := drafts.get(span.request_id):
                self.decode.drafts.offered(sequence, own, forced=span.request_id in event.forced)
            if sequence.cancelled or sequence.preempting:
                orders += self._settle(sequence)
        return orders

    def _take_late(self, event: BatchReturned) -> list[BookOrder | Refuse]:
        """Take tokens that come behind their batches, but for those of cancelled requests."""
        if event.drafts:
            return [Refuse("it has drafts of a request of which it computed nothing")]
        orders: list[BookOrder | Refuse] = []
        for token in event.sampled:
            sequence = self._sequences.get(token.request_id)
            if sequence is None or not sequence.token_is_late:
                continue
            if objection := token_objection(token, sequence, self.settings.limits):
                return [Refuse(objection)]
            self._take_tokens(sequence, [token])
            orders += self._settle(sequence)
        return orders

    def _take_tokens(
        self, sequence: Sequence, tokens: abc.Sequence[SampledToken], span: Span | None = None
    ) -> None:
        """Take the tokens of a request that came back, of a span's drafts those that are right."""
        if sequence.decoding and tokens:
            sequence.round_came(len(tokens))
        sequence.known.extend([token.token_id for token in tokens if not token.refused])
        if span is not None:
            self.decode.drafts.verified(span, sequence)
        if not tokens:
            return
        if tokens[-1].refused and span is not None and span.drafts:
            sequence.redo_undrafted()
        elif tokens[-1].refused:
            self._stop(sequence)
        elif tokens[-1].finished:
            used_up = sequence.generated_tokens >= sequence.request.sampling.max_tokens
            self.prompts.forecast.ended(sequence, by_itself=not used_up)
            sequence.cancelled = True
        else:
            sequence.decoding = True
            self.decode.token_ready(sequence)

    def _settle(self, sequence: Sequence) -> list[BookOrder]:
        """Release a sequence that has ended or is preempted, once nothing of it is in flight."""
        if not sequence.stopping or sequence.in_flight:
            return []
        if sequence.token_is_late and not sequence.cancelled:
            return []  # Once it is drawn, the coordinator has it too.
        if self.kept.ends_replay(sequence):
            return []
        return self._end(sequence) if sequence.cancelled else self._preempt(sequence)

    def _end(self, sequence: Sequence) -> list[BookOrder]:
        del self._sequences[sequence.request_id]
        if not sequence.admitted and not sequence.is_kept:
            self.prompts.leave(sequence)
            return []
        return self._release(sequence)

    def _preempt(self, sequence: Sequence) -> list[BookOrder]:
        release = self._release(sequence)
        sequence.forget_computed()
        self.prompts.join(sequence)
        return release

    def _release(self, sequence: Sequence) -> list[BookOrder]:
        self.prompts.leave(sequence)
        self.decode.leave(sequence.request_id)
        kept = map(SendCacheChange, self.book.release(sequence))
        self.prompts.released()
        return [*kept, SendRelease(Release(sequence.request_id))]

    # -- planning -------------------------------------------------------------------------------

    def _decode_batch(self, orders: list[BookOrder], now: float) -> RunBatch | None:
        gone = self.decode.depart(lambda one: self._has_room(one, orders), now)
        return None if gone is None else self._run(DECODE, gone.slot, gone.spans)

    def _has_room(self, sequence: Sequence, orders: list[BookOrder]) -> bool:
        others, running = self._sequences, self.running_count
        return self.room_to_decode.make(
            sequence, others, running, lambda victim: orders.extend(self._settle(victim))
        )

    def _prefill_batch(self, now: float, *, passed: bool = False) -> RunBatch | None:
        spans, admissions = self.prompts.next_spans(now, self._sequences.values(), passed=passed)
        if not spans:
            return None
        wanting = self.decode.wanting(spans, self._sequences)
        return self._run(PREFILL, -1, wanting, tuple(admissions))

    def _run(
        self, kind: BatchClass, slot: int, spans: list[Span], admitted: tuple[Admission, ...] = ()
    ) -> RunBatch:
        batch = Batch(
            self._next_batch_id,
            kind,
            slot,
            tuple(spans),
            admitted,
            self.codec,
            replay=spans[-1].end <= self._sequences[spans[-1].request_id].kept_tokens,
            snapshots=self.book.states_kept(spans, self._sequences),
        )
        self._next_batch_id += 1
        token_ids: list[int] = []
        for span in batch.spans:
            token_ids += self._sequences[span.request_id].known[span.start : span.known_end]
            token_ids += span.drafts
        return RunBatch(batch, tuple(token_ids))
