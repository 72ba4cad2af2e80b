"""Drafts of the sequences on a head: whom it asks about, and what it was told.

A sequence whose tokens came back is asked about before it departs again, with as many drafts as are
of use now; so it is never asked about what it does not know yet. Those who came back together are a
*company*, and depart together once the drafters have answered about all of them: a step of a
drafter is paid once for all, and who went without the others would meet them never again
(docs/decisions/0097). What was told is taken along by its sequence's next span and by no other. So
is what the tail sends home, which a span asks for as it departs (`Span.wants`): a layer of the
checkpoint drafts there, and a grammar that allows one continuation alone. Nobody waits for these;
what the head's drafters say beside them goes before. Nobody waits either where no draft pays: what
is guessed there now and then is compared with the token that comes (`Probes`).

A draft costs nobody anything. It takes blocks that are free, and leaves one to each other request,
which may need it for the token that it decodes next; it reaches no further than the request may,
nor past a place where states are kept; and micro-batches with drafts have bounded rows.

How many drafts are worth it is judged elsewhere (`Widths`), from what comes true.

Pure.
"""

from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple

from molink_scheduler.batch import DRAFTS_MAX, Span
from molink_scheduler.drafting.acceptance import DraftKind
from molink_scheduler.drafting.asks import AskDrafts, Draft, DraftAsk, Drafted
from molink_scheduler.drafting.fixed_widths import FixedWidths, Widths
from molink_scheduler.drafting.probes import Probes
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

DRAFTED_ROWS_MAX = 128
"""Most rows of a micro-batch that has drafts, the most of a step that is recorded on a card: more
would hold up the others on a home link."""


class _Asked(NamedTuple):
    """Sequence about which drafters were asked."""

    sequence: Sequence
    ask: DraftAsk
    is_probe: bool
    """Whether it departs without their answer."""


@dataclass(slots=True)
class NoDrafts:
    """Drafts of a head that has no drafter: nobody is asked about."""

    widths: FixedWidths = field(default_factory=lambda: FixedWidths(0))
    tallies: Tallies = field(default_factory=dict)

    def ask(self, sequence: Sequence, *, hold: bool) -> None:
        """Ask nothing; the sequence departs at once."""

    def take_asks(self) -> tuple[list[AskDrafts], int]:
        """Questions for drafters: none."""
        return [], 0

    def awaits(self, company: int) -> bool:
        """Whether a company waits: never."""
        return False

    def company_of(self, request_id: int) -> int:
        """The company of all, which waits for nothing."""
        return 0

    def answered(self, event: Drafted) -> list[Refuse]:
        """Take no notice: no sequence waits for an answer."""
        return []

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
    _widths: dict[int, dict[str, int]] = field(init=False, default_factory=dict)
    """Width that was last judged worth it for each request, by who drafts."""
    _told: dict[int, int] = field(init=False, default_factory=dict)
    """First tokens of each request that drafters were told."""
    _asked: dict[int, _Asked] = field(init=False, default_factory=dict)
    _new_asks: dict[int, DraftAsk] = field(init=False, default_factory=dict)
    """Questions that nobody was asked yet."""
    _companies: dict[int, int] = field(init=False, default_factory=dict)
    """Company with which each request came back last."""
    _awaited: dict[int, set[int]] = field(init=False, default_factory=dict)
    """Requests of each company about which an answer is awaited, where there are any."""
    _company: int = field(init=False, default=0)
    """Company of those that come back now."""
    _proposals: Proposals = field(init=False, default_factory=Proposals)
    _probes: Probes = field(init=False, default_factory=Probes)
    _model: str = field(init=False, default="")
    """Name of the head's drafter that does not copy, once it has drafted."""
    _tail_by: dict[int, str] = field(init=False, default_factory=dict)
    """Who has drafted last on the tail for each request."""
    _departed: dict[int, str] = field(init=False, default_factory=dict)
    """Who made the drafts of a request's span under way."""
    _wanted: dict[int, int] = field(init=False, default_factory=dict)
    """Drafts that a request's span under way wants."""
    _tail_probes: set[int] = field(init=False, default_factory=set)
    """Requests of whose spans under way the draft is only compared."""

    def ask(self, sequence: Sequence, *, hold: bool) -> None:
        """Ask for drafts of a sequence whose next token is known, if any are worth it; its company
        waits for them. `hold`: as many as before, because rounds are being compared."""
        request_id = sequence.request_id
        self._companies[request_id] = self._company
        most = self._most(sequence)
        if not self.at_head or most < 1 or request_id in self._asked:
            return  # A question that is open after a whole round is of a drafter that is too slow.
        widths = {by: min(self._width(sequence, by, hold=hold), most) for by in (COPY, self._model)}
        probed = [by for by, width in widths.items() if self._is_probed(sequence, by, width)]
        if not any(widths.values()) and not probed:
            return
        if not probed:
            self._awaited.setdefault(self._company, set()).add(request_id)
        ask = self._question(sequence, widths | dict.fromkeys(probed, 1))
        self._asked[request_id] = _Asked(sequence, ask, bool(probed))
        self._new_asks[request_id] = ask

    def _question(self, sequence: Sequence, widths: dict[str, int]) -> DraftAsk:
        """The question about a sequence, by what drafters were told of it before."""
        request_id, request = sequence.request_id, sequence.request
        start = self._told.get(request_id, 0)
        self._told[request_id] = len(sequence.known)
        return DraftAsk(
            request_id,
            start,
            tuple(sequence.known[start:]),
            request.sampling,
            widths[self._model],
            widths[COPY],
            () if start else request.prediction,
        )

    def _width(self, sequence: Sequence, by: str, *, hold: bool) -> int:
        """Drafts that are worth it."""
        widths = self._widths.setdefault(sequence.request_id, {})
        if not (hold and by in widths):
            widths[by] = self.widths.width(sequence.request_id, _kind(sequence, by))
        return widths[by]

    def _is_probed(self, sequence: Sequence, by: str, width: int) -> bool:
        """Whether a draft is made that is only compared, as none is worth it."""
        return not width and self.widths.probes(sequence.request_id, _kind(sequence, by))

    def _most(self, sequence: Sequence) -> int:
        """Most drafts that may follow what is known; behind the last one a token is drawn, which
        the request need not compute if it is its last."""
        if sequence.undrafted:
            return 0
        known = len(sequence.known)
        before_states = self.book.snapshots.drafts_most(known)
        return min(DRAFTS_MAX, sequence.request.tokens_max - known, before_states)

    def take_asks(self) -> tuple[list[AskDrafts], int]:
        """What drafters are asked now, about all who came back together, and these as a company;
        who comes from now on is of another one."""
        asks, self._new_asks = tuple(self._new_asks.values()), {}
        company, self._company = self._company, self._company + 1
        return [AskDrafts(asks)] if asks else [], company

    def awaits(self, company: int) -> bool:
        """Whether a company waits for drafts."""
        return company in self._awaited

    def company_of(self, request_id: int) -> int:
        """The company with which a request came back."""
        return self._companies.get(request_id, -1)

    def answered(self, event: Drafted) -> list[Refuse]:
        """Take answers, of which some may be awaited no more: their requests were cancelled or
        preempted. What was wrong with them."""
        self.widths.drafted(event.step_s)
        refused: list[Refuse] = []
        for draft in event.drafts:
            asked = self._asked.pop(draft.request_id, None)
            if asked is None:
                continue
            self._await_no_more(draft.request_id)
            if draft.position != asked.ask.position:
                continue  # It was asked before the request was preempted.
            if (objection := self._objection(draft, asked.ask)) is not None:
                refused.append(Refuse(objection))
            elif draft.token_ids:
                self._take_answer(draft, asked)
        return refused

    def _take_answer(self, draft: Draft, asked: _Asked) -> None:
        request_id, position, token_ids, by = draft
        self._model = self._model if by == COPY else by
        if not asked.is_probe:
            self._proposals.offer(request_id, position, token_ids, by)
            return
        self._probes.guess(request_id, _kind(asked.sequence, by), position, token_ids[0])
        self._compare(asked.sequence)

    def _await_no_more(self, request_id: int) -> None:
        company = self._companies.get(request_id, -1)
        awaited = self._awaited.get(company, set())
        awaited.discard(request_id)
        if not awaited:
            self._awaited.pop(company, None)

    def _objection(self, draft: Draft, ask: DraftAsk) -> str | None:
        """Why drafts are no answer to a question; None: they are."""
        most = ask.width_of(draft.by)
        return drafts_objection(draft.request_id, draft.token_ids, most, self.limits)

    def _compare(self, sequence: Sequence) -> None:
        """Learn from guesses whose tokens are known."""
        request_id = sequence.request_id
        for kind, is_right in self._probes.compared(request_id, sequence.known):
            self._judged(request_id, kind, 1, int(is_right))

    def _judged(self, request_id: int, kind: DraftKind, tried: int, right: int) -> None:
        self.widths.judged(request_id, kind, tried, right)
        if kind.by in self.tallies:
            self.tallies[kind.by].judged(tried, right)

    def offered(self, sequence: Sequence, token_ids: tuple[int, ...], *, forced: bool) -> None:
        """The tail has sent drafts home behind the tokens that are known now; `forced`: those that
        a grammar allows alone."""
        if not token_ids or sequence.stopping:
            return
        request_id, position = sequence.request_id, len(sequence.known)
        self._tail_by[request_id] = by = GRAMMAR if forced else TAIL
        if request_id in self._tail_probes:
            self._probes.guess(request_id, _kind(sequence, by), position, token_ids[0])
        else:
            self._proposals.offer(request_id, position, token_ids, by)

    def take(self, sequence: Sequence, rows_max: int) -> tuple[int, ...]:
        """Drafts of a sequence that departs and whose next token has room, at most `rows_max`; they
        are taken once, and hold the blocks that they need."""
        request_id, known, ledger = sequence.request_id, len(sequence.known), self.book.ledger
        most = min(rows_max, self._most(sequence))
        drafts, by = self._proposals.take(request_id, known, most)
        if not drafts:
            return ()
        spare = max(0, ledger.blocks_free - (ledger.holders_count - 1))
        held = ledger.blocks_of(request_id) + ledger.spared_blocks(request_id)
        tokens_max = BLOCK_TOKENS * (held + spare)
        drafts = drafts[: max(0, tokens_max - known)]
        ledger.grow(request_id, known + len(drafts))
        self._departed[request_id] = by
        return drafts

    def wanting(self, span: Span, sequence: Sequence, *, hold: bool) -> Span:
        """The span of a sequence that departs, with as many drafts as the tail is to send home
        behind its token; they are for the round after."""
        request_id = span.request_id
        self._wanted.pop(request_id, None)
        self._tail_probes.discard(request_id)
        drafts_here = self.at_tail and not self.tallies[TAIL].is_hopeless
        if not (span.samples and (drafts_here or sequence.request.sampling.grammar)):
            return span
        by = self._tail_by.get(request_id, TAIL if self.at_tail else GRAMMAR)
        width = self._width(sequence, by, hold=hold)
        if self._is_probed(sequence, by, width):
            self._tail_probes.add(request_id)
            width = 1
        width = min(width, sequence.request.tokens_max - len(sequence.known) - 1)
        if width < 1:
            return span
        self._wanted[request_id] = width
        return replace(span, wants=width)

    def wanted(self, request_id: int) -> int:
        """Most drafts that may come back with a request's span under way."""
        return self._wanted.get(request_id, 0)

    def verified(self, span: Span, sequence: Sequence) -> None:
        """A span is back, and what came true of its drafts, and of guesses, is known; it goes on
        behind that."""
        self._compare(sequence)
        if span.drafts:
            sequence.settle_drafts(span)
            known = sequence.known[span.known_end :]
            pairs = zip(span.drafts, known, strict=False)
            right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            kind = _kind(sequence, self._departed.pop(span.request_id))
            self._judged(span.request_id, kind, len(span.drafts), right)

    def forget(self, request_id: int) -> None:
        """Forget a request that gives its blocks back; one that is unknown is fine."""
        self._await_no_more(request_id)
        of_requests = (
            *(self._told, self._asked, self._new_asks, self._companies, self._widths),
            *(self._tail_by, self._departed, self._wanted),
        )
        for of_request in of_requests:
            of_request.pop(request_id, None)
        self._tail_probes.discard(request_id)
        for one in (self._proposals, self._probes, self.widths):
            one.forget(request_id)


def _kind(sequence: Sequence, by: str) -> DraftKind:
    return DraftKind(by, sequence.request.sampling.temperature > 0)


def drafts_of(settings: HeadSettings, book: KvBook) -> HeadDrafts | NoDrafts:
    """Drafts of a head with these settings."""
    ring = settings.ring
    if not (width := ring.draft_width_max):
        return NoDrafts()
    widths = FixedWidths(width) if ring.draft_width_fixed else DraftWidths(width)
    at_head, at_tail = ring.drafts_at_head, ring.drafts_at_tail
    return HeadDrafts(book, widths, settings.limits, at_head, at_tail)
