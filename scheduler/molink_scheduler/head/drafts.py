"""Drafts of the sequences on a head: whom it asks about, and what it was told.

A sequence whose tokens came back is asked about before it departs again, with as many drafts as are
of use now, and goes once the drafters have answered; so it is never asked about what it does not
know yet, and nobody waits for the answer of another. What was told is taken along by its next span
and by no other. So is what the tail sends home, which a span asks for as it departs (`Span.wants`):
a layer of the checkpoint drafts there, and a grammar that allows one continuation alone. Nobody
waits for these; what the head's drafters say beside them goes before.

A draft costs nobody anything. It takes blocks that are free, and leaves one to each other request,
which may need it for the token that it decodes next; it reaches no further than the request may,
nor past a place where states are kept; and micro-batches with drafts have bounded rows.

How many drafts are worth it is judged elsewhere (`Widths`), from what comes true.

Pure.
"""

from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple, Protocol

from molink_scheduler.batch import DRAFTS_MAX, Span
from molink_scheduler.drafting.acceptance import DraftKind
from molink_scheduler.drafting.asks import AskDrafts, Draft, DraftAsk, Drafted
from molink_scheduler.drafting.proposals import (
    COPY,
    GRAMMAR,
    TAIL,
    DraftTally,
    Proposals,
    Tallies,
)
from molink_scheduler.drafting.widths import DraftWidths
from molink_scheduler.events import Refuse
from molink_scheduler.head.kv_book import KvBook
from molink_scheduler.head.objections import drafts_objection
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.head.settings import HeadSettings
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.request import ModelLimits
from molink_scheduler.timing.round_tracker import RoundTracker

DRAFTED_ROWS_MAX = 128
"""Most rows of a micro-batch that has drafts, the most of a step that is recorded on a card: more
would hold up the others on a home link."""


class Widths(Protocol):
    """Judge of how many drafts are worth it."""

    def width(self, request_id: int, kind: DraftKind) -> int:
        """Drafts of a kind to ask for now; 0: none."""

    def judged(self, request_id: int, kind: DraftKind, tried: int, right: int) -> None:
        """Learn that the first `right` of a span's `tried` drafts came true."""

    def drafted(self, step_s: float) -> None:
        """One more draft of all takes the head's drafters so long."""

    def round_completed(self, tracker: RoundTracker, count: int, prefill_share: float) -> None:
        """One of `count` micro-batches is back; what the next ones will cost, and what prompts take
        of the devices."""

    def forget(self, request_id: int) -> None:
        """Forget a request; one that is unknown is fine."""


@dataclass(frozen=True, slots=True)
class FixedWidths:
    """The same width for all, whatever comes true."""

    drafts: int

    def width(self, request_id: int, kind: DraftKind) -> int:
        """The fixed width, for every request."""
        return self.drafts

    def judged(self, request_id: int, kind: DraftKind, tried: int, right: int) -> None:
        """Take no notice: the width is fixed."""

    def drafted(self, step_s: float) -> None:
        """Take no notice: the width is fixed."""

    def round_completed(self, tracker: RoundTracker, count: int, prefill_share: float) -> None:
        """Take no notice: the width is fixed."""

    def forget(self, request_id: int) -> None:
        """Take no notice: nothing is kept of a request."""


class _Asked(NamedTuple):
    """Sequence that departs once its drafters have answered."""

    sequence: Sequence
    ask: DraftAsk


@dataclass(slots=True)
class NoDrafts:
    """Drafts of a head that has no drafter: nobody is asked about."""

    widths: FixedWidths = FixedWidths(0)
    tallies: Tallies = field(default_factory=dict)

    def ask(self, sequence: Sequence, *, hold: bool) -> bool:
        """Ask nothing; the sequence departs at once."""
        return False

    def take_asks(self) -> list[AskDrafts]:
        """Questions for drafters: none."""
        return []

    def answered(self, event: Drafted) -> tuple[list[Sequence], list[Refuse]]:
        """Take no notice: no sequence waits for an answer."""
        return [], []

    def take(self, sequence: Sequence, rows_max: int) -> tuple[int, ...]:
        """Drafts of a sequence that departs: none."""
        return ()

    def wanting(self, span: Span, sequence: Sequence, *, hold: bool) -> Span:
        """The span as it is: it wants none."""
        return span

    def wanted(self, request_id: int) -> int:
        """Drafts that may come back: none."""
        return 0

    def offered(self, sequence: Sequence, token_ids: tuple[int, ...], *, forced: bool) -> None:
        """Drafts of the tail: nobody takes them."""

    def verified(self, span: Span, sequence: Sequence) -> None:
        """A span is back; it had no drafts."""

    def forget(self, request_id: int) -> None:
        """Take no notice: nothing is kept of a request."""


@dataclass(slots=True)
class HeadDrafts:
    """Questions under way, and drafts that wait for their spans."""

    book: KvBook
    widths: Widths
    limits: ModelLimits | None = None
    at_head: bool = True
    """Whether the head has drafters, which are asked."""
    at_tail: bool = False
    """Whether a layer on the tail drafts, for all; else a grammar alone does, for its request."""
    tallies: dict[str, DraftTally] = field(
        init=False, default_factory=lambda: {TAIL: DraftTally(), GRAMMAR: DraftTally()}
    )
    """What came of drafts that the tail sent home."""
    _widths: dict[tuple[int, bool], int] = field(init=False, default_factory=dict)
    """Width that was last judged worth it for each request, of the head's drafters and, as True,
    of the tail's."""
    _told: dict[int, int] = field(init=False, default_factory=dict)
    """First tokens of each request that drafters were told."""
    _asked: dict[int, _Asked] = field(init=False, default_factory=dict)
    _new_asks: dict[int, DraftAsk] = field(init=False, default_factory=dict)
    """Questions that nobody was asked yet."""
    _proposals: Proposals = field(init=False, default_factory=Proposals)
    _by: dict[tuple[int, bool], str] = field(init=False, default_factory=dict)
    """Who has drafted last for each request, on the head and, as True, on the tail."""
    _departed: dict[int, str] = field(init=False, default_factory=dict)
    """Who made the drafts of a request's span under way."""
    _wanted: dict[int, int] = field(init=False, default_factory=dict)
    """Drafts that a request's span under way wants."""

    def ask(self, sequence: Sequence, *, hold: bool) -> bool:
        """Ask for drafts of a sequence whose next token is known; False: it departs without.
        `hold`: as many as before, because rounds are being compared."""
        if not self.at_head:
            return False
        request_id = sequence.request_id
        width = min(self._width(sequence, at_tail=False, hold=hold), self._most(sequence))
        if width < 1:
            return False
        start, tokens = self._told.get(request_id, 0), len(sequence.known)
        new, request = tuple(sequence.known[start:]), sequence.request
        prediction = () if start else request.prediction
        ask = DraftAsk(request_id, start, new, request.sampling, width, prediction)
        self._told[request_id] = tokens
        self._asked[request_id] = _Asked(sequence, ask)
        self._new_asks[request_id] = ask
        return True

    def _width(self, sequence: Sequence, *, at_tail: bool, hold: bool) -> int:
        """Drafts that are worth it, if who drafted for it last does so again."""
        key = sequence.request_id, at_tail
        if not (hold and key in self._widths):
            kind = self._kind(sequence, self._by.get(key, self._first(at_tail=at_tail)))
            self._widths[key] = self.widths.width(sequence.request_id, kind)
        return self._widths[key]

    def _first(self, *, at_tail: bool) -> str:
        """Who drafts, before anybody has."""
        if not at_tail:
            return COPY
        return TAIL if self.at_tail else GRAMMAR

    def _kind(self, sequence: Sequence, by: str) -> DraftKind:
        return DraftKind(by, sequence.request.sampling.temperature > 0)

    def _most(self, sequence: Sequence) -> int:
        """Most drafts that may follow what is known; behind the last one a token is drawn, which
        the request need not compute if it is its last."""
        if sequence.undrafted:
            return 0
        known = len(sequence.known)
        before_states = self.book.snapshots.drafts_most(known)
        return min(DRAFTS_MAX, sequence.request.tokens_max - known, before_states)

    def take_asks(self) -> list[AskDrafts]:
        """What drafters are asked now, about all at once."""
        asks, self._new_asks = tuple(self._new_asks.values()), {}
        return [AskDrafts(asks)] if asks else []

    def answered(self, event: Drafted) -> tuple[list[Sequence], list[Refuse]]:
        """The sequences that depart now, and what was wrong with drafts; of those that nobody
        awaits any more a request was cancelled or preempted."""
        self.widths.drafted(event.step_s)
        ready: list[Sequence] = []
        refused: list[Refuse] = []
        for draft in event.drafts:
            asked = self._asked.pop(draft.request_id, None)
            if asked is None:
                continue
            ready.append(asked.sequence)
            if draft.position != asked.ask.position:
                continue  # It was asked before the request was preempted.
            if (objection := self._objection(draft, asked.ask)) is not None:
                refused.append(Refuse(objection))
            elif draft.token_ids:
                self._by[draft.request_id, False] = draft.by
                self._proposals.offer(*draft)
        return ready, refused

    def _objection(self, draft: Draft, ask: DraftAsk) -> str | None:
        """Why drafts are no answer to a question; None: they are."""
        return drafts_objection(draft.request_id, draft.token_ids, ask.width, self.limits)

    def offered(self, sequence: Sequence, token_ids: tuple[int, ...], *, forced: bool) -> None:
        """The tail has sent drafts home behind the tokens that are known now; `forced`: those that
        a grammar allows alone."""
        if token_ids and not sequence.stopping:
            request_id, by = sequence.request_id, GRAMMAR if forced else TAIL
            self._by[request_id, True] = by
            self._proposals.offer(request_id, len(sequence.known), token_ids, by)

    def take(self, sequence: Sequence, rows_max: int) -> tuple[int, ...]:
        """Drafts of a sequence that departs and whose next token has room, at most `rows_max`; they
        are taken once, and hold the blocks that they need."""
        request_id, known, ledger = sequence.request_id, len(sequence.known), self.book.ledger
        most = min(rows_max, self._most(sequence))
        drafts, by = self._proposals.take(request_id, known, most)
        if not drafts:
            return ()
        spare = max(0, ledger.blocks_free - (ledger.holders_count - 1))
        tokens_max = BLOCK_TOKENS * (ledger.blocks_of(request_id) + spare)
        drafts = drafts[: max(0, tokens_max - known)]
        ledger.grow(request_id, known + len(drafts))
        self._departed[request_id] = by
        return drafts

    def wanting(self, span: Span, sequence: Sequence, *, hold: bool) -> Span:
        """The span of a sequence that departs, with as many drafts as the tail is to send home
        behind its token; they are for the round after."""
        request_id = span.request_id
        self._wanted.pop(request_id, None)
        drafts_here = self.at_tail and not self.tallies[TAIL].is_hopeless
        if not (span.samples and (drafts_here or sequence.request.sampling.grammar)):
            return span
        left = sequence.request.tokens_max - len(sequence.known) - 1
        width = min(self._width(sequence, at_tail=True, hold=hold), left)
        if width < 1:
            return span
        self._wanted[request_id] = width
        return replace(span, wants=width)

    def wanted(self, request_id: int) -> int:
        """Most drafts that may come back with a request's span under way."""
        return self._wanted.get(request_id, 0)

    def verified(self, span: Span, sequence: Sequence) -> None:
        """A span is back, and what came true of its drafts is known."""
        if span.drafts:
            known = sequence.known[span.known_end :]
            pairs = zip(span.drafts, known, strict=False)
            right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            by, drafts = self._departed.pop(span.request_id), len(span.drafts)
            self.widths.judged(span.request_id, self._kind(sequence, by), drafts, right)
            if by in self.tallies:
                self.tallies[by].judged(drafts, right)

    def forget(self, request_id: int) -> None:
        """Forget a request that gives its blocks back; one that is unknown is fine."""
        of_requests = self._told, self._asked, self._new_asks, self._departed, self._wanted
        for of_request in of_requests:
            of_request.pop(request_id, None)
        for at_tail in (False, True):
            self._widths.pop((request_id, at_tail), None)
            self._by.pop((request_id, at_tail), None)
        self._proposals.forget(request_id)
        self.widths.forget(request_id)


def drafts_of(settings: HeadSettings, book: KvBook) -> HeadDrafts | NoDrafts:
    """Drafts of a head with these settings."""
    ring = settings.ring
    if not (width := ring.draft_width_max):
        return NoDrafts()
    widths = FixedWidths(width) if ring.draft_width_fixed else DraftWidths(width)
    at_head, at_tail = ring.drafts_at_head, ring.drafts_at_tail
    return HeadDrafts(book, widths, settings.limits, at_head, at_tail)
