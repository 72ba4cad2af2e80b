"""Cached blocks that come back from lower tiers, each for a request that waits for them.

A fetch is begun when its request would be admitted otherwise, and only where that is sooner than
computing the same tokens again. Its blocks are taken from the free ones at once, and count for
nobody until every stage has said that they are sure: in its host memory, on their way into the
device; meanwhile others go on. A stage that cannot
read a block says how many before it are good: the rest is dropped everywhere and computed again.
Admitting the request at once, and letting each stage hold its rows back, was rejected: rows that
are on their way cannot be taken back where a block turns out to be lost.

Pure.
"""

from dataclasses import dataclass, field

from molink_scheduler.batch import CacheChange
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.kv.tiers import FETCHES_MAX, CacheTiers, FetchPace, PromptPace

__all__ = ["Fetch", "Fetches"]


@dataclass(frozen=True, slots=True)
class Fetch:
    """One request's blocks that are on their way."""

    sequence: Sequence
    node: int
    """In which they end, held until they are there."""
    blocks: int
    file_blocks: int = 0
    """Of these, the last ones, which come from the file."""
    begun_at: float = 0.0
    expected_s: float = 0.0
    """Until its answer, by the rates at loading."""


@dataclass(slots=True)
class Fetches:
    """What comes back now, and what it is weighed by."""

    tiers: CacheTiers
    pace: PromptPace = field(init=False, default_factory=PromptPace)
    answers: FetchPace = field(init=False, default_factory=FetchPace)
    under_way: dict[int, Fetch] = field(init=False, default_factory=dict)
    """By its number."""
    fetched_blocks: int = field(init=False, default=0)
    """That have come back since the start."""
    lost_blocks: int = field(init=False, default=0)
    """That a stage could not read, and that are computed again."""
    _next_id: int = field(init=False, default=0)

    @property
    def is_full(self) -> bool:
        """Whether no other fetch may begin."""
        return len(self.under_way) >= FETCHES_MAX

    def waits(self, sequence: Sequence) -> bool:
        """Whether blocks are on their way for a request."""
        return any(one.sequence is sequence for one in self.under_way.values())

    def begin(self, fetch: Fetch, runs: tuple[tuple[int, int], ...]) -> CacheChange:
        """Blocks in these runs begin to come back: what stages are told."""
        change = CacheChange(fetch=runs, fetch_id=self._next_id)
        self.under_way[self._next_id] = fetch
        self._next_id += 1
        return change

    def end(self, fetch_id: int, blocks: int, now: float) -> Fetch:
        """A fetch has ended with so many of its blocks; the others are lost."""
        fetch = self.under_way.pop(fetch_id)
        self.answers.answered(fetch.expected_s, now - fetch.begun_at)
        from_host = fetch.blocks - fetch.file_blocks
        self.answers.came(max(0, blocks - from_host), fetch.file_blocks)
        self.fetched_blocks += blocks
        self.lost_blocks += fetch.blocks - blocks
        return fetch
