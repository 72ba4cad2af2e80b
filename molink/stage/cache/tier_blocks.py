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
from molink_scheduler.kv.tiers import FILE, CacheTiers
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
    spare_bytes: int = field(init=False, default=sys.maxsize)
    """Host memory that the PC can spare now."""
    host: HostBlocks = field(init=False)
    file: SealedFile | None = field(init=False, default=None)
    _warned_of: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.empty_host()
        if self.tiers.file_blocks:
            self._open_file()

    def empty_host(self) -> None:
        """Have no block in host memory, and let the system have that."""
        self.host = HostBlocks(self.block_bytes, self.tiers.host_blocks)
        self.spare(self.spare_bytes)

    def spare(self, size_bytes: int) -> None:
        """Take no more than this of host memory from now on; from any thread."""
        self.spare_bytes = size_bytes
        self.host.spare(size_bytes // self.block_bytes)

    def _open_file(self) -> None:
        try:
            self.file = SealedFile(Path(self.folder), self.tiers.file_blocks, self.block_bytes)
        except OSError as error:
            self.tiers = CacheTiers(self.tiers.host_blocks)
            self.warn(f"there is no file in {self.folder}, so none of the disk is used", error)

    def settle(self) -> None:
        """Have the file's content on the disk and, where the system allows it, nowhere else: the
        next reads then show how quick the disk is."""
        try:
            if self.file is not None:
                self.file.settle()
        except OSError as error:
            self.warn(f"the disk of {self.folder} does not keep what it is given", error)

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
            self.warn("the disk is too slow for what leaves the device's memory")
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

    def clear(self, tiers: CacheTiers, block_bytes: int) -> None:
        """Keep nothing, and have room for blocks of another size from then on."""
        self.tiers, self.block_bytes = tiers, block_bytes
        self.empty_host()
        if self.file is not None:
            self.file.clear(tiers.file_blocks, block_bytes)

    def warn(self, what: str, error: Exception | None = None, figure: str = "") -> None:
        """Once of each trouble: a slow disk is no reason not to hear that it is full."""
        if what not in self._warned_of:
            told = (error.strerror or error) if isinstance(error, OSError) else repr(error)
            why = "" if error is None else f": {told!s:.200}"
            log.warning("Of the KV cache beside the device's memory: %s%s%s.", what, figure, why)
        self._warned_of.add(what)
