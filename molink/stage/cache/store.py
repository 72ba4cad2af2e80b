"""A stage's cached KV below its device's memory: host memory, then a file.

One thread writes and reads, in the order in which the stage's loop asks, so that nothing in it
needs a lock and the loop waits for nothing. Only the copy out of a KV block is taken in the loop,
because the next step may write there. What comes back is written straight into blocks that serve
nobody until the thread has said so, while steps of others go on.

What cannot be kept or read is lost, and nobody hears of it before it is fetched: the answer says
how many blocks before it are good, and the head has the rest computed again.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from molink.executor.packed_blocks import PackedBlocks
from molink.stage.cache.sealed_file import TAG_BYTES, SealedFile
from molink.stage_protocol.cache_room import CacheRoom
from molink_scheduler.batch import Fetched
from molink_scheduler.kv.tiers import FILE, HOST, TIER_BLOCKS_MAX, CacheTiers

__all__ = ["CacheStore"]

log = logging.getLogger(__name__)

JOBS_MAX = 1024
"""Moves of blocks that wait for the thread; the loop waits where it is this far behind."""

WAITING_BYTES_MAX = 256 * 2**20
"""Of copies that the thread has not taken over; what would be more is lost. Two seconds of a disk
that writes 128 MB a second."""

PROBED_BLOCKS = 8
"""Read once to measure a tier: a few milliseconds when the stage loads."""


@dataclass(frozen=True, slots=True)
class _Put:
    tier: int
    numbers: Sequence[int]
    packed_BW: torch.Tensor | None
    """None: they are in the tier above."""


@dataclass(frozen=True, slots=True)
class _Drop:
    numbers: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Fetch:
    fetch_id: int
    numbers: Sequence[int]
    places: Sequence[Sequence[int]]
    blocks: PackedBlocks


@dataclass(frozen=True, slots=True)
class _Clear:
    done: threading.Event
    block_bytes: int
    """Of blocks from then on."""


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
    """Called in the thread when blocks are back."""
    tiers: CacheTiers = field(init=False)
    _host: dict[int, torch.Tensor] = field(init=False, default_factory=dict)
    _file: SealedFile | None = field(init=False, default=None)
    _jobs: "queue.Queue[_Job]" = field(init=False)
    _waiting_bytes: int = field(init=False, default=0)
    """Of copies; two threads change it, and need not agree to the byte."""
    _has_warned: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.tiers = self._room_for(self.block_bytes)
        self._jobs = queue.Queue(maxsize=JOBS_MAX)
        if self.tiers.file_blocks:
            self._open_file()

    def start(self, blocks: PackedBlocks) -> None:
        """Measure how soon blocks come back, and begin to take jobs."""
        room = self.tiers
        host_s = self._probe(blocks, HOST) if room.host_blocks else 0.0
        file_s = self._probe(blocks, FILE) if room.file_blocks else 0.0
        self.tiers = CacheTiers(room.host_blocks, room.file_blocks, host_s, file_s)
        threading.Thread(target=self._run, name="cache", daemon=True).start()

    def settle(self) -> None:
        """Have what is in the file on the disk and, where the system allows it, nowhere else: what
        is read next shows how quick the disk is."""
        if self._file is not None:
            self._file.settle()

    # -- in the loop ----------------------------------------------------------------------------

    def put(self, tier: int, numbers: Sequence[int], packed_BW: torch.Tensor | None) -> None:
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

    def fetch(
        self,
        fetch_id: int,
        numbers: Sequence[int],
        places: Sequence[Sequence[int]],
        blocks: PackedBlocks,
    ) -> None:
        """Bring blocks back to these places; `fetched` is called when that is done."""
        self._jobs.put(_Fetch(fetch_id, numbers, places, blocks))

    def clear(self, block_bytes: int) -> None:
        """Keep nothing, and blocks of this size from then on. Returns when nothing is written or
        read any more."""
        done = threading.Event()
        self._jobs.put(_Clear(done, block_bytes))
        done.wait()

    def shed(self) -> None:
        """Lose what is in host memory."""
        self._jobs.put(_Shed())

    # -- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                self._do(job)
            except Exception as error:  # Whoever waits for blocks must get an answer.
                self._warn(f"something could not be done: {error!r:.200}")
                if isinstance(job, _Fetch):
                    self.fetched(Fetched(job.fetch_id, 0))

    def _do(self, job: _Job) -> None:
        match job:
            case _Put():
                self._keep(job)
            case _Drop(numbers):
                self._forget(numbers)
            case _Fetch():
                self.fetched(Fetched(job.fetch_id, self._bring_back(job)))
            case _Clear(done, block_bytes):
                self._clear(block_bytes)
                done.set()
            case _Shed():
                self._host.clear()

    def _keep(self, job: _Put) -> None:
        for place, number in enumerate(job.numbers):
            block_W = self._host.pop(number, None)
            if job.packed_BW is not None:
                block_W = job.packed_BW[place]
            if block_W is None:
                continue  # It was lost on its way.
            if job.tier == FILE:
                self._write(number, block_W)
            elif len(self._host) < self.tiers.host_blocks:
                self._host[number] = block_W.clone()
        if job.packed_BW is not None:
            self._waiting_bytes -= job.packed_BW.nbytes

    def _write(self, number: int, block_W: torch.Tensor) -> None:
        if self._file is None:
            return
        try:
            self._file.write(number, block_W.numpy().tobytes())
        except OSError as error:
            self._warn(f"the file grows no more: {error}")

    def _bring_back(self, job: _Fetch) -> int:
        """How many blocks from the first are back; the store keeps none of them any more."""
        found: list[torch.Tensor] = []
        for number in job.numbers:
            block_W = self._host.get(number)
            if block_W is None and self._file is not None:
                block_W = self._read(self._file, number)
            if block_W is None:
                log.warning("Cached KV is not here, or was altered: it is computed again.")
                break
            found.append(block_W)
        if found:
            job.blocks.put([places[: len(found)] for places in job.places], torch.stack(found))
        self._forget(job.numbers)
        return len(found)

    def _read(self, file: SealedFile, number: int) -> torch.Tensor | None:
        block = file.read(number)
        if block is None or len(block) != self.block_bytes:
            return None
        return torch.frombuffer(bytearray(block), dtype=torch.uint8)

    def _forget(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._host.pop(number, None)
            if self._file is not None:
                self._file.drop(number)

    def _clear(self, block_bytes: int) -> None:
        self._host.clear()
        room = self._room_for(block_bytes)
        self.block_bytes = block_bytes
        self.tiers = replace(self.tiers, host_blocks=room.host_blocks)
        if self._file is not None:
            self._file.clear(room.file_blocks, block_bytes)

    # -- the beginning --------------------------------------------------------------------------

    def _room_for(self, block_bytes: int) -> CacheTiers:
        host = self.room.ram_bytes // block_bytes
        file = self.room.disk_bytes // (block_bytes + TAG_BYTES)
        return CacheTiers(min(host, TIER_BLOCKS_MAX), min(file, TIER_BLOCKS_MAX))

    def _open_file(self) -> None:
        try:
            self._file = SealedFile(
                Path(self.room.folder), self.tiers.file_blocks, self.block_bytes
            )
        except OSError as error:
            self.tiers = CacheTiers(self.tiers.host_blocks)
            self._warn(f"there is no file: {error}")

    def _probe(self, blocks: PackedBlocks, tier: int) -> float:
        """Seconds to bring one block back from a tier; the first round warms up. Nobody holds a
        block yet."""
        count = min([PROBED_BLOCKS, self.tiers.capacity(tier), *blocks.counts])
        numbers, places = range(count), [range(count)] * len(blocks.pools)
        elapsed_s = 0.0
        for _ in range(2):
            self._keep(_Put(tier, numbers, blocks.take(places)))
            if tier == FILE:
                self.settle()
            began = time.perf_counter()
            self._bring_back(_Fetch(0, numbers, places, blocks))
            elapsed_s = time.perf_counter() - began
        self._waiting_bytes = 0
        return elapsed_s / count

    def _warn(self, what: str) -> None:
        """Once."""
        if not self._has_warned:
            log.warning("Of the KV cache beside the device's memory: %s.", what)
        self._has_warned = True
