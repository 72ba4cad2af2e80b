"""Drafts of the sequences on a head: whom it asks about, and what it was told.

A sequence whose tokens came back is asked about before it departs again, with as many drafts as are
of use now, and goes once the drafters have answered; so it is never asked about what it does not
know yet, and nobody waits for the answer of another. What was told is taken along by its next span
and by no other.

How many drafts are worth it is judged elsewhere (`Widths`), from what comes true.

Pure.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from molink_scheduler.batch import Span
from molink_scheduler.drafting.asks import AskDrafts, Draft, DraftAsk, Drafted
from molink_scheduler.events import Refuse
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.request import ModelLimits


class Widths(Protocol):
    """Judge of how many drafts are worth it."""

    def width(self, request_id: int) -> int:
        """Drafts to ask for with the request's next span; 0: none."""

    def judged(self, request_id: int, tried: int, right: int) -> None:
        """Of a span's drafts, `tried` of them, the first `right` ones came true."""

    def forget(self, request_id: int) -> None:
        """Forget a request; one that is unknown is fine."""


@dataclass(frozen=True, slots=True)
class FixedWidths:
    """The same width for all, whatever comes true."""

    drafts: int

    def width(self, request_id: int) -> int:
        """That many."""
        return self.drafts

    def judged(self, request_id: int, tried: int, right: int) -> None:
        """Learn nothing."""

    def forget(self, request_id: int) -> None:
        """Know nobody."""


class _Asked(NamedTuple):
    """Sequence that departs once its drafters have answered."""

    sequence: Sequence
    ask: DraftAsk


@dataclass(slots=True)
class NoDrafts:
    """Drafts of a head that has no drafter: nobody is asked about."""

    def ask(self, sequence: Sequence, most: int) -> bool:
        """Ask nothing; the sequence departs at once."""
        return False

    def take_asks(self) -> list[AskDrafts]:
        """No questions."""
        return []

    def answered(self, event: Drafted) -> tuple[list[Sequence], list[Refuse]]:
        """Nobody has asked."""
        return [], []

    def take(self, request_id: int) -> tuple[int, ...]:
        """Drafts of a sequence that departs: none."""
        return ()

    def verified(self, span: Span, right: int) -> None:
        """A span is back; it had no drafts."""

    def forget(self, request_id: int) -> None:
        """Know nobody."""


@dataclass(slots=True)
class HeadDrafts:
    """Questions under way, and drafts that wait for their spans."""

    widths: Widths
    limits: ModelLimits | None = None
    _told: dict[int, int] = field(init=False, default_factory=dict)
    """First tokens of each request that drafters were told."""
    _asked: dict[int, _Asked] = field(init=False, default_factory=dict)
    _new_asks: dict[int, DraftAsk] = field(init=False, default_factory=dict)
    """Questions that nobody was asked yet."""
    _drafts: dict[int, tuple[int, ...]] = field(init=False, default_factory=dict)

    def ask(self, sequence: Sequence, most: int) -> bool:
        """Ask for up to `most` drafts of a sequence whose next token is known; False: it departs
        without."""
        request_id = sequence.request_id
        if (width := min(self.widths.width(request_id), most)) < 1:
            return False
        start, tokens = self._told.get(request_id, 0), len(sequence.known)
        new, sampling = tuple(sequence.known[start:]), sequence.request.sampling
        ask = DraftAsk(request_id, start, new, sampling, width)
        self._told[request_id] = tokens
        self._asked[request_id] = _Asked(sequence, ask)
        self._new_asks[request_id] = ask
        return True

    def take_asks(self) -> list[AskDrafts]:
        """What drafters are asked now, about all at once."""
        asks, self._new_asks = tuple(self._new_asks.values()), {}
        return [AskDrafts(asks)] if asks else []

    def answered(self, event: Drafted) -> tuple[list[Sequence], list[Refuse]]:
        """The sequences that depart now, and what was wrong with drafts; of those that nobody
        awaits any more a request was cancelled or preempted."""
        ready: list[Sequence] = []
        refused: list[Refuse] = []
        for draft in event.drafts:
            asked = self._asked.pop(draft.request_id, None)
            if asked is None:
                continue
            ready.append(asked.sequence)
            if (objection := self._objection(draft, asked.ask)) is not None:
                refused.append(Refuse(objection))
            elif draft.position == asked.ask.position:
                self._drafts[draft.request_id] = draft.token_ids
        return ready, refused

    def _objection(self, draft: Draft, ask: DraftAsk) -> str | None:
        """Why drafts are no answer at all; None: they are, of this question or an older one."""
        name = f"drafts of request {draft.request_id}"
        if len(draft.token_ids) > ask.width:
            return f"{len(draft.token_ids)} {name} came, {ask.width} were asked for"
        if any(one < 0 for one in draft.token_ids):
            return f"{name} are no ids of tokens"
        if self.limits is not None and not self.limits.has_words(draft.token_ids):
            return f"{name} are not in the vocabulary"
        return None

    def take(self, request_id: int) -> tuple[int, ...]:
        """Drafts of a sequence that departs; they are taken once."""
        return self._drafts.pop(request_id, ())

    def verified(self, span: Span, right: int) -> None:
        """Of the drafts of a span that is back, the first `right` ones came true."""
        if span.drafts:
            self.widths.judged(span.request_id, len(span.drafts), right)

    def forget(self, request_id: int) -> None:
        """Forget a request that gives its blocks back; one that is unknown is fine."""
        for of_request in (self._told, self._asked, self._new_asks, self._drafts):
            of_request.pop(request_id, None)
        self.widths.forget(request_id)
