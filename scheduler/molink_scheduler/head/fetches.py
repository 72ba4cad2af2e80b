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
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.changes import FetchBlocks, Fetched, TakeBlocks
from molink_scheduler.kv.prefix_tree import CachedPrefix
from molink_scheduler.kv.ring_cache import RingCache
from molink_scheduler.kv.tiers import (
    FETCHES_MAX,
    FILE,
    FetchPace,
    PromptPace,
    answer_s,
    blocks_worth_fetching,
)
from molink_scheduler.number_runs import named_runs

FETCH_FACTOR = 3.0
"""Multiple of the forecast until a fetch is answered: as patient as coordinators are with prompts.
It is begun only where computing is forecast to take longer."""

FETCH_WAIT_MIN_S = 5.0
"""A stall of a home Wi-Fi is over in two to five seconds. Half of what a coordinator waits for a
token at least, so a ring is not ended for it."""


OFFERS_MAX = 64
"""Prompts that other rings have computed and whose requests wait; the oldest is computed here."""


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

    cache: RingCache
    """Table in which the blocks are."""
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
    _offers: dict[int, TakeBlocks] = field(init=False, default_factory=dict)
    """What other rings have computed of requests that are to come, by the request."""
    _next_id: int = field(init=False, default=0)

    def follow(self, before: "Fetches") -> None:
        """Know the paces of the ring's epoch before: of what was away a part may have stayed."""
        self.pace.row_s, self.pace.trip_s = before.pace.row_s, before.pace.trip_s
        self.answers = before.answers

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

    def begin(self, sequence: Sequence, near: CachedPrefix, now: float) -> bool:
        """Begin to bring back the blocks behind what is `near` of a request's beginning, if some
        are away and that is sooner than computing them."""
        wanted, from_file = self._worth_fetching(sequence)
        if not wanted or wanted > self.cache.ledger.blocks_free + self.cache.blocks_beside(near):
            return False
        salt, packed, _ = prompt_of(sequence)
        prefix, numbers = self.cache.fetchable(salt, packed, near.blocks, wanted)
        blocks = sum(map(len, numbers))
        expected_s = answer_s(from_file, self.cache.tiers, self.pace.trip_s or 0.0)
        change = FetchBlocks(self._next_id, named_runs(numbers))
        node = self.cache.fetch(prefix, change, sequence.owner)
        from_file = max(0, from_file - wanted + blocks)
        self.awaiting(Fetch(sequence, node, blocks, from_file, now, expected_s))
        sequence.was_fetched = True
        return True

    def offered(self, offer: TakeBlocks) -> None:
        """Note that another ring has computed a prompt that is about to be submitted."""
        self._offers[offer.fetch_id] = offer
        while len(self._offers) > OFFERS_MAX:
            del self._offers[next(iter(self._offers))]

    def take(self, sequence: Sequence, near: CachedPrefix, now: float) -> bool:
        """Begin to take over what another ring has computed of a request, if it has computed more
        of it than is here. Computing it was that ring's part: what it costs is not weighed."""
        offer = self._offers.pop(sequence.request_id, None)
        if offer is None:
            return False
        salt, packed, blocks_max = prompt_of(sequence)
        blocks = min(blocks_max, sum(count for _, count in offer.runs))
        tokens = packed[: blocks * self.cache.tree.block_bytes]
        free = self.cache.ledger.blocks_free + self.cache.blocks_beside(near)
        is_held = any(is_held for _, _, is_held in self.cache.tree.away(self._found(salt, tokens)))
        if not self.cache.is_on or not near.blocks < blocks <= near.blocks + free or is_held:
            return False
        change = replace(offer, fetch_id=self._next_id, first_block=near.blocks)
        node, blocks = self.cache.take(salt, tokens, change, sequence.owner)
        self.awaiting(Fetch(sequence, node, blocks, begun_at=now))
        sequence.was_fetched = True
        return True

    def _found(self, salt: str, tokens: bytes) -> CachedPrefix:
        return self.cache.tree.find(salt, tokens, lowest=FILE)

    def awaiting(self, fetch: Fetch) -> None:
        """Wait for a fetch of which stages are told."""
        due_at = fetch.begun_at + self._patience_s(fetch)
        self.under_way[self._next_id] = replace(fetch, due_at=due_at)
        self._next_id += 1

    def answered(self, fetched: Fetched, now: float) -> str | None:
        """So many blocks of a fetch are sure on every stage; why that cannot be, None: it can."""
        fetch = self.under_way.get(fetched.fetch_id) or self.late.get(fetched.fetch_id)
        if fetch is None or fetched.blocks > fetch.blocks:
            return f"nothing was to come back as fetch {fetched.fetch_id}, or less of it"
        if self.late.pop(fetched.fetch_id, None) is None:
            self._end(fetched, now)
        return None

    def give_up(self, now: float) -> bool:
        """Have those that are overdue computed instead; whether there were any."""
        overdue = [one for one, fetch in self.under_way.items() if fetch.due_at <= now]
        for fetch_id in overdue:
            self.late[fetch_id] = self.under_way[fetch_id]
            self._end(Fetched(fetch_id, 0), now)
        return bool(overdue)

    def _worth_fetching(self, sequence: Sequence) -> tuple[int, int]:
        """Blocks behind a request's cached beginning that had better be brought back, and how many
        of them are in the file."""
        host, file = self.cache.away(*prompt_of(sequence))
        found = blocks_worth_fetching(host, file, self.cache.tiers, self.pace, self.answers)
        return found, max(0, found - host)

    def _patience_s(self, fetch: Fetch) -> float:
        """How long a fetch is waited for; one thread of each stage reads those before it first."""
        before = (*self.under_way.values(), *self.late.values())
        expected_s = fetch.expected_s + sum(one.expected_s for one in before)
        return max(FETCH_WAIT_MIN_S, FETCH_FACTOR * expected_s * self.answers.slowness)

    def _end(self, fetched: Fetched, now: float) -> None:
        """End a fetch: so many of its blocks are cached in device memory, the others no more."""
        fetch = self.under_way.pop(fetched.fetch_id)
        self.answers.answered(fetch.expected_s, now - fetch.begun_at)
        from_host = fetch.blocks - fetch.file_blocks
        self.answers.came(max(0, fetched.blocks - from_host), fetch.file_blocks)
        self.fetched_blocks += fetched.blocks
        self.lost_blocks += fetch.blocks - fetched.blocks
        self.cache.arrived(fetch.node, fetched.blocks, fetch.blocks)


def prompt_of(sequence: Sequence) -> tuple[str, bytes, int]:
    """Salt and tokens by which a request is cached, and the most blocks that it may begin with."""
    blocks_max = min(len(sequence.known) - 1, sequence.shared_tokens) // BLOCK_TOKENS
    return sequence.request.cache_salt, sequence.packed, blocks_max
