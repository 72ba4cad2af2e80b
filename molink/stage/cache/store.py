"""A stage's cached KV below its device's memory: host memory, then a file.

One thread writes and reads, in the order in which the stage's loop asks, so that nothing in it
needs a lock and the loop waits for nothing. Only the copy out of a KV block is taken in the loop,
because the next step may write there. What comes back is answered for as soon as it is *sure*: in
host memory, from the file read and decrypted. Then it is copied in layer by layer, while steps go
on: those that read it wait for each layer (`arriving_blocks`).

What cannot be kept or read is lost, and nobody hears of it before it is fetched: the answer says
how many blocks before it are good, and the head has the rest computed again.
"""

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from molink.engine_protocol.engine import BlocksIn, CachedBlocks
from molink.engine_protocol.values import BlockBytes
from molink.hardware.host import return_freed_memory
from molink.stage.cache.sealed_file import TAG_BYTES, SealedFile
from molink.stage_protocol.cache_room import CacheRoom
from molink_scheduler.kv.changes import DropBlocks, Fetched, LowerBlocks
from molink_scheduler.kv.tiers import FILE, HOST, TIER_BLOCKS_MAX, CacheTiers

log = logging.getLogger(__name__)

JOBS_MAX = 1024
"""Moves of blocks that wait for the thread; the loop waits where it is this far behind."""

WAITING_BYTES_MAX = 256 * 2**20
"""Bytes of copies that the thread has not taken over; what would be more is lost. Two seconds of a
disk that writes 128 MB a second."""

PROBED_BLOCKS = 8
"""Blocks read once to measure a tier: a few milliseconds when the stage loads."""


@dataclass(frozen=True, slots=True)
class _Put:
    tier: int
    numbers: Sequence[int]
    packed_BW: BlockBytes | None
    """Packed blocks; None: they are in the tier above."""


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


@dataclass(frozen=True, slots=True)
class _Shed:
    """The host needs its memory."""


_Job = _Put | _Drop | _Fetch | _Clear | _Shed


@dataclass(slots=True)
class CacheStore:
    """Store of one stage's cached blocks outside its device, with a thread of its own."""

    room: CacheRoom
    block_bytes: int
    fetched: Callable[[Fetched], None]
    """Called in the thread when blocks are sure."""
    tiers: CacheTiers = field(init=False)
    _host: dict[int, BlockBytes] = field(init=False, default_factory=dict)
    _host_bytes_max: int = field(init=False, default=sys.maxsize)
    """Host memory that the PC can spare now."""
    _file: SealedFile | None = field(init=False, default=None)
    _jobs: "queue.Queue[_Job]" = field(init=False)
    _waiting_bytes: int = field(init=False, default=0)
    """Bytes of copies that wait; two threads change it, and need not agree to the byte."""
    _warned_of: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.tiers = self._room_for(self.block_bytes)
        self._jobs = queue.Queue(maxsize=JOBS_MAX)
        if self.tiers.file_blocks:
            self._open_file()

    def start(self, device: CachedBlocks, blocks_max: int) -> None:
        """Measure how soon blocks come back to a device that has so many, and begin to take
        jobs."""
        for _ in range(2):  # The first round warms up.
            read_s, copy_s = self._probe(device, blocks_max)
        self.tiers = replace(self.tiers, read_block_s=read_s, copy_block_s=copy_s)
        threading.Thread(target=self._run, name="cache", daemon=True).start()

    def tiers_of(self, block_bytes: int) -> CacheTiers:
        """Room and rates for blocks of another size."""
        room, larger = self._room_for(block_bytes), block_bytes / self.block_bytes
        return CacheTiers(
            room.host_blocks,
            room.file_blocks if self._file is not None else 0,
            self.tiers.copy_block_s * larger,
            self.tiers.read_block_s * larger,
        )

    def settle(self) -> None:
        """Have the file's content on the disk and, where the system allows it, nowhere else: the
        next reads then show how quick the disk is."""
        if self._file is not None:
            self._file.settle()

    # -- in the loop ----------------------------------------------------------------------------

    def put(self, tier: int, numbers: Sequence[int], packed_BW: BlockBytes | None) -> None:
        """Keep blocks in a tier; `packed_BW` are their bytes, None where they are in the one
        above."""
        if packed_BW is not None:
            if self._waiting_bytes + packed_BW.nbytes > WAITING_BYTES_MAX:
                self._warn("the disk is too slow for what leaves the device's memory")
                return
            self._waiting_bytes += packed_BW.nbytes
        self._jobs.put(_Put(tier, numbers, packed_BW))

    def drop(self, numbers: Sequence[int]) -> None:
        """Keep these blocks no more; unknown ones are fine."""
        self._jobs.put(_Drop(numbers))

    def fetch(self, fetch_id: int, arriving: BlocksIn) -> None:
        """Bring blocks back; `fetched` is called when they are sure."""
        self._jobs.put(_Fetch(fetch_id, arriving))

    def clear(self, block_bytes: int) -> None:
        """Keep nothing, and blocks of this size from then on. Returns when nothing is written or
        read any more."""
        done = threading.Event()
        self._jobs.put(_Clear(done, block_bytes))
        done.wait()

    def shed(self) -> None:
        """Lose the blocks in host memory."""
        self._jobs.put(_Shed())

    # -- in any thread --------------------------------------------------------------------------

    @property
    def host_bytes(self) -> int:
        """Bytes of the blocks in host memory."""
        return len(self._host) * self.block_bytes

    def host_room(self, size_bytes: int) -> None:
        """Hold no more than this in host memory from now on. What is beyond it, the longest here
        first, is lost at once, whatever the thread waits for."""
        self._host_bytes_max = size_bytes
        beyond = len(self._host) - size_bytes // self.block_bytes
        for number in list(self._host)[: max(0, beyond)]:
            self._host.pop(number, None)
        if beyond > 0:
            return_freed_memory()

    # -- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                self._do(job)
            except Exception as error:  # Others are still to be done, and somebody waits for them.
                self._warn("something could not be done", error)

    def _do(self, job: _Job) -> None:
        match job:
            case _Put():
                self._keep(job)
            case _Drop(numbers):
                self._forget(numbers)
            case _Fetch():
                self._bring_back(job)
            case _Clear(done, block_bytes):
                try:
                    self._clear(block_bytes)
                finally:
                    done.set()  # The stage's loop waits for it, whatever the disk says.
            case _Shed():
                self._host.clear()

    def _keep(self, job: _Put) -> None:
        try:
            self._keep_each(job)
        finally:
            if job.packed_BW is not None:
                self._waiting_bytes -= job.packed_BW.nbytes

    def _keep_each(self, job: _Put) -> None:
        for place, number in enumerate(job.numbers):
            block_W = self._host.pop(number, None)
            if job.packed_BW is not None:
                block_W = job.packed_BW[place]
            if block_W is None:
                continue  # It was lost on its way.
            if job.tier == FILE:
                self._write(number, block_W)
            elif len(self._host) < min(
                self.tiers.host_blocks, self._host_bytes_max // self.block_bytes
            ):
                self._host[number] = block_W.copy()

    def _write(self, number: int, block_W: BlockBytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(number, block_W.tobytes())
        except OSError as error:
            what = f"the file in {self.room.folder} grows no more"
            self._warn(f"{what} (make room before the next start, or lend less disk)", error)

    def _bring_back(self, job: _Fetch) -> None:
        """Answer, and copy in what was found, which the store keeps no more. From the answer on
        it is promised."""
        found = self._sure(job.arriving.numbers)
        is_wanted = job.arriving.only(len(found))
        self.fetched(Fetched(job.fetch_id, len(found)))
        try:
            job.arriving.fill(found if is_wanted else [])
        except Exception as error:  # Whatever it was: the stage's loop raises it.
            job.arriving.end(error)

    def _sure(self, numbers: Sequence[int]) -> list[BlockBytes]:
        """Blocks from the first on, as many as are good, in host memory."""
        found: list[BlockBytes] = []
        for number in numbers:
            block_W = self._found(number)
            if block_W is None:
                break
            found.append(block_W)
        self._forget(numbers)
        return found

    def _found(self, number: int) -> BlockBytes | None:
        block_W = self._host.get(number)
        if block_W is not None or self._file is None or number not in self._file:
            return block_W
        try:
            block = self._file.read(number)
            if block is None or len(block) != self.block_bytes:
                self._warn("what is in the file was altered or cut off, and is computed again")
                return None
            return np.frombuffer(bytearray(block), np.uint8)
        except Exception as error:  # Whatever it was, somebody waits for the answer.
            self._warn("a block could not be read", error)
            return None

    def _forget(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._host.pop(number, None)
            if self._file is not None:
                self._file.drop(number)

    def _clear(self, block_bytes: int) -> None:
        self._host.clear()
        self.tiers, self.block_bytes = self.tiers_of(block_bytes), block_bytes
        if self._file is not None:
            self._file.clear(self.tiers.file_blocks, block_bytes)

    # -- the beginning --------------------------------------------------------------------------

    def _room_for(self, block_bytes: int) -> CacheTiers:
        host = (self.room.ram_bytes or 0) // block_bytes
        file = self.room.disk_bytes // (block_bytes + TAG_BYTES)
        return CacheTiers(min(host, TIER_BLOCKS_MAX), min(file, TIER_BLOCKS_MAX))

    def _open_file(self) -> None:
        try:
            self._file = SealedFile(
                Path(self.room.folder), self.tiers.file_blocks, self.block_bytes
            )
        except OSError as error:
            self.tiers = CacheTiers(self.tiers.host_blocks)
            self._warn(
                f"there is no file in {self.room.folder}, so none of the disk is used", error
            )

    def _probe(self, device: CachedBlocks, blocks_max: int) -> tuple[float, float]:
        """Seconds to read a block from the file, if there is one, and to copy one into the device.
        Nobody holds a block yet."""
        tier = FILE if self.tiers.file_blocks else HOST
        count = min(PROBED_BLOCKS, self.tiers.capacity(tier), blocks_max)
        self._keep(_Put(tier, range(count), _sample(device, count)))
        self._waiting_bytes = 0
        self.settle()
        began = time.perf_counter()
        found = self._sure(range(count))
        read_at = time.perf_counter()
        if found:
            device.blocks_in(range(len(found))).fill(found)
        copied_at = time.perf_counter()
        if found:
            device.blocks_out(DropBlocks(((0, len(found)),)), copied=False)
        read_s = read_at - began if tier == FILE else 0.0
        return read_s / max(1, count), (copied_at - read_at) / max(1, count)

    def _warn(self, what: str, error: Exception | None = None) -> None:
        """Once of each trouble: a slow disk is no reason not to hear that it is full."""
        if what not in self._warned_of:
            told = (error.strerror or error) if isinstance(error, OSError) else repr(error)
            why = "" if error is None else f": {told!s:.200}"
            log.warning("Of the KV cache beside the device's memory: %s%s.", what, why)
        self._warned_of.add(what)


def _sample(device: CachedBlocks, count: int) -> BlockBytes | None:
    """Copies of so many of a device's blocks, whatever is in them; None of none."""
    if not count:
        return None
    device.blocks_in(range(count)).fill(())
    out = device.blocks_out(LowerBlocks(HOST, ((0, count),)), copied=True)
    return None if out is None else out.packed_BW
