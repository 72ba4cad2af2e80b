"""How often drafts come true: by request, and on the whole, each by who made them and how its
request draws.

Pure.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

PRIOR_TRIES = 4
"""Tries at the mean of all with which a request begins: one wrong draft says little."""

FIRST_MEAN = 0.7
"""Mean before anything was tried: less than pairs of models have that are published (0.74 to
0.9)."""

REQUEST_TRIES_KEPT, TRIES_KEPT = 64, 1024
"""Tries that a mean goes back to, of a request and of all: an answer quotes for a while and then
goes on by itself."""


@dataclass(slots=True)
class _Tries:
    """Hits of the last tries, each counting a little less with every newer one."""

    kept: int
    tries: float = 0.0
    hits: float = 0.0

    def add(self, tries: int, hits: int) -> None:
        self.tries += tries
        self.hits += hits
        if self.tries > self.kept:
            self.hits *= self.kept / self.tries
            self.tries = self.kept

    def mean(self, prior: float) -> float:
        """Share of hits, with a prior of a few tries."""
        return (self.hits + PRIOR_TRIES * prior) / (self.tries + PRIOR_TRIES)


class DraftKind(NamedTuple):
    """Kind of drafts that come true about as often as each other."""

    by: str
    """Name of who makes them."""
    is_drawn: bool = False
    """Whether their request's tokens are drawn, not the likeliest ones."""


@dataclass(slots=True)
class Acceptance:
    """Chance of a draft to be right where those before it were, by its kind."""

    _all: dict[DraftKind, _Tries] = field(init=False, default_factory=dict)
    _requests: dict[int, dict[DraftKind, _Tries]] = field(init=False, default_factory=dict)

    def judged(self, request_id: int, kind: DraftKind, tried: int, right: int) -> None:
        """Learn that the first `right` of a round's `tried` drafts came true. Those behind the
        first that was wrong say nothing: they followed a text that is not there."""
        tries = min(tried, right + 1)
        own = self._requests.setdefault(request_id, {})
        self._all.setdefault(kind, _Tries(TRIES_KEPT)).add(tries, right)
        own.setdefault(kind, _Tries(REQUEST_TRIES_KEPT)).add(tries, right)

    def chance(self, request_id: int, kind: DraftKind) -> float:
        """Chance for a request; the mean of all where nothing of it was tried."""
        tries, own = self._all.get(kind), self._requests.get(request_id, {}).get(kind)
        mean = FIRST_MEAN if tries is None else tries.mean(FIRST_MEAN)
        return mean if own is None else own.mean(mean)

    def forget(self, request_id: int) -> None:
        """Drop what is known of a request; one that is unknown is fine."""
        self._requests.pop(request_id, None)
