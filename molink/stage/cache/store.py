"""A stage's cached KV below its device's memory: host memory, then a file.

One thread copies, writes and reads, in the order in which the stage's loop asks, so that nothing in
it needs a lock and the loop waits for nothing. What goes is copied out in pieces while steps go on;
those that write where a block still stands make a copy of that one themselves (`leaving_blocks`).
What comes back is answered for as soon as it is *sure*: in host memory, from the file read and
decrypted. Then it is copied in layer by layer, while steps go on: those that read it wait for each
layer (`arriving_blocks`).

What cannot be kept or read is lost, and nobody hears of it before it is fetched: the answer says
how many blocks before it are good, and the head has the rest computed again.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from molink.engine_protocol.engine import BlocksIn, BlocksOut, CachedBlocks
from molink.stage.cache.sealed_file import TAG_BYTES
from molink.stage.cache.tier_blocks import TierBlocks
from molink.stage_protocol.cache_room import CacheRoom
from molink_scheduler.kv.changes import (
    AwayBlocks,
    DropBlocks,
    Fetched,
    LowerBlocks,
    RetainBlocks,
)
from molink_scheduler.kv.tiers import FILE, HOST, TIER_BLOCKS_MAX, CacheTiers

JOBS_MAX = 1024
"""Moves of blocks that wait for the thread; the loop waits where it is this far behind."""

PROBED_BLOCKS = 8
"""Blocks read once to measure a tier: a few milliseconds when the stage loads."""


@dataclass(frozen=True, slots=True)
class _Put:
    tier: int
    numbers: Sequence[int]
    leaving: BlocksOut | None
    """Blocks that leave the device; None: they are in the tier above."""


@dataclass(frozen=True, slots=True)
class _Drop:
    numbers: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Fetch:
    fetch_id: int
    arriving: BlocksIn


@dataclass(frozen=True, slots=True)
class _Clear:
    done: threading.Event
    block_bytes: int
    """Bytes of a block from then on."""
    directory: int


@dataclass(frozen=True, slots=True)
class _Halt:
    """The ring's epoch ends."""

    done: threading.Event


@dataclass(frozen=True, slots=True)
class _Retain:
    change: RetainBlocks


@dataclass(frozen=True, slots=True)
class _Shed:
    """The host needs its memory."""


_Job = _Put | _Drop | _Fetch | _Clear | _Halt | _Retain | _Shed


@dataclass(slots=True)
class CacheStore:
    """Store of one stage's cached blocks outside its device, with a thread of its own."""

    room: CacheRoom
    block_bytes: int
    fetched: Callable[[Fetched], None]
    """Called in the thread when blocks are sure."""
    _blocks: TierBlocks = field(init=False)
    _jobs: "queue.Queue[_Job]" = field(init=False)
    _is_clearing: bool = field(init=False, default=False)
    """Whether what waits for the thread is to be kept no more."""

    def __post_init__(self) -> None:
        tiers = self._room_for(self.block_bytes)
        self._blocks = TierBlocks(self.room.folder, self.block_bytes, tiers, self.room.kept)
        self._jobs = queue.Queue(maxsize=JOBS_MAX)

    @property
    def tiers(self) -> CacheTiers:
        """Room of each tier, as measured."""
        return self._blocks.tiers

    def start(self, device: CachedBlocks, blocks_max: int) -> None:
        """Measure how soon blocks come back to a device that has so many, and begin to take
        jobs."""
        for _ in range(2):  # The first round warms up.
            read_s, copy_s = self._probe(device, blocks_max)
        measured = replace(self.tiers, read_block_s=read_s, copy_block_s=copy_s)
        self._blocks.tiers = measured
        threading.Thread(target=self._run, name="cache", daemon=True).start()

    def tiers_of(self, block_bytes: int) -> CacheTiers:
        """Room and rates for blocks of another size."""
        room, larger = self._room_for(block_bytes), block_bytes / self.block_bytes
        return CacheTiers(
            room.host_blocks,
            room.file_blocks if self._blocks.file is not None else 0,
            self.tiers.copy_block_s * larger,
            self.tiers.read_block_s * larger,
        )

    def settle(self) -> None:
        """Have the file's content on the disk and, where the system allows it, nowhere else."""
        self._blocks.settle()

    # -- in the loop ----------------------------------------------------------------------------

    def put(self, tier: int, numbers: Sequence[int], leaving: BlocksOut | None) -> None:
        """Keep blocks in a tier, those that are `leaving` the device; None: they are in the tier
        above."""
        self._jobs.put(_Put(tier, numbers, leaving))

    def drop(self, numbers: Sequence[int]) -> None:
        """Keep these blocks no more; unknown ones are fine."""
        self._jobs.put(_Drop(numbers))

    def fetch(self, fetch_id: int, arriving: BlocksIn) -> None:
        """Bring blocks back; `fetched` is called when they are sure."""
        self._jobs.put(_Fetch(fetch_id, arriving))

    def clear(self, block_bytes: int, directory: int = 0) -> None:
        """Keep nothing, and from then on blocks of this size that the directory numbers. Returns
        when nothing is written or read any more."""
        done, self._is_clearing = threading.Event(), True
        self._jobs.put(_Clear(done, block_bytes, directory))
        done.wait()

    def holds(self) -> AwayBlocks:
        """Blocks that are here when nothing is written or read any more."""
        done, self._is_clearing = threading.Event(), True
        self._jobs.put(_Halt(done))
        done.wait()
        return self._blocks.held()

    def retain(self, change: RetainBlocks) -> None:
        """Keep no others than the head says, under its numbers."""
        self._jobs.put(_Retain(change))

    def shed(self) -> None:
        """Lose the blocks in host memory."""
        self._jobs.put(_Shed())

    # -- in any thread --------------------------------------------------------------------------

    @property
    def host_bytes(self) -> int:
        """Bytes that are taken of host memory."""
        return self._blocks.host.taken_blocks * self._blocks.block_bytes

    def host_room(self, size_bytes: int) -> None:
        """Take no more than this of host memory from now on. What is beyond it is given back at
        once, whatever the thread waits for."""
        self._blocks.spare(size_bytes)

    # -- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                self._do(job)
            except Exception as error:  # Others are still to be done, and somebody waits for them.
                self._blocks.warn("something could not be done", error)

    def _do(self, job: _Job) -> None:
        match job:
            case _Put():
                self._keep(job)
            case _Drop(numbers):
                self._blocks.forget(numbers)
            case _Fetch():
                self._bring_back(job)
            case _Clear(done):
                try:
                    self._clear(job)
                finally:
                    done.set()  # The stage's loop waits for it, whatever the disk says.
            case _Halt(done):
                self._is_clearing = False
                done.set()
            case _Retain(change):
                self._blocks.retain(change)
            case _Shed():
                self._blocks.empty_host()

    def _keep(self, job: _Put) -> None:
        if job.leaving is None:
            for number in job.numbers:
                self._blocks.lower(number)
            return
        try:
            self._blocks.copy_out(job.tier, job.leaving, lambda: not self._is_clearing)
        finally:
            job.leaving.give_up()

    def _bring_back(self, job: _Fetch) -> None:
        """Answer, and copy in what was found, which the store keeps no more. From the answer on
        it is promised."""
        numbers = job.arriving.numbers
        found = self._blocks.found(numbers)
        is_wanted = job.arriving.only(len(found))
        self.fetched(Fetched(job.fetch_id, len(found)))
        try:
            job.arriving.fill(found if is_wanted else [])
        except Exception as error:  # Whatever it was: the stage's loop raises it.
            job.arriving.end(error)
        finally:
            self._blocks.forget(numbers)

    def _clear(self, job: _Clear) -> None:
        tiers, self._is_clearing = self.tiers_of(job.block_bytes), False
        self.block_bytes = job.block_bytes
        self._blocks.clear(tiers, job.block_bytes, job.directory)

    # -- the beginning --------------------------------------------------------------------------

    def _room_for(self, block_bytes: int) -> CacheTiers:
        host = (self.room.ram_bytes or 0) // block_bytes
        file = self.room.disk_bytes // (block_bytes + TAG_BYTES)
        return CacheTiers(min(host, TIER_BLOCKS_MAX), min(file, TIER_BLOCKS_MAX))

    def _probe(self, device: CachedBlocks, blocks_max: int) -> tuple[float, float]:
        """Seconds to read a block from the file, if there is one, and to copy one into the device.
        The device holds no block yet; those that the process before has left are read, or lost."""
        tier = FILE if self.tiers.file_blocks else HOST
        count = min(PROBED_BLOCKS, self.tiers.capacity(tier), blocks_max)
        numbers = self._blocks.readable(count)
        is_sample = not numbers
        if is_sample:
            numbers = range(count)
            self._keep(_Put(tier, numbers, _sample(device, count)))
        self._blocks.settle()
        began = time.perf_counter()
        found = self._blocks.found(numbers)
        read_at = time.perf_counter()
        if found:
            device.blocks_in(range(len(found))).fill(found)
        copied_at = time.perf_counter()
        if found:
            device.blocks_out(DropBlocks(((0, len(found)),)))
        if is_sample:
            self._blocks.forget(numbers)
        read_s, count = read_at - began if tier == FILE else 0.0, max(1, len(numbers))
        return read_s / count, (copied_at - read_at) / count


def _sample(device: CachedBlocks, count: int) -> BlocksOut | None:
    """So many of a device's blocks, to be copied, whatever is in them; None of none."""
    if not count:
        return None
    device.blocks_in(range(count)).fill(())
    return device.blocks_out(LowerBlocks(HOST, ((0, count),)))
