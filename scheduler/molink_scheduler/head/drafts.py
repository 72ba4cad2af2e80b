"""Drafts of the sequences on a head: whom it asks about, and what it was told.

A sequence whose tokens came back is asked about before it departs again, with as many drafts as are
of use now, and goes once the drafters have answered; so it is never asked about what it does not
know yet, and nobody waits for the answer of another. What was told is taken along by its next span
and by no other.

A draft costs nobody anything. It takes blocks that are free, and leaves one to each other request,
which may need it for the token that it decodes next; it reaches no further than the request may,
nor past a place where states are kept; and micro-batches with drafts have bounded rows.

How many drafts are worth it is judged elsewhere (`Widths`), from what comes true.

Pure.
"""

from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple, Protocol

from molink_scheduler.batch import DRAFTS_MAX, Span
from molink_scheduler.drafting.asks import AskDrafts, Draft, DraftAsk, Drafted
from molink_scheduler.drafting.widths import DraftWidths
from molink_scheduler.events import Refuse
from molink_scheduler.head.kv_book import KvBook
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

    def width(self, request_id: int) -> int:
        """Drafts to ask for with the request's next span; 0: none."""

    def judged(self, request_id: int, tried: int, right: int) -> None:
        """Learn that the first `right` of a span's `tried` drafts came true."""

    def drafted(self, step_s: float) -> None:
        """One more draft of all takes the drafters so long."""

    def round_completed(self, tracker: RoundTracker, count: int, prefill_share: float) -> None:
        """One of `count` micro-batches is back; what the next ones will cost, and what prompts take
        of the devices."""

    def forget(self, request_id: int) -> None:
        """Forget a request; one that is unknown is fine."""


@dataclass(frozen=True, slots=True)
class FixedWidths:
    """The same width for all, whatever comes true."""

    drafts: int

    def width(self, request_id: int) -> int:
        """The fixed width, for every request."""
        return self.drafts

    def judged(self, request_id: int, tried: int, right: int) -> None:
        """Take no notice: the width is fixed."""

    def drafted(self, step_s: float) -> None:
        """Take no notice: the width is fixed."""

    def round_completed(self, tracker: RoundTracker, count: int, prefill_share: float) -> None:
        """Take no notice: the width is fixed."""

    def forget(self, request_id: int) -> None:
        """Know nobody."""


class _Asked(NamedTuple):
    """Sequence that departs once its drafters have answered."""

    sequence: Sequence
    ask: DraftAsk


@dataclass(slots=True)
class NoDrafts:
    """Drafts of a head that has no drafter: nobody is asked about."""

    widths: FixedWidths = FixedWidths(0)

    def ask(self, sequence: Sequence, *, hold: bool) -> bool:
        """Ask nothing; the sequence departs at once."""
        return False

    def take_asks(self) -> list[AskDrafts]:
        """No questions."""
        return []

    def answered(self, event: Drafted) -> tuple[list[Sequence], list[Refuse]]:
        """Nobody has asked."""
        return [], []

    def take(self, sequence: Sequence, rows_max: int) -> tuple[int, ...]:
        """Drafts of a sequence that departs: none."""
        return ()

    def verified(self, span: Span, sequence: Sequence) -> None:
        """A span is back; it had no drafts."""

    def forget(self, request_id: int) -> None:
        """Know nobody."""


@dataclass(slots=True)
class HeadDrafts:
    """Questions under way, and drafts that wait for their spans."""

    book: KvBook
    widths: Widths
    limits: ModelLimits | None = None
    _widths: dict[int, int] = field(init=False, default_factory=dict)
    """Width that was last judged worth it for each request."""
    _told: dict[int, int] = field(init=False, default_factory=dict)
    """First tokens of each request that drafters were told."""
    _asked: dict[int, _Asked] = field(init=False, default_factory=dict)
    _new_asks: dict[int, DraftAsk] = field(init=False, default_factory=dict)
    """Questions that nobody was asked yet."""
    _drafts: dict[int, tuple[int, ...]] = field(init=False, default_factory=dict)

    def ask(self, sequence: Sequence, *, hold: bool) -> bool:
        """Ask for drafts of a sequence whose next token is known; False: it departs without.
        `hold`: as many as before, because rounds are being compared."""
        request_id = sequence.request_id
        if not (hold and request_id in self._widths):
            self._widths[request_id] = self.widths.width(request_id)
        if (width := min(self._widths[request_id], self._most(sequence))) < 1:
            return False
        start, tokens = self._told.get(request_id, 0), len(sequence.known)
        new, request = tuple(sequence.known[start:]), sequence.request
        prediction = () if start else request.prediction
        ask = DraftAsk(request_id, start, new, request.sampling, width, prediction)
        self._told[request_id] = tokens
        self._asked[request_id] = _Asked(sequence, ask)
        self._new_asks[request_id] = ask
        return True

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
            else:
                self._drafts[draft.request_id] = draft.token_ids
        return ready, refused

    def _objection(self, draft: Draft, ask: DraftAsk) -> str | None:
        """Why drafts are no answer to a question; None: they are."""
        name = f"drafts of request {draft.request_id}"
        if len(draft.token_ids) > ask.width:
            return f"{len(draft.token_ids)} {name} came, {ask.width} were asked for"
        if any(one < 0 for one in draft.token_ids):
            return f"{name} are no ids of tokens"
        if self.limits is not None and not self.limits.has_words(draft.token_ids):
            return f"{name} are not in the vocabulary"
        return None

    def take(self, sequence: Sequence, rows_max: int) -> tuple[int, ...]:
        """Drafts of a sequence that departs and whose next token has room, at most `rows_max`; they
        are taken once, and hold the blocks that they need."""
        request_id, known, ledger = sequence.request_id, len(sequence.known), self.book.ledger
        drafts = self._drafts.pop(request_id, ())
        if not drafts:
            return ()
        spare = max(0, ledger.blocks_free - (ledger.holders_count - 1))
        tokens_max = BLOCK_TOKENS * (ledger.blocks_of(request_id) + spare)
        drafts = drafts[: max(0, min(rows_max, tokens_max - known))]
        ledger.grow(request_id, known + len(drafts))
        return drafts

    def verified(self, span: Span, sequence: Sequence) -> None:
        """A span is back, and what came true of its drafts is known."""
        if span.drafts:
            known = sequence.known[span.known_end :]
            pairs = zip(span.drafts, known, strict=False)
            right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            self.widths.judged(span.request_id, len(span.drafts), right)

    def forget(self, request_id: int) -> None:
        """Forget a request that gives its blocks back; one that is unknown is fine."""
        self._told.pop(request_id, None)
        self._asked.pop(request_id, None)
        self._new_asks.pop(request_id, None)
        self._drafts.pop(request_id, None)
        self._widths.pop(request_id, None)
        self.widths.forget(request_id)


def drafts_of(settings: HeadSettings, book: KvBook) -> HeadDrafts | NoDrafts:
    """Drafts of a head with these settings."""
    width = settings.ring.draft_width_max
    if not width:
        return NoDrafts()
    widths = FixedWidths(width) if settings.ring.draft_width_fixed else DraftWidths(width)
    return HeadDrafts(book, widths, settings.limits)
