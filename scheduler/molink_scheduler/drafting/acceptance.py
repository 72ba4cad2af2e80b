"""How often drafts come true, by request and on the whole.

Pure.
"""

from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Acceptance:
    """Chance of a draft to be right where those before it were."""

    _all: _Tries = field(init=False, default_factory=lambda: _Tries(TRIES_KEPT))
    _requests: dict[int, _Tries] = field(init=False, default_factory=dict)

    def judged(self, request_id: int, tried: int, right: int) -> None:
        """Learn that the first `right` of a round's `tried` drafts came true. Those behind the
        first that was wrong say nothing: they followed a text that is not there."""
        tries = min(tried, right + 1)
        for one in (self._all, self._requests.setdefault(request_id, _Tries(REQUEST_TRIES_KEPT))):
            one.add(tries, right)

    def chance(self, request_id: int) -> float:
        """Chance for a request; the mean of all where nothing of it was tried."""
        mean, own = self._all.mean(FIRST_MEAN), self._requests.get(request_id)
        return mean if own is None else own.mean(mean)

    def forget(self, request_id: int) -> None:
        """Drop what is known of a request; one that is unknown is fine."""
        self._requests.pop(request_id, None)
