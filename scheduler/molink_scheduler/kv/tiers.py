"""Tiers below a device's memory for cached KV blocks, and when it is worth fetching them.

Blocks that a device has no room for go to host memory, then to a file, each within what the owner
of the PC allows. All stages of a ring move the same blocks, so the ring has room for as many as its
smallest stage, and is as quick as its slowest. Ends of chains go down first: along a chain device
memory comes first, then host memory, then the file.

Mooncake (FAST'25, equations 1 and 2) fetches cached KV where the bytes of it, over the rate at
which they come, take less time than a GPU takes to compute them. In a ring the same tokens would
also be sent over every hop, and prompts move at the pace of the slowest stage or hop, whichever it
is; that pace is measured (`PromptPace`), so that no model of compute is needed.

Pure.
"""

import math
from dataclasses import dataclass, field

from molink_scheduler.kv.blocks import BLOCK_TOKENS

DEVICE, HOST, FILE = range(3)
"""Tiers of cached blocks, from the quickest to the slowest."""

TIER_BLOCKS_MAX = 2**32
"""Most blocks of a tier, more than any disk holds of any model: 4 KB a block make 16 TB."""

CACHE_RUNS_MAX = 1024
"""Runs of cached blocks that one message names: 20 KB. A prompt whose cached beginning lies in more
of them begins with as many, and what is dropped beyond follows in the next message."""

FETCHES_MAX = 4
"""Fetches under way: one thread reads them on each stage, and their blocks serve nobody yet."""

WEIGHT_OF_NEWEST = 0.2
"""Weight of the newest sample, as for links: a step change is 90 % absorbed after eleven."""


SLOWNESS_MAX = 4.0
"""Most slowness: one fetch behind a disk that stood still is not taken for the disk's pace."""

SLOWNESS_FORGOTTEN = 0.02
"""Share of what was learned that is forgotten with each request that ends: half of it after 34."""


@dataclass(frozen=True, slots=True)
class CacheTiers:
    """Room below a device's memory, of a stage or of a ring, and how quickly it is read.

    Raises ValueError for what no memory has.
    """

    host_blocks: int = 0
    file_blocks: int = 0
    copy_block_s: float = 0.0
    """Seconds to copy one block from host memory into the device."""
    read_block_s: float = 0.0
    """Seconds to read one block of the file into host memory, before that copy."""

    def __post_init__(self) -> None:
        counts, times = (self.host_blocks, self.file_blocks), (self.copy_block_s, self.read_block_s)
        if not all(0 <= count <= TIER_BLOCKS_MAX for count in counts):
            raise ValueError(f"a tier of the cache holds 0 to {TIER_BLOCKS_MAX} blocks: {counts}")
        if not all(0 <= time_s < math.inf for time_s in times):
            raise ValueError(f"a block of the cache is read in a finite time: {times}")

    @classmethod
    def of_ring(cls, stages: "list[CacheTiers]") -> "CacheTiers":
        """Tiers of a ring of such stages: the room of the smallest, the pace of the slowest."""
        return cls(
            min(one.host_blocks for one in stages),
            min(one.file_blocks for one in stages),
            max(one.copy_block_s for one in stages),
            max(one.read_block_s for one in stages),
        )

    @property
    def has_room(self) -> bool:
        """Whether there is any."""
        return self.host_blocks + self.file_blocks > 0

    def capacity(self, tier: int) -> int:
        """Blocks of a tier below the device's memory."""
        return self.host_blocks if tier == HOST else self.file_blocks

    def below(self, tier: int) -> int | None:
        """The next lower tier that has room at all; None: there is none."""
        return next((one for one in range(tier + 1, FILE + 1) if self.capacity(one)), None)


@dataclass(slots=True)
class PromptPace:
    """Measured pace of prompts through a ring, and the time that their first rows take round it."""

    row_s: float | None = field(init=False, default=None)
    """Seconds between two rows of a prompt that come out of the tail one after the other: what the
    slowest stage or hop takes for one. None: not measured yet."""
    trip_s: float | None = field(init=False, default=None)
    """Seconds from the departure of a prompt's rows, while none was under way, to their return."""
    _latest: dict[int, bool] = field(init=False, default_factory=dict)
    """Requests some of whose rows have come back, with others to come; whether those were under
    way."""

    def returned(
        self, request_id: int, rows: int, elapsed_s: float, *, under_way: bool, pending: bool
    ) -> None:
        """Rows of a prompt have come back, so long after those before, or after they left where
        none were under way. Others are `under_way` now, or `pending` on the head.

        Rows that were sent once those before were back tell a pace that has the trip in it: only
        the best of them counts. On a ring of one stage all are of that kind.
        """
        overlapped, row_s = self._latest.pop(request_id, None), elapsed_s / rows
        if overlapped is None:
            self.trip_s = _smoothed(self.trip_s, elapsed_s)
        elif overlapped:
            self.row_s = _smoothed(self.row_s, row_s)
        else:
            self.row_s = row_s if self.row_s is None else min(self.row_s, row_s)
        if under_way or pending:
            self._latest[request_id] = under_way

    def forget(self, request_id: int) -> None:
        """A request holds nothing any more."""
        self._latest.pop(request_id, None)


@dataclass(slots=True)
class FetchPace:
    """Pace of answers to fetches: how much longer they take than the rates at loading say, and how
    much of the file comes.

    Never less than once as long. What a slow disk or a busy thread added is forgotten with the
    requests that end, as is what was lost: a ring that fetches no more would learn nothing else.
    """

    slowness: float = field(init=False, default=1.0)
    file_share: float = field(init=False, default=1.0)
    """Share of the file's blocks asked for that came: a disk that is full took none."""

    def answered(self, expected_s: float, elapsed_s: float) -> None:
        """A fetch was expected to be answered after so long, and was after that."""
        if expected_s > 0:
            seen = min(SLOWNESS_MAX, max(1.0, elapsed_s / expected_s))
            self.slowness = _smoothed(self.slowness, seen)

    def came(self, blocks: int, asked: int) -> None:
        """Take into account how many of the file's blocks that were asked for came."""
        if asked:
            self.file_share = _smoothed(self.file_share, blocks / asked)

    def request_ended(self) -> None:
        """Take the end of a request into account, whether something was fetched for it or not."""
        self.slowness += SLOWNESS_FORGOTTEN * (1.0 - self.slowness)
        self.file_share += SLOWNESS_FORGOTTEN * (1.0 - self.file_share)


def answer_s(file_blocks: int, tiers: CacheTiers, trip_s: float) -> float:
    """Seconds until every stage has its blocks in host memory and has said so: the slowest reads
    those of the file, and the answer goes round the ring once."""
    return file_blocks * tiers.read_block_s + trip_s


def blocks_worth_fetching(
    host_blocks: int,
    file_blocks: int,
    tiers: CacheTiers,
    pace: PromptPace,
    answers: FetchPace,
) -> int:
    """Number of a chain's blocks, those in host memory before those in the file, that are brought
    back sooner than computed: those that save most, 0 where none do. Of the file's only those that
    come save anything. Nothing is fetched before the pace of prompts is known.

    A stage copies its blocks in while its answer goes round and the rows come after that: of both
    the longer counts. What the compute of these rows hides beyond that is not counted on: the pace
    is of the slowest stage or hop, which may be another one.
    """
    row_s, trip_s, slowness = pace.row_s, pace.trip_s, answers.slowness
    if row_s is None or trip_s is None:
        return 0

    def saved_s(file: int) -> float:
        coming = host_blocks + file * answers.file_share
        read_s = answer_s(file, tiers, 0.0) * slowness
        waited_s = max(trip_s * slowness, (host_blocks + file) * tiers.copy_block_s)
        return coming * BLOCK_TOKENS * row_s - read_s - waited_s

    from_host_s = saved_s(0) if host_blocks else 0.0
    from_both_s = saved_s(file_blocks)
    if max(from_host_s, from_both_s) <= 0:
        return 0
    return host_blocks if from_host_s >= from_both_s else host_blocks + file_blocks


def _smoothed(before: float | None, newest: float) -> float:
    return newest if before is None else before + WEIGHT_OF_NEWEST * (newest - before)
