"""Cached blocks of one stage in host memory and in a file.

What cannot be kept or read is lost, and the log hears of it once of each trouble: where, how much
there was, and what to do.
"""

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from molink.engine_protocol.engine import BlocksOut
from molink.engine_protocol.values import BlockBytes
from molink.stage.cache.host_blocks import HostBlocks
from molink.stage.cache.sealed_file import SealedFile
from molink.stage_protocol.cache_room import KeptFiles
from molink_scheduler.kv.changes import AwayBlocks, RetainBlocks, cached_runs
from molink_scheduler.kv.tiers import FILE, HOST, CacheTiers
from molink_scheduler.units import MB

log = logging.getLogger(__name__)

PIECE_BYTES = 32 * 2**20
"""Bytes that are copied out at once, or one block: enough for a card to be quick."""


@dataclass(slots=True)
class TierBlocks:
    """Blocks of one size below a device's memory; but for `spare`, for one thread at a time."""

    folder: str
    """Folder of the file."""
    block_bytes: int
    tiers: CacheTiers
    """Room of each tier."""
    kept: KeptFiles | None = None
    """Files that a node keeps for this process and the next; None: the file ends with it."""
    spare_bytes: int = field(init=False, default=sys.maxsize)
    """Host memory that the PC can spare now."""
    host: HostBlocks = field(init=False)
    file: SealedFile | None = field(init=False, default=None)
    directory: int = field(init=False, default=0)
    """Directory that has given the blocks' numbers, by the epoch in which it began."""
    _warned_of: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.empty_host()
        if self.tiers.file_blocks:
            self._open_file()
        if self.file is not None:
            self.directory = self.file.directory

    def empty_host(self) -> None:
        """Have no block in host memory, and let the system have that."""
        self.host = HostBlocks(self.block_bytes, self.tiers.host_blocks)
        self.spare(self.spare_bytes)

    def spare(self, size_bytes: int) -> None:
        """Take no more than this of host memory from now on; from any thread."""
        self.spare_bytes = size_bytes
        self.host.spare(size_bytes // self.block_bytes)

    def _open_file(self) -> None:
        place = Path(self.folder), self.tiers.file_blocks, self.block_bytes
        try:
            self.file = self._kept_file(*place) or SealedFile(*place)
        except OSError as error:
            self.tiers = CacheTiers(self.tiers.host_blocks)
            self.warn(f"there is no file in {self.folder}, so none of the disk is used", error)

    def _kept_file(self, folder: Path, slots_max: int, block_bytes: int) -> SealedFile | None:
        """The file that outlives the stage; None: there is none, or it cannot be opened."""
        if self.kept is None:
            return None
        try:
            file = SealedFile(folder, slots_max, block_bytes, self.kept)
        except OSError as error:
            self.warn("its node's files cannot be opened, so what it holds ends with it", error)
            return None
        if file.unread is not None:
            self.warn("what a stage before has left in the file is not used", file.unread)
        return file

    def settle(self) -> None:
        """Have the file's content on the disk and, where the system allows it, nowhere else: the
        next reads then show how quick the disk is."""
        try:
            if self.file is not None:
                self.file.settle()
        except OSError as error:
            self.warn(f"the disk of {self.folder} does not keep what it is given", error)

    def held(self) -> AwayBlocks:
        """Blocks that are here, as many as are told of."""
        file = () if self.file is None else self.file.numbers()
        return AwayBlocks(cached_runs(self.host.numbers()), cached_runs(file), self.directory)

    def readable(self, count: int) -> Sequence[int]:
        """So many blocks of the file, or fewer, if they can be read; what cannot be loses all of
        it."""
        numbers = [] if self.file is None else sorted(self.file.numbers())[:count]
        if len(self.found(numbers)) == len(numbers):
            return numbers
        try:
            self.clear(self.tiers, self.block_bytes, 0)
        except OSError as error:
            self.file, self.tiers = None, CacheTiers(self.tiers.host_blocks)
            self.warn("the file that outlives the stage cannot be cleared, nor used", error)
        return []

    def retain(self, change: RetainBlocks) -> None:
        """Keep no others than the head says, under its numbers."""
        if change.away.directory != self.directory:
            self.clear(self.tiers, self.block_bytes, change.away.directory)
        file = () if self.file is None else self.file.numbers()
        for tier, numbers in ((HOST, self.host.numbers()), (FILE, file)):
            self.forget(number for number in numbers if not change.keeps(tier, number))

    def lower(self, number: int) -> None:
        """Move a block from host memory into the file, unless it was lost on its way."""
        if (block_W := self.host.get(number)) is not None:
            self._write(number, block_W)
            self.host.drop(number)

    def copy_out(self, tier: int, leaving: BlocksOut, is_wanted: Callable[[], bool]) -> None:
        """Copy blocks out of the device, a piece at a time, as long as they are wanted and there
        is room for them."""
        numbers, done = leaving.numbers, 0
        while done < len(numbers) and is_wanted():
            piece = numbers[done : done + max(1, PIECE_BYTES // self.block_bytes)]
            move = self._to_file if tier == FILE else self._to_host
            try:
                copied = move(piece, leaving)
            except MemoryError:
                taken = f", beyond {self.host.take_no_more() / MB:,.0f} MB"
                self.warn("the system has no memory left for what is cached there", None, taken)
                return
            if not copied:
                return
            done += copied

    def _to_host(self, numbers: Sequence[int], leaving: BlocksOut) -> int:
        """Copy the first of some blocks into host memory: how many there was room for."""
        out_BW = self.host.take(numbers, leaving.memory)
        lost: Collection[int] = range(len(out_BW))
        try:
            lost = self._copied(leaving, out_BW)
        finally:
            for at in lost:
                self.host.drop(numbers[at])
        return len(out_BW)

    def _to_file(self, numbers: Sequence[int], leaving: BlocksOut) -> int:
        """Copy blocks into the file: how many."""
        piece_BW = leaving.memory(len(numbers))
        lost = self._copied(leaving, piece_BW)
        for at, number in enumerate(numbers):
            if at not in lost:
                self._write(number, piece_BW[at])
        return len(numbers)

    def _copied(self, leaving: BlocksOut, out_BW: BlockBytes) -> Collection[int]:
        if lost := leaving.copy(out_BW):
            self.warn("copying is too slow for what leaves the device's memory")
        return lost

    def _write(self, number: int, block_W: BlockBytes) -> None:
        if self.file is None:
            return
        try:
            self.file.write(number, block_W.tobytes())
        except OSError as error:
            what = f"the file in {self.folder} grows no more"
            held = f", with {self.file.held_bytes / MB:,.0f} MB in it"
            self.warn(f"{what} (make room before the next start, or lend less disk)", error, held)

    def found(self, numbers: Sequence[int]) -> list[BlockBytes]:
        """Blocks from the first on, as many as are good, in host memory."""
        found: list[BlockBytes] = []
        for number in numbers:
            block_W = self._one_found(number)
            if block_W is None:
                break
            found.append(block_W)
        return found

    def _one_found(self, number: int) -> BlockBytes | None:
        block_W = self.host.get(number)
        if block_W is not None or self.file is None or number not in self.file:
            return block_W
        try:
            block = self.file.read(number)
            if block is None or len(block) != self.block_bytes:
                self.warn("what is in the file was altered or cut off, and is computed again")
                return None
            return np.frombuffer(bytearray(block), np.uint8)
        except Exception as error:  # Whatever it was, somebody waits for the answer.
            self.warn("a block could not be read", error)
            return None

    def forget(self, numbers: Iterable[int]) -> None:
        """Keep these blocks no more; unknown ones are fine."""
        for number in numbers:
            self.host.drop(number)
            if self.file is not None:
                self.file.drop(number)

    def clear(self, tiers: CacheTiers, block_bytes: int, directory: int) -> None:
        """Keep nothing, and have room for blocks of another size from then on, which this directory
        numbers."""
        self.tiers, self.block_bytes, self.directory = tiers, block_bytes, directory
        self.empty_host()
        if self.file is not None:
            self.file.clear(tiers.file_blocks, block_bytes, directory)

    def warn(self, what: str, error: Exception | None = None, figure: str = "") -> None:
        """Once of each trouble: a slow disk is no reason not to hear that it is full."""
        if what not in self._warned_of:
            told = (error.strerror or error) if isinstance(error, OSError) else repr(error)
            why = "" if error is None else f": {told!s:.200}"
            log.warning("Of the KV cache beside the device's memory: %s%s%s.", what, figure, why)
        self._warned_of.add(what)
