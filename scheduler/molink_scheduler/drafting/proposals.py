"""Drafts that wait for the span that takes them along: each holds for one position of its request.

A tail offers when a batch returns, a head's own drafters once they have answered; the last one who
has something to say counts. What was made for another position than the one that is drawn next is
of no use to anybody, and is dropped.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

COPY: Final = "copy"
"""Name of the drafter that copies, on the head."""

TAIL: Final = "tail"
"""Name of the drafter that is a layer of the checkpoint, on the tail."""

GRAMMAR: Final = "grammar"
"""Name of a request's grammar, where it allows one continuation alone."""


JUDGED_TRIES, SHARE_MIN = 200, 0.05
"""Tries after which a layer may be told from a wrong load of it, and the share of its drafts that
is right at least: of layers of the same words a third and more are, of a wrong load 0.01."""


class Proposal(NamedTuple):
    """Drafts of one request, in order."""

    token_ids: tuple[int, ...] = ()
    by: str = ""
    """Name of who made them."""


NOTHING: Final = Proposal()


@dataclass(slots=True)
class Proposals:
    """Drafts of all requests, each of which nobody has taken yet."""

    _offers: dict[int, tuple[int, Proposal]] = field(init=False, default_factory=dict)
    """Position of the first of them, and the drafts, by request."""

    def offer(self, request_id: int, position: int, token_ids: tuple[int, ...], by: str) -> None:
        """Offer drafts, the first of them for this position. None are no offer, and leave in place
        what others have offered."""
        if token_ids:
            self._offers[request_id] = position, Proposal(token_ids, by)

    def take(self, request_id: int, position: int, most: int) -> Proposal:
        """Take a request's drafts, at most so many; none where they are for another position. They
        are taken once."""
        at, (token_ids, by) = self._offers.pop(request_id, (position, NOTHING))
        if at != position or not token_ids or most < 1:
            return NOTHING
        return Proposal(token_ids[:most], by)

    def forget(self, request_id: int) -> None:
        """Drop what is offered for a request; one that is unknown is fine."""
        self._offers.pop(request_id, None)


@dataclass(slots=True)
class DraftTally:
    """What came of the drafts of one drafter."""

    rounds: int = 0
    """Rounds of requests that had drafts of it."""
    drafts: int = 0
    tried: int = 0
    """Drafts that followed right ones: what came behind a wrong one says nothing."""
    right: int = 0

    def judged(self, drafts: int, right: int) -> None:
        """The first `right` of a round's drafts came true."""
        self.rounds += 1
        self.drafts += drafts
        self.tried += min(drafts, right + 1)
        self.right += right

    @property
    def is_hopeless(self) -> bool:
        """Whether they come true as seldom as those of a layer that was loaded wrongly."""
        return self.tried >= JUDGED_TRIES and self.right < SHARE_MIN * self.tried


Tallies = Mapping[str, DraftTally]
"""Tallies by the drafters' names."""
