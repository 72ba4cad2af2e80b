"""Table of one stage's cached blocks: where each of them is, and who uses it.

A block is in the device's memory, in a lower tier, or *owed*: the other stages hold it, and the
neighbour before this one sends its rows again when a request begins with it. What is on its way
back from a lower tier counts as in the device's memory, where its reader uses it. Only what nobody
uses may go, wherever it is; the question is asked here and nowhere else.

The head decides and each stage follows, so the table says what cannot be of what the head says
(`objection`), and does the rest (`change`). Counts of device memory are kept in the ledger.

Pure: says what is wrong, moves nothing itself.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import assert_never

from molink_scheduler.kv.changes import (
    NOWHERE,
    AwayBlocks,
    CacheChange,
    DropBlocks,
    FetchBlocks,
    Fetched,
    FoldBlocks,
    KeepBlocks,
    KeptBlocks,
    LowerBlocks,
    RetainBlocks,
    TakeBlocks,
    numbers_of,
)
from molink_scheduler.kv.fetch_answers import FetchAnswers
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.tiers import DEVICE, FILE, HOST, CacheTiers

OWED = FILE + 1
"""Place of a block that other stages hold, and of which a neighbour's log has the rows."""


@dataclass(slots=True)
class BlockTable:
    """Cached blocks of one stage, by their numbers."""

    kv: KvLedger
    """Ledger of the blocks in device memory."""
    tiers: CacheTiers = field(default_factory=CacheTiers)
    """Room below the device's memory."""
    answers: FetchAnswers = field(init=False, default_factory=FetchAnswers)
    """Answers to fetches from lower tiers."""
    _places: dict[int, int] = field(init=False, default_factory=dict)
    """Place of each block: a tier, or OWED."""
    _counts: list[int] = field(init=False, default_factory=lambda: [0] * (OWED + 1))
    """Number of blocks in each place."""
    _users: dict[int, int] = field(init=False, default_factory=dict)
    """Number of requests and readers that use a block; those of no user are left out."""
    _offered: frozenset[int] | None = field(init=False, default=None)
    """Cached blocks of the epoch before, until the head says which stay; None: it has said so, or
    never will."""
    _offered_away: AwayBlocks = field(init=False, default=NOWHERE)
    """The same below the device's memory."""
    _is_fresh: bool = field(init=False, default=False)
    """Whether the blocks that stay are owed to this stage."""

    @classmethod
    def of(cls, kv: KvLedger, tiers: CacheTiers | None) -> "BlockTable":
        """Table of a stage in a ring that has such tiers, if it has any."""
        return cls(kv, tiers or CacheTiers())

    def place_of(self, number: int) -> int | None:
        """Where a block is; None: it is not cached."""
        return self._places.get(number)

    def count(self, place: int) -> int:
        """Number of blocks in a place."""
        return self._counts[place]

    def owed(self, numbers: Iterable[int]) -> set[int]:
        """Those of some blocks that others hold and this stage, a fresh one, does not yet."""
        return {number for number in numbers if self._places.get(number) == OWED}

    def has(self, numbers: Iterable[int], rebuilt: Collection[int] = ()) -> bool:
        """Whether all these blocks are in device memory, but for those that are `rebuilt`."""
        return all(self._places.get(one) == DEVICE or one in rebuilt for one in numbers)

    # -- requests -------------------------------------------------------------------------------

    def begin(self, request_id: int, cached: Collection[range]) -> None:
        """Let a request begin with cached blocks; those that were owed were rebuilt for it, and
        are cached here from now on."""
        owed = self.owed(chain.from_iterable(cached))
        for number in owed:
            self._put(number, DEVICE)
        self.use(cached)
        take = self.kv.adopt if owed else self.kv.begin
        take(request_id, sum(map(len, cached)))

    def use(self, cached: Iterable[range]) -> None:
        """Count one more user of these blocks."""
        for number in chain.from_iterable(cached):
            self._users[number] = self._users.get(number, 0) + 1

    def leave(self, cached: Iterable[range]) -> None:
        """Count one user less of these blocks."""
        for number in chain.from_iterable(cached):
            if self._users[number] > 1:
                self._users[number] -= 1
            else:
                del self._users[number]

    # -- changes --------------------------------------------------------------------------------

    def objection(self, change: CacheChange) -> str | None:
        """Why the cache cannot change so; None: it can."""
        match change:
            case KeepBlocks(kept):
                return self._keep_objection(kept)
            case RetainBlocks():
                return self._retain_objection(change)
            case TakeBlocks():
                return self._take_objection(change)
            case DropBlocks() | LowerBlocks() | FetchBlocks():
                return self._going_objection(change)
            case FoldBlocks():
                return None  # It is about a request, of which its book knows.
            case _:
                assert_never(change)

    def change(self, change: CacheChange) -> None:
        """Note a change of the cache against which there is no objection."""
        match change:
            case KeepBlocks(kept):
                for one in kept:
                    self._keep(one)
            case DropBlocks():
                numbers = frozenset(change.numbers)
                self._drop(numbers)
                self.answers.give_up(numbers)
            case LowerBlocks(tier):
                self._lower(tuple(change.numbers), tier)
            case FetchBlocks():
                self._fetch(change)
            case RetainBlocks():
                self._retain(change)
            case FoldBlocks(request_id, blocks, into):
                self.kv.fold(request_id, blocks, into)
            case _:
                assert_never(change)

    def read(self, fetched: Fetched) -> Fetched | None:
        """Note that the stage has read its blocks of a fetch; the answer to pass on."""
        numbers, answer = self.answers.read(fetched)
        self.leave([range(number, number + 1) for number in numbers])
        return answer

    def resume(
        self, offered: frozenset[int] | None, away: AwayBlocks = NOWHERE, *, fresh: bool
    ) -> None:
        """Begin an empty table: of the cached blocks `offered`, and of those `away`, those stay
        that the head says; None: none. A `fresh` stage holds none in its device's memory and is
        owed all that stay there."""
        self._offered, self._offered_away, self._is_fresh = offered, away, fresh

    def _keep(self, kept: KeptBlocks) -> None:
        for number in kept.numbers:
            self._put(number, DEVICE)
        self.use([kept.numbers])
        self.kv.keep(kept.request_id, kept.blocks)

    def _drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.kv.drop(int(self._places[number] == DEVICE))
            self._put(number, None)
            self._users.pop(number, None)

    def _lower(self, numbers: Iterable[int], tier: int) -> None:
        for number in numbers:
            self.kv.drop(int(self._places[number] == DEVICE))
            self._put(number, tier)

    def _fetch(self, change: FetchBlocks) -> None:
        for number in change.numbers:
            self._put(number, DEVICE)
        self._users.update(dict.fromkeys(change.numbers, 1))  # Their reader's, until it has them.
        self.kv.bring_back(sum(blocks for _, blocks in change.runs))
        self.answers.begin(change)

    def _retain(self, change: RetainBlocks) -> None:
        self._offered = None
        for place, runs in (
            (OWED if self._is_fresh else DEVICE, change.runs),
            (HOST, change.away.host),
            (FILE, change.away.file),
        ):
            for number in numbers_of(runs):
                self._put(number, place)
        self.kv.bring_back(self._counts[DEVICE])

    def _put(self, number: int, place: int | None) -> None:
        before = self._places.pop(number, None)
        if before is not None:
            self._counts[before] -= 1
        if place is not None:
            self._places[number] = place
            self._counts[place] += 1

    # -- objections -----------------------------------------------------------------------------

    def _keep_objection(self, keep: Collection[KeptBlocks]) -> str | None:
        for kept in keep:
            if any(number in self._places for number in kept.numbers):
                return f"cached blocks from {kept.first_number} on are to be cached twice"
        numbers = [number for kept in keep for number in kept.numbers]
        if len(set(numbers)) < len(numbers):
            return "two cached blocks are to have one number"
        return None

    def _take_objection(self, take: TakeBlocks) -> str | None:
        if (objection := self.answers.objection(take.fetch_id)) is not None:
            return objection
        blocks = sum(blocks for _, blocks in take.runs)
        if blocks > self.kv.blocks_free:
            return f"{blocks} blocks are to be taken over, {self.kv.blocks_free} are free"
        numbers = list(take.numbers)
        if len(set(numbers)) < blocks or any(number in self._places for number in numbers):
            return "blocks are to be taken over under numbers that others have"
        return None

    def _retain_objection(self, change: RetainBlocks) -> str | None:
        offered, blocks = self._offered, sum(blocks for _, blocks in change.runs)
        if offered is None or self._places:
            return "what stays cached from the epoch before is said twice, too late or for nothing"
        if blocks > (self.kv.blocks_total if self._is_fresh else self.kv.blocks_free):
            return f"{blocks} cached blocks are to stay, for which there is no room"
        if not self._is_fresh and not offered.issuperset(change.numbers):
            return "cached blocks are to stay that are not here"
        return self._stay_objection(change)

    def _stay_objection(self, change: RetainBlocks) -> str | None:
        """Why blocks cannot stay below the device's memory."""
        for tier, runs in ((HOST, change.away.host), (FILE, change.away.file)):
            if sum(blocks for _, blocks in runs) > self.tiers.capacity(tier):
                return "more cached blocks are to stay in a tier than there is room for"
            here = self._offered_away.place_of
            if any(here(number) != tier for number in numbers_of(runs)):
                return "cached blocks are to stay below the device's memory that are not there"
        return None

    def _going_objection(self, change: DropBlocks | LowerBlocks | FetchBlocks) -> str | None:
        if sum(blocks for _, blocks in change.runs) > len(self._places):
            return "more blocks are to be dropped or moved than are cached"
        numbers = list(change.numbers)
        if len(set(numbers)) < len(numbers):
            return "a cached block is named twice"
        for number in numbers:
            if not self._may_go(number, is_dropped=isinstance(change, DropBlocks)):
                return f"cached block {number} is to go, and is not here or in use"
        match change:
            case LowerBlocks(tier):
                return self._lower_objection(numbers, tier)
            case FetchBlocks(fetch_id):
                return self._fetch_objection(numbers, fetch_id)
            case DropBlocks():
                return None

    def _may_go(self, number: int, *, is_dropped: bool) -> bool:
        """Whether nobody uses a block. What is dropped while it comes back is given up, though its
        reader still uses it."""
        users = int(is_dropped and self.answers.is_read(number))
        return number in self._places and self._users.get(number, 0) == users

    def _lower_objection(self, numbers: Collection[int], tier: int) -> str | None:
        if self._counts[tier] + len(numbers) > self.tiers.capacity(tier):
            return "more cached blocks are put away than there is room for"
        if any(tier <= self._places[number] <= FILE for number in numbers):
            return "cached blocks are put away that are away already"
        return None

    def _fetch_objection(self, numbers: Collection[int], fetch_id: int) -> str | None:
        if (objection := self.answers.objection(fetch_id)) is not None:
            return objection
        if len(numbers) > self.kv.blocks_free:
            return f"{len(numbers)} blocks are to come back, {self.kv.blocks_free} are free"
        if any(self._places[number] not in (HOST, FILE) for number in numbers):
            return "cached blocks are to come back that are not away"
        return None
