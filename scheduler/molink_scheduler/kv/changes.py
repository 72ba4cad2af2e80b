"""Changes of what all stages of a ring cache: keep, drop, lower, fetch, retain; and of what a cut
request goes on with: fold.

The head decides, and names cached blocks by numbers that it has given them; each stage knows where
its block of a number is. A change travels as a release does: ahead of what is planned after it,
behind what it stands on.

Values.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, pairwise

from molink_scheduler.kv.tiers import CACHE_RUNS_MAX, DEVICE, FILE, HOST
from molink_scheduler.number_runs import named_runs, number_runs

Runs = tuple[tuple[int, int], ...]
"""Runs (first number, blocks) of cached blocks."""

BLOCKS_MAX = 2**53
"""Bound of a block's number: what JSON carries exactly."""


def numbers_of(runs: Runs) -> Iterable[int]:
    """Numbers of the blocks in some runs."""
    return chain.from_iterable(range(first, first + blocks) for first, blocks in runs)


def cached_runs(numbers: Iterable[int]) -> Runs:
    """Numbers of cached blocks as runs (first number, blocks), the lowest first; of more than one
    message names the others are left out."""
    return named_runs(number_runs(sorted(numbers))[:CACHE_RUNS_MAX])


def check_runs(runs: Runs) -> None:
    """Raise ValueError unless these are runs (first number, blocks)."""
    if len(runs) > CACHE_RUNS_MAX or any(first < 0 or blocks < 1 for first, blocks in runs):
        raise ValueError(f"cached blocks are named in at most {CACHE_RUNS_MAX} runs of one or more")


def check_rising(runs: Runs) -> None:
    """Raise ValueError unless these are runs in rising order."""
    check_runs(runs)
    if any(sum(one) > following[0] for one, following in pairwise(runs)):
        raise ValueError("what stays from the epoch before is named in rising order")


def _is_in(number: int, runs: Runs) -> bool:
    """Whether some runs in rising order have a block."""
    place = bisect_right(runs, (number, BLOCKS_MAX)) - 1
    return place >= 0 and number < sum(runs[place])


@dataclass(frozen=True, slots=True)
class KeptBlocks:
    """Blocks of one request that are cached from now on."""

    request_id: int
    first_block: int
    """Index of the first of these blocks among the request's blocks."""
    first_number: int
    """Number that the first block is known by; the others follow."""
    blocks: int

    @property
    def numbers(self) -> range:
        """Numbers that the blocks are known by."""
        return range(self.first_number, self.first_number + self.blocks)

    def __post_init__(self) -> None:
        check_runs(((self.first_block, self.blocks), (self.first_number, self.blocks)))


@dataclass(frozen=True, slots=True)
class KeepBlocks:
    """Cache blocks that requests have computed."""

    kept: tuple[KeptBlocks, ...]

    def __post_init__(self) -> None:
        _check_count(self.kept)


class NamedBlocks:
    """Blocks that a change names by runs."""

    __slots__ = ()
    runs: Runs

    @property
    def numbers(self) -> Iterable[int]:
        """Numbers of the blocks, in the order of the runs."""
        return numbers_of(self.runs)

    def __post_init__(self) -> None:
        check_runs(self.runs)
        _check_count(self.runs)


@dataclass(frozen=True, slots=True)
class DropBlocks(NamedBlocks):
    """Cache these blocks no more, wherever they are."""

    runs: Runs


@dataclass(frozen=True, slots=True)
class LowerBlocks(NamedBlocks):
    """Move these blocks to a lower tier, from the device's memory or from a tier between."""

    tier: int
    runs: Runs

    def __post_init__(self) -> None:
        if self.tier not in (HOST, FILE):
            raise ValueError(f"cached blocks go to tier {HOST} or {FILE}, not to {self.tier}")
        NamedBlocks.__post_init__(self)


@dataclass(frozen=True, slots=True)
class FetchBlocks(NamedBlocks):
    """Bring these blocks, the first of a chain first, back into the device's memory; `Fetched` says
    when they are sure."""

    fetch_id: int
    runs: Runs


@dataclass(frozen=True, slots=True)
class TakeBlocks(FetchBlocks):
    """Take blocks that another ring has computed and handed over into the device's memory;
    `Fetched` says how many of them are sure. They were cached nowhere in this ring before.

    From the coordinator to the head it says that they are there to be taken: `fetch_id` is the
    request whose prompt they are of, and `runs` name one run of no number yet, from 0 on."""

    source: tuple[int, int]
    """Epoch of the ring that has computed the prompt, and its number of the request there."""
    first_block: int = 0
    """Index of the first of these blocks in the prompt."""

    def __post_init__(self) -> None:
        NamedBlocks.__post_init__(self)
        if min(*self.source, self.first_block) < 0:
            raise ValueError("blocks that are handed over are of a prompt of some ring")


@dataclass(frozen=True, slots=True)
class AwayBlocks:
    """Cached blocks below the devices' memory, as runs in rising order, and by whose numbers they
    are known."""

    host: Runs = ()
    """Runs in host memory."""
    file: Runs = ()
    directory: int = 0
    """Epoch in which the ring's directory began that has given the numbers; 0: nobody knows."""

    def __contains__(self, number: int) -> bool:
        return _is_in(number, self.host) or _is_in(number, self.file)

    def place_of(self, number: int) -> int | None:
        """Tier of a block; None: it is in none of these."""
        return HOST if _is_in(number, self.host) else FILE if _is_in(number, self.file) else None


NOWHERE = AwayBlocks()


@dataclass(frozen=True, slots=True)
class RetainBlocks(NamedBlocks):
    """Keep these blocks alone of what was cached in the ring's epoch before; of none, drop all."""

    runs: Runs = ()
    """Runs in the devices' memory, in rising order."""
    away: AwayBlocks = NOWHERE
    """Blocks that stay below it."""

    def __contains__(self, number: int) -> bool:
        return _is_in(number, self.runs) or number in self.away

    @classmethod
    def of(cls, runs: Runs, away: AwayBlocks) -> "RetainBlocks":
        """The first of these runs, as many as one message names."""
        near = runs[:CACHE_RUNS_MAX]
        host = away.host[: CACHE_RUNS_MAX - len(near)]
        file = away.file[: CACHE_RUNS_MAX - len(near) - len(host)]
        return cls(near, AwayBlocks(host, file, away.directory))

    @property
    def emptied(self) -> "RetainBlocks":
        """The same of the same directory, by which nothing stays."""
        return RetainBlocks(away=AwayBlocks(directory=self.away.directory))

    def names(self, blocks: int) -> bool:
        """Whether it keeps so many blocks."""
        kept = chain(self.runs, self.away.host, self.away.file)
        return sum(count for _, count in kept) == blocks

    def keeps(self, tier: int, number: int) -> bool:
        """Whether a block stays that is in this tier."""
        is_near = _is_in(number, self.runs)
        return is_near if tier == DEVICE else not is_near and self.away.place_of(number) == tier

    def __post_init__(self) -> None:
        for runs in (self.runs, self.away.host, self.away.file):
            check_rising(runs)
        check_runs(self.runs + self.away.host + self.away.file)


@dataclass(frozen=True, slots=True)
class FoldBlocks:
    """Keep the first blocks of a request whose prompt was cut in fewer ones.

    Its cut layers do not look there any more. So what the others keep of all these blocks goes into
    the whole memory of some, and the rest is given back, or is the cache's alone.
    """

    request_id: int
    blocks: int
    """First blocks of the request, all that its cut leaves whole."""
    into: int
    """Blocks in which the request has them from now on."""

    def __post_init__(self) -> None:
        if not 1 <= self.into < self.blocks <= BLOCKS_MAX:
            raise ValueError(f"{self.blocks} blocks are not to be folded into {self.into}")


OutwardChange = KeepBlocks | DropBlocks | LowerBlocks | RetainBlocks | FoldBlocks
"""Change by which no block comes back into the device's memory."""

CacheChange = OutwardChange | FetchBlocks
"""What every stage is told of what it caches, or folds, from now on."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Tells how many blocks of a fetch, from its first, are back on every stage so far. It goes
    once round the ring, behind the change that began the fetch; a stage passes it on when its own
    blocks are there."""

    fetch_id: int
    blocks: int

    def __post_init__(self) -> None:
        if self.fetch_id < 0 or self.blocks < 0:
            raise ValueError("a fetch of cached blocks has a number, and brings none or more")


def _check_count(named: tuple[object, ...]) -> None:
    if not 0 < len(named) <= CACHE_RUNS_MAX:
        raise ValueError(f"a change of the cache names 1 to {CACHE_RUNS_MAX} runs of blocks")
