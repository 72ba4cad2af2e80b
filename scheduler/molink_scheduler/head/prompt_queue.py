"""The prompts of a ring, from arrival until their last span has left the head.

They wait in order of priority, then of their places (`prompt_order`: short ones pass long ones, up
to a bound; those that were kept when the ring lost a stage go first, the shortest before all),
until the smallest KV capacity on the ring has room for their known tokens and for what they and all
that run are expected to grow by (`kv_forecast`), and, where layers keep states, a slot is free on
every stage. One that may grow beyond the ring's present capacity lets others pass until more of the
ring's places are back. They are cut into spans as large as the device has time for; several short
ones share a batch. A prompt under way is not interrupted by one that goes first.

Pure: times are arguments.
"""

import bisect
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice

from molink_scheduler.batch import ADMITTED_BULK_BYTES_MAX, Admission, Span, bulk_bytes
from molink_scheduler.head.kv_book import KvBook
from molink_scheduler.head.kv_forecast import KvForecast
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.head.settings import HeadSettings
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.prompt_order import PromptOrder
from molink_scheduler.request import SamplingParams
from molink_scheduler.timing.steps import (
    PREFILL_ROWS_MIN,
    REPLAY_ROWS_MAX,
    DecodeClock,
    PrefillBudget,
    PrefillLoad,
    StepProfile,
)

SPAN_TOKENS = 128
"""Prefill tokens per batch: hops overlap, and a decode step waits for little (docs/benchmarks)."""

SPAN_TOKENS_MIN = 32
"""Least tokens of a span: fewer cost hardly less, because weights are read all the same."""

SPAN_WIRE_S = 0.06
"""Wire time of a span, about what one computes on a slow stage: where wire and compute take turns
evenly, hops overlap best."""

LOOKED_AT_MAX = 64
"""Waiting requests that are asked whether they wait for another one's prompt to be cached."""


@dataclass(slots=True)
class PromptQueue:
    """Sequences of which something is left to prefill, and what the head knows about prefill."""

    settings: HeadSettings
    book: KvBook
    clock: DecodeClock
    forecast: KvForecast = field(init=False, default_factory=KvForecast)
    profile: StepProfile = field(init=False, default_factory=StepProfile)
    """Measured times of the head's own prefill steps."""
    load: PrefillLoad = field(init=False, default_factory=PrefillLoad)
    order: PromptOrder = field(init=False)
    _budget: PrefillBudget = field(init=False)
    _waiting: list[Sequence] = field(init=False, default_factory=list)
    """Sequences that wait, ordered by `queue_order`; a preempted one returns to its old place."""
    _under_way: list[Sequence] = field(init=False, default_factory=list)
    _computing: list[Sequence] = field(init=False, default_factory=list)
    """Sequences whose prompts the ring has not computed whole, in order of admission."""
    _tokens_in_flight: int = field(init=False, default=0)
    _measured_bytes_per_s: float = field(init=False, default=0.0)
    """Measured rate of the head's link, by which spans are cut."""
    _no_room_for: int | None = field(init=False, default=None)
    """The request that did not fit, until something is released: others only grow before that."""
    _moved_at: dict[int, float] = field(init=False, default_factory=dict)
    """Times at which rows of each prompt under way last came back, or the first left."""

    def __post_init__(self) -> None:
        self.order = PromptOrder(self.settings.ring.own_work_times)
        chosen = self.settings.ring.span_tokens
        rows_max, replayed_max = chosen or SPAN_TOKENS, chosen or REPLAY_ROWS_MAX
        self._budget = PrefillBudget(rows_max, self.clock, self.profile, replayed_max)

    @property
    def waiting(self) -> Collection[Sequence]:
        """Sequences that wait for room."""
        return self._waiting

    @property
    def wait_until(self) -> float | None:
        """Time to ask for spans again although nothing happened; None: only an event helps."""
        if self._room <= 0 or not (self._under_way or self._waiting):
            return None
        return self._budget.wait_until

    def link_measured(self, bytes_per_s: float) -> None:
        """Cut spans so that one occupies the head's link no longer than SPAN_WIRE_S."""
        if bytes_per_s == self._measured_bytes_per_s:
            return
        self._measured_bytes_per_s = bytes_per_s
        if self.settings.ring.span_tokens is None and self.settings.row_bytes and bytes_per_s > 0:
            rows = int(SPAN_WIRE_S * bytes_per_s / self.settings.row_bytes)
            rows = rows // PREFILL_ROWS_MIN * PREFILL_ROWS_MIN
            self._budget.rows_max = max(SPAN_TOKENS_MIN, min(SPAN_TOKENS, rows))

    def computed(self, rows: int, seconds: float, now: float) -> None:
        """A prefill step on the head's own device ended."""
        self.profile.observe(rows, seconds)
        self.load.computed(seconds, now)

    def join(self, sequence: Sequence) -> None:
        """Wait for room, behind those that go first."""
        if sequence.place is None:
            prefix = self.book.prefix(sequence)
            cached = BLOCK_TOKENS * prefix.blocks if prefix else sequence.kept_tokens
            sequence.place = self.order.join(len(sequence.known) - cached)
        bisect.insort(self._waiting, sequence, key=lambda waiting: waiting.queue_order)

    def leave(self, sequence: Sequence) -> None:
        """Forget a sequence that ends; one that is not here is fine."""
        line = self._under_way if sequence.admitted else self._waiting
        if sequence in line:
            line.remove(sequence)

    def released(self) -> None:
        """A sequence has given KV back."""
        self._no_room_for = None

    def waits_s(self, now: float) -> float:
        """The longest for which rows of a prompt are under way and none has come back."""
        return now - min(self._moved_at.values(), default=now)

    def returned(self, sequence: Sequence, span: Span, now: float) -> None:
        """A span has come out of the tail."""
        self._tokens_in_flight -= span.tokens
        elapsed_s = now - self._moved_at.pop(span.request_id)
        under_way, pending = sequence.in_flight, sequence.tokens_pending > 0
        if sequence.is_computed and sequence.cut.is_cut:
            self.released()  # It is about to be folded.
        self.book.fetches.pace.returned(
            span.request_id, span.tokens, elapsed_s, under_way=under_way, pending=pending
        )
        if under_way:
            self._moved_at[span.request_id] = now

    def next_spans(
        self, now: float, sequences: Collection[Sequence], *, passed: bool = False
    ) -> tuple[list[Span], list[Admission]]:
        """The spans of the next prefill batch and who is new among them; empty when there is none,
        or none now. `sequences` are all of the ring, those that decode too; `passed`: whether
        decode has gone first so often that it is prefill's turn."""
        if self._room <= 0 or not (self._under_way or self._waiting):
            return [], []
        first = self._first(sequences, now)
        stay = first is not None and first.replays
        budget = self._budget.rows_now(now, stay=stay, passed=passed)
        budget = budget if stay else min(self._room, budget)
        spans: list[Span] = []
        admissions: list[Admission] = []
        while budget > 0 and (sequence := self._first(sequences, now)) is not None:
            stands_alone = sequence.is_kept
            is_cut = bool(spans) and spans[-1].request_id == sequence.request_id
            is_alone = stands_alone or self._is_apart(sequence, admissions)
            if is_cut or (is_alone and spans):
                break
            rows = self._rows_of(sequence, budget) or (0 if spans else budget)
            if not rows or not self._admit(sequence, admissions):
                break
            spans.append(self._span_of(sequence, rows, now))
            budget -= spans[-1].tokens
            if not sequence.tokens_pending:
                self._under_way.remove(sequence)
            if stands_alone:
                break
        return spans, admissions

    def _is_apart(self, sequence: Sequence, admissions: list[Admission]) -> bool:
        """Whether a newcomer must not share a batch with those that it admits."""
        is_newcomer = self.book.refills and not sequence.admitted
        if not is_newcomer or not any(one.cached for one in admissions):
            return False
        return self.book.prefix(sequence) is not None

    def _span_of(self, sequence: Sequence, rows: int, now: float) -> Span:
        """Next rows of a prompt; replayed ones never come back from the tail, and so are back at
        once."""
        replays = sequence.replays
        span = sequence.take_span(rows)
        if replays:
            sequence.returned_tokens = span.end
        else:
            self._tokens_in_flight += span.tokens
            self._moved_at.setdefault(span.request_id, now)
        return span

    @property
    def _room(self) -> int:
        """Tokens that may still be sent into the ring; none where they are too few for a cut."""
        room = self.settings.prefill_tokens_in_flight_max - self._tokens_in_flight
        return room if room >= self.settings.ring.cut_tokens or not self._tokens_in_flight else 0

    def _first(self, sequences: Collection[Sequence], now: float) -> Sequence | None:
        """The sequence whose prompt is under way, else the next to be admitted. A sequence whose
        cached blocks had better be fetched lets others pass until they are there."""
        for sequence in self._under_way:
            if not sequence.stopping or sequence.is_fed_again:
                return sequence
        self._computing = [one for one in self._computing if one.admitted and not one.decoding]
        here = (one for one in self._waiting if not self.book.room_is_away(one))
        for sequence in islice(here, LOOKED_AT_MAX):
            if self.book.awaits(sequence, self._computing):
                continue
            if self._fits(sequence, sequences):
                if not self.book.begin_fetch(sequence, now):
                    return sequence
            elif not sequence.is_kept:
                return None  # Only those that hold KV already are passed by others that do.
        return None

    def stuck(self, sequences: Collection[Sequence]) -> Sequence | None:
        """Choose the last of the requests that were kept to begin anew, where none of them has room
        for its next token and nobody else will give any back; None: somebody goes on."""
        if any(one.admitted for one in sequences):
            return None
        kept = [one for one in sequences if one.is_kept]
        if len(kept) < 2:
            return None
        if any(self._fits(one, sequences) for one in kept):
            return None
        last = max(kept, key=lambda one: one.request.order)
        last.preempting = True
        return last

    def _rows_of(self, sequence: Sequence, rows_max: int) -> int:
        """Rows of its next span, which ends with the prompt, where its states are to be kept, or
        where the ring cuts; 0: none do. One that ends has one more row, behind which its release
        cannot overtake those before."""
        if sequence.stopping:
            return 1
        until = sequence.keep_at[0] if sequence.keep_at else len(sequence.known)
        if until - sequence.planned_tokens <= rows_max:
            return until - sequence.planned_tokens
        end = sequence.planned_tokens + rows_max
        return max(0, rows_max - end % self.settings.ring.cut_tokens)

    def _admit(self, sequence: Sequence, admissions: list[Admission]) -> bool:
        """Let it hold KV from now on; False where the batch has no room for what that says. One
        that the head has replayed for itself is admitted twice: the others hear of it then."""
        if sequence.admitted:
            if sequence.goes_on:
                admissions.append(sequence.admission())
            return True
        if admissions and not _fits_header(sequence.request.sampling, admissions):
            return False
        self._waiting.remove(sequence)
        self._under_way.append(sequence)
        self.book.begin(sequence, self._computing)
        self._computing.append(sequence)
        sequence.admitted = True
        admissions.append(sequence.admission())
        return True

    def _fits(self, sequence: Sequence, sequences: Collection[Sequence]) -> bool:
        if sequence.is_kept:  # It has its blocks, but for one perhaps.
            needed = self.book.ledger.blocks_missing(sequence.request_id, len(sequence.known))
            return needed <= self.book.blocks_available
        if self._no_room_for == sequence.request_id or not self.book.ledger.has_slot:
            return False
        holding = [one for one in sequences if one.admitted]
        if any(one.sits_out for one in holding):
            return False
        if not self._has_room(sequence, holding):
            self._no_room_for = sequence.request_id
            return False
        return True

    def _has_room(self, sequence: Sequence, holding: list[Sequence]) -> bool:
        """Whether there are blocks for its known tokens, and for what all are expected to hold at
        any time."""
        if not self.book.fits(sequence, 1 if holding else 0):
            return False
        if not holding:
            return True
        held = self.forecast.tokens_held([*holding, sequence])
        shared_tokens = BLOCK_TOKENS * self.book.shared_blocks(sequence, holding)
        return max(held) - shared_tokens <= self.book.ledger.tokens_capacity


def _fits_header(sampling: SamplingParams, admissions: list[Admission]) -> bool:
    """Whether one more may be admitted by the same batch."""
    return bulk_bytes(admissions) + sampling.bulk_bytes <= ADMITTED_BULK_BYTES_MAX
