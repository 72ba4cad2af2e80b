"""Cached blocks that come back from lower tiers, each for a request that waits for them.

A fetch is begun when its request would be admitted otherwise, and only where that is sooner than
computing the same tokens again. Its blocks are taken from the free ones at once, and count for
nobody until every stage has said that they are sure: in its host memory, on their way into the
device; meanwhile others go on. A stage that cannot read a block says how many before it are good:
the rest is dropped everywhere and computed again.
One that does not answer in time is taken for one that has lost all. Its answer is still expected,
so a ring with a stage that never answers soon fetches nothing more. To count such a stage as failed
was rejected: a disk that sleeps would cost the ring a pause of seconds for what can be computed.
Admitting the request at once, and letting each stage hold its rows back, was rejected: rows that
are on their way cannot be taken back where a block turns out to be lost.

Pure.
"""

import math
from dataclasses import dataclass, field, replace

from molink_scheduler.head.sequence import Sequence
from molink_scheduler.kv.changes import FetchBlocks, Runs
from molink_scheduler.kv.tiers import FETCHES_MAX, CacheTiers, FetchPace, PromptPace

FETCH_FACTOR = 3.0
"""Multiple of the forecast until a fetch is answered: as patient as coordinators are with prompts.
It is begun only where computing is forecast to take longer."""

FETCH_WAIT_MIN_S = 5.0
"""A stall of a home Wi-Fi is over in two to five seconds. Half of what a coordinator waits for a
token at least, so a ring is not ended for it."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Blocks of one request that are on their way."""

    sequence: Sequence
    node: int
    """Node of the directory in which the blocks end, held until they are there."""
    blocks: int
    file_blocks: int = 0
    """Blocks that come from the file, the last ones of `blocks`."""
    begun_at: float = 0.0
    expected_s: float = 0.0
    """Seconds until its answer, by the rates at loading."""
    due_at: float = math.inf
    """Time at which it is given up."""


@dataclass(slots=True)
class Fetches:
    """Blocks that come back now, and the paces by which a fetch is weighed."""

    tiers: CacheTiers
    pace: PromptPace = field(init=False, default_factory=PromptPace)
    answers: FetchPace = field(init=False, default_factory=FetchPace)
    under_way: dict[int, Fetch] = field(init=False, default_factory=dict)
    """Fetches that are not answered and not given up, by number."""
    late: dict[int, Fetch] = field(init=False, default_factory=dict)
    """Fetches that were given up and whose answers are still to come, by number."""
    fetched_blocks: int = field(init=False, default=0)
    """Blocks that have come back since the start."""
    lost_blocks: int = field(init=False, default=0)
    """Blocks that a stage could not read, or not in time, and that are computed again."""
    _next_id: int = field(init=False, default=0)

    @property
    def is_full(self) -> bool:
        """Whether no other fetch may begin."""
        return len(self.under_way) + len(self.late) >= FETCHES_MAX

    @property
    def due_at(self) -> float | None:
        """Time at which the first fetch is given up; None: none is under way."""
        return min((one.due_at for one in self.under_way.values()), default=None)

    def waits(self, sequence: Sequence) -> bool:
        """Whether blocks are on their way for a request."""
        return any(one.sequence is sequence for one in self.under_way.values())

    def next_change(self, runs: Runs) -> FetchBlocks:
        """What stages are told of the next fetch."""
        return FetchBlocks(self._next_id, runs)

    def begin(self, change: FetchBlocks, fetch: Fetch) -> None:
        """A fetch begins, of which stages are told so."""
        due_at = fetch.begun_at + self._patience_s(fetch)
        self.under_way[change.fetch_id] = replace(fetch, due_at=due_at)
        self._next_id = change.fetch_id + 1

    def _patience_s(self, fetch: Fetch) -> float:
        """How long a fetch is waited for; one thread of each stage reads those before it first."""
        before = (*self.under_way.values(), *self.late.values())
        expected_s = fetch.expected_s + sum(one.expected_s for one in before)
        return max(FETCH_WAIT_MIN_S, FETCH_FACTOR * expected_s * self.answers.slowness)

    def awaited(self, fetch_id: int) -> Fetch | None:
        """The fetch of this number whose answer is still to come, given up or not."""
        return self.under_way.get(fetch_id) or self.late.get(fetch_id)

    def end(self, fetch_id: int, blocks: int, now: float) -> Fetch:
        """A fetch has ended with so many of its blocks; the others are lost."""
        fetch = self.under_way.pop(fetch_id)
        self.answers.answered(fetch.expected_s, now - fetch.begun_at)
        from_host = fetch.blocks - fetch.file_blocks
        self.answers.came(max(0, blocks - from_host), fetch.file_blocks)
        self.fetched_blocks += blocks
        self.lost_blocks += fetch.blocks - blocks
        return fetch
