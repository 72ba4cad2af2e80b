"""Continuous batching of decode: which sequences go round the ring in the next micro-batch.

A sequence joins with its first token and leaves when it ends or gives its blocks back. In between
it is under way with a micro-batch, or ready on the head. Whenever a slot on the ring is free, those
that are ready depart together, the longest waiting first, at most their even share
(`micro_batches`); what each trip took says how many slots there should be (`micro_batch_choice`).

Pure: times are arguments.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from molink_scheduler.batch import Span
from molink_scheduler.drafting.asks import AskDrafts, Drafted
from molink_scheduler.events import Refuse
from molink_scheduler.head.drafts import DRAFTED_ROWS_MAX, HeadDrafts, NoDrafts
from molink_scheduler.head.kv_book import KvBook
from molink_scheduler.head.micro_batch_choice import MicroBatchChoice
from molink_scheduler.head.micro_batches import MicroBatches
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.head.settings import HeadSettings
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.timing.round_tracker import RoundTracker, StageStamp
from molink_scheduler.timing.steps import DecodeClock, PrefillLoad

OLDER_PER_BLOCK = 10
"""A sequence takes a block if one is left for each ten older ones that decode. They end first, so
it is cheaper that it sits out for some rounds than that it is pushed out when they have none. One
for four left KV empty, one for twenty let more be pushed out (docs/decisions/0045)."""


class Departure(NamedTuple):
    """A micro-batch that leaves the head."""

    slot: int
    spans: list[Span]
    """Spans of one token that is known and maybe drafts, at least one span."""


@dataclass(slots=True)
class DecodeBatcher:
    """Batcher of the sequences that decode on one ring, on its head."""

    settings: HeadSettings
    clock: DecodeClock
    """Rhythm of the micro-batches, shared with the head's prompts."""
    drafts: HeadDrafts | NoDrafts = field(default_factory=NoDrafts)
    micro_batches: MicroBatches = field(init=False)
    tracker: RoundTracker = field(init=False)
    _choice: MicroBatchChoice | None = field(init=False, default=None)
    """Choice of the number of micro-batches; None: the operator chose it."""
    _departed: dict[int, list[Span]] = field(init=False, default_factory=dict)
    """Spans with which each micro-batch under way has left."""
    _members: set[int] = field(init=False, default_factory=set)
    _ready: dict[int, Sequence] = field(init=False, default_factory=dict)
    """Members that could depart now, or once there are drafts, in the order in which their tokens
    came."""
    _kept: dict[int, int] = field(init=False, default_factory=dict)
    """Slots that are kept for companies which wait for drafts."""

    def __post_init__(self) -> None:
        settings = self.settings
        self.micro_batches = MicroBatches(settings.ring.micro_batch_count or 1)
        self.tracker = RoundTracker(settings.row_bytes)
        if settings.ring.micro_batch_count is None:
            self._choice = MicroBatchChoice(settings.ring.micro_batch_candidates, count=1)

    def token_ready(self, sequence: Sequence) -> None:
        """Let a sequence depart, for the first time or again: its next token is known. If drafters
        are asked, it departs once they have answered."""
        self._members.add(sequence.request_id)
        self._ready[sequence.request_id] = sequence
        self.drafts.ask(sequence, hold=self._holds_widths)

    def take_asks(self, slot: int) -> list[AskDrafts]:
        """What drafters are asked about those whose tokens have just come. The `slot` of their
        micro-batch stays theirs until all is answered, or who is ready by then would leave in it
        and they with another one; -1: it was none."""
        asks, company = self.drafts.take_asks()
        if slot >= 0 and self.drafts.awaits(company):
            self.micro_batches.departed(slot)
            self._kept[slot] = company
        return asks

    @property
    def _holds_widths(self) -> bool:
        """Whether rounds are being compared, which rows must not change."""
        return self._choice is not None and self._choice.is_judged

    def drafted(self, event: Drafted) -> list[Refuse]:
        """Let those depart whose drafters have answered; what was wrong with an answer."""
        return self.drafts.answered(event)[:1]

    def leave(self, request_id: int) -> None:
        """A sequence ends or is preempted; one that never decoded may be named."""
        self._members.discard(request_id)
        self._ready.pop(request_id, None)
        self.drafts.forget(request_id)

    def wanting(self, spans: Iterable[Span], sequences: Mapping[int, Sequence]) -> list[Span]:
        """Spans of prompts, the last of each with as many drafts as its tail is to send home."""
        hold = self._holds_widths
        return [self.drafts.wanting(one, sequences[one.request_id], hold=hold) for one in spans]

    def depart(self, has_room: Callable[[Sequence], bool], now: float) -> Departure | None:
        """The next micro-batch; None when no slot is free or no sequence can go.

        `has_room` is asked of each before it goes: False leaves it behind for now.
        """
        self._free_kept()
        slot = self.micro_batches.free_slot()
        if slot is None or not (spans := self._take_along(has_room)):
            return None
        self.micro_batches.departed(slot)
        self._departed[slot] = spans
        passes = max([span.wants for span in spans]) if self.settings.ring.drafts_at_tail else 0
        rows = sum([span.tokens for span in spans])
        self.tracker.departed(slot, rows, now, len(spans), passes)
        return Departure(slot, spans)

    @property
    def rows_waiting(self) -> int:
        """About how many rows could depart now, drafts not counted; 0: none, or no slot is free."""
        if self.micro_batches.free_slot() is None:
            return 0
        return self.micro_batches.share(len(self._members), len(self._may_go()))

    def _free_kept(self) -> None:
        """Free the slots of companies that wait no more."""
        kept, awaits = self._kept, self.drafts.awaits
        for slot in [slot for slot, company in kept.items() if not awaits(company)]:
            del kept[slot]
            self.micro_batches.returned(slot)

    def departed(self, slot: int) -> list[Span] | None:
        """The spans with which the micro-batch in a slot left; None: none is under way."""
        return self._departed.get(slot)

    def round_completed(
        self, slot: int, stamps: tuple[StageStamp, ...], load: PrefillLoad, now: float
    ) -> None:
        """A micro-batch is back: its slot is free, and there may be more or fewer from now on."""
        self.micro_batches.returned(slot)
        self._departed.pop(slot, None)
        self.clock.seen(slot, now)
        trip_s = self.tracker.returned(slot, stamps, now)
        prefill_share = load.share(now)
        self.drafts.widths.round_completed(self.tracker, self.micro_batches.count, prefill_share)
        if self._choice is not None and trip_s is not None:
            self.micro_batches.count = self._choice.round_completed(
                self.clock.round_s or trip_s,
                len(self._members),
                self.tracker.model,
                now,
                prefill_share,
            )

    def _may_go(self) -> list[tuple[int, Sequence]]:
        """Members that are ready, and have drafts where any are awaited."""
        awaits, company_of = self.drafts.awaits, self.drafts.company_of
        return [one for one in self._ready.items() if not awaits(company_of(one[0]))]

    def _take_along(self, has_room: Callable[[Sequence], bool]) -> list[Span]:
        ready, spans, drafts = self._ready, list[Span](), self.drafts
        may_go = self._may_go()
        share = self.micro_batches.share(len(self._members), len(may_go))
        drafts_left, hold = DRAFTED_ROWS_MAX - share, self._holds_widths
        for request_id, sequence in may_go:
            if len(spans) == share:
                break
            # Asked for each anew: making room for one may have preempted another.
            if request_id in ready and has_room(sequence):
                del ready[request_id]
                taken = drafts.take(sequence, drafts_left)
                drafts_left -= len(taken)
                span = sequence.take_drafts(taken) if taken else sequence.take_span(1)
                spans.append(drafts.wanting(span, sequence, hold=hold))
        return spans


@dataclass(slots=True)
class DecodeRoom:
    """Room for the next token of each sequence that decodes."""

    book: KvBook

    def make(
        self,
        sequence: Sequence,
        others: Mapping[int, Sequence],
        running_count: int,
        preempt: Callable[[Sequence], None],
    ) -> bool:
        """Take the block that the next token needs; False when the sequence must sit out for now.
        `preempt` lets a holder give its blocks back, once nothing of it is under way."""
        if sequence.planned_tokens % BLOCK_TOKENS:
            return True  # The last block has room, and it is the sequence's since it was planned.
        tokens = sequence.planned_tokens + 1
        missing = self.book.ledger.blocks_missing(sequence.request_id, tokens)
        if not missing:
            return True
        left = self.book.blocks_available - missing
        sequence.sits_out = must_leave_it(sequence, left, running_count, others.values())
        if sequence.sits_out:
            return False
        while missing > self.book.blocks_available:
            victim = self._last_holder(others)
            victim.preempting = True
            preempt(victim)
            if victim is sequence or victim.preempting:
                return False
        self.book.grow(sequence, tokens)
        return True

    def _last_holder(self, sequences: Mapping[int, Sequence]) -> Sequence:
        """Holder of the lowest priority, and of those the newest."""
        holders = (sequences[one] for one in self.book.ledger.holders() if one in sequences)
        return max(holders, key=lambda sequence: sequence.request.order)


def must_leave_it(
    sequence: Sequence, blocks_left: int, running_count: int, others: Iterable[Sequence]
) -> bool:
    """Whether older ones that decode need the last blocks more than a sequence that would leave so
    many: they are nearer their end."""
    if blocks_left >= running_count // OLDER_PER_BLOCK:
        return False
    order = sequence.request.order
    older = sum(one.decoding and not one.stopping and one.request.order < order for one in others)
    return older > 0 and blocks_left < older // OLDER_PER_BLOCK
