"""One part on the disk: written piece by piece, and sure of each piece.

While it grows it is called NAME.partial, so that it is not taken for the whole. Beside it lies
NAME.journal: a line for each piece that came from a block whose checksum was right, with the
checksum of the piece itself. After a start every piece that the journal names is read again and
compared. That costs a second for each GB, where fetching a GB takes minutes, and it buys three
things. A byte that has changed on the disk is noticed, in a finished file too. Nothing has to be
flushed for each piece: after a power cut the journal may name what never reached the disk, and the
comparison finds it. And a journal torn at any byte does no harm: a line that is not whole does not
count, one that is wrong does not match.

Trusting the journal was rejected for these reasons; hashing only what is new would save the second.

Which bytes of the coordinator's files make which of ours? Pure.

Our unit is the *part*: what one weight file holds of one layer (or of one place around the layers),
as a safetensors file of its own. So when the layers of this node change, those it has stay as they
are and only new ones are fetched, whether the checkpoint is one file or many. A file of all the
node's layers was rejected: each change would rewrite it, and half of it twice would need the room.

Transfers are checked by *block* of the original file, so blocks at the edge of a part are fetched
whole and only our bytes of them kept. A part keeps the order of the original, so what one block
gives to it is one *piece* without gaps.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from molink.checkpoint.safetensors_header import StoredTensor, encode_header
from molink.checkpoint.shard_plan import FileNeed, Home, ShardPlan
from molink.checkpoint.weights_manifest import FileEntry, WeightsManifest


@dataclass(frozen=True, slots=True)
class Run:
    """Range of bytes that follow each other in the original file and in our part."""

    start: int
    """First byte in the original file."""
    stop: int
    local: int
    """First byte in the part."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Slice of one block, and where it goes in our part."""

    start: int
    """First byte in the block."""
    stop: int
    local: int


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Weight file of ours: what one of the coordinator's files holds of one layer."""

    name: str
    source: FileEntry
    prefix: bytes
    """Bytes in front of the first run."""
    runs: tuple[Run, ...]
    tensors: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        if not self.runs:
            return len(self.prefix)
        last = self.runs[-1]
        return last.local + last.stop - last.start

    def blocks(self, block_bytes: int) -> list[int]:
        """Numbers of the blocks that hold some of it, rising."""
        numbers: set[int] = set()
        for run in self.runs:
            numbers.update(range(run.start // block_bytes, -(-run.stop // block_bytes)))
        return sorted(numbers)

    def cuts(self, block: int, block_bytes: int) -> list[Cut]:
        """Slices of one block that belong to the part, in order; together they are one piece."""
        first, last = block * block_bytes, (block + 1) * block_bytes
        found = []
        for run in self.runs:
            start, stop = max(run.start, first), min(run.stop, last)
            if start < stop:
                found.append(Cut(start - first, stop - first, run.local + start - run.start))
        return found


def parts_of(manifest: WeightsManifest, plan: ShardPlan) -> list[WeightPart]:
    """Every file that a node must have: the small ones as they are, then weights by layer."""
    parts = [_whole(entry) for entry in manifest.small_files()]
    for need in plan.files:
        parts += _parts_of_file(manifest.file(need.name), need, plan)
    return parts


def part_name(home: Home, file: str) -> str:
    """Name of the part with one layer's share of a weight file."""
    return f"layer-{home:05d}.{file}" if isinstance(home, int) else f"{home.value}.{file}"


def _whole(entry: FileEntry) -> WeightPart:
    runs = (Run(0, entry.size, 0),) if entry.size else ()
    return WeightPart(entry.name, entry, b"", runs)


def _parts_of_file(entry: FileEntry, need: FileNeed, plan: ShardPlan) -> list[WeightPart]:
    wanted = set(need.tensors)
    by_home: dict[Home, list[StoredTensor]] = {}
    assert entry.table is not None, "plans name weight files"
    for tensor in entry.table.tensors:
        if tensor.name in wanted:
            by_home.setdefault(plan.homes[tensor.name], []).append(tensor)
    metadata = entry.table.metadata
    parts = []
    for home, tensors in by_home.items():
        prefix = encode_header(tensors, metadata)
        names = tuple(tensor.name for tensor in tensors)
        runs = tuple(_runs(tensors, len(prefix)))
        parts.append(WeightPart(part_name(home, entry.name), entry, prefix, runs, names))
    return parts


def _runs(tensors: Iterable[StoredTensor], local: int) -> list[Run]:
    """Tensors in the file's order, neighbours joined."""
    runs: list[Run] = []
    for tensor in tensors:
        size = tensor.stop - tensor.start
        if runs and runs[-1].stop == tensor.start:
            runs[-1] = Run(runs[-1].start, tensor.stop, runs[-1].local)
        elif size:
            runs.append(Run(tensor.start, tensor.stop, local))
        local += size
    return runs


JOURNAL_LINE = re.compile(r"(\d{1,12}) ([0-9a-f]{64})")
"""Block number, checksum of our piece of it."""

READ_BYTES = 2**20
"""Bytes read at once while comparing: a finished agent shall not keep a block's memory."""


@dataclass(slots=True)
class PartFile:
    """Part on the disk. Its methods block: call them in a thread, one at a time."""

    directory: Path
    part: WeightPart
    block_bytes: int
    held: dict[int, str] = field(default_factory=dict)
    """Pieces that are known to be good, by block; empty before `verify`."""
    wanted: frozenset[int] = field(init=False)
    """Blocks that hold some of it."""

    def __post_init__(self) -> None:
        self.wanted = frozenset(self.part.blocks(self.block_bytes))

    @property
    def path(self) -> Path:
        """Path of the finished file."""
        return self.directory / self.part.name

    @property
    def partial(self) -> Path:
        """Path of the file while it grows."""
        return self.directory / f"{self.part.name}.partial"

    @property
    def journal(self) -> Path:
        """Path of the list of good pieces."""
        return self.directory / f"{self.part.name}.journal"

    @property
    def missing(self) -> set[int]:
        """Numbers of the blocks still to be fetched."""
        return {block for block in self.wanted if block not in self.held}

    def missing_bytes(self) -> int:
        """Bytes that are still to be written."""
        return sum(map(self._piece_bytes, self.missing))

    def verify(self, found_good: Callable[[int], None] = lambda size: None) -> None:
        """Find out which pieces are good; what is not is forgotten. A finished file with a bad
        piece stops being one. `found_good` is called with the bytes of each as it is found."""
        claimed = self._read_journal()
        found = self.path if self.path.exists() else self.partial
        if claimed is None or not found.exists():
            self._begin()
            return
        with found.open("rb") as file:
            right = file.read(len(self.part.prefix)) == self.part.prefix
            right = right and os.fstat(file.fileno()).st_size <= self.part.size
            self.held = {}
            for block, digest in (claimed if right else {}).items():
                if self._piece_digest(file.fileno(), block) == digest:
                    self.held[block] = digest
                    found_good(self._piece_bytes(block))
        if not right:
            self._begin()
        elif self.missing or found == self.partial:
            found.replace(self.partial)
            self._write_journal()
        else:
            self.partial.unlink(missing_ok=True)

    def take(self, block: int, data: bytes) -> int:
        """Write what a block (whole, and of the right checksum) gives to this part; bytes that are
        new. Raises OSError; what was held before stays."""
        if block not in self.wanted or block in self.held:
            return 0
        view, digest = memoryview(data), hashlib.sha256()
        cuts = self.part.cuts(block, self.block_bytes)
        descriptor = os.open(self.partial, os.O_WRONLY)
        try:
            for cut in cuts:
                _write_all(descriptor, view[cut.start : cut.stop], cut.local)
                digest.update(view[cut.start : cut.stop])
        finally:
            os.close(descriptor)
        _append(self.journal, f"{block} {digest.hexdigest()}\n")
        self.held[block] = digest.hexdigest()
        return sum(cut.stop - cut.start for cut in cuts)

    def finish(self) -> None:
        """Give a complete file its name. Raises OSError when the disk has not taken it after
        all."""
        assert not self.missing
        if self.partial.exists():
            descriptor = os.open(self.partial, os.O_RDWR)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self.partial.replace(self.path)

    def _begin(self) -> None:
        """Start with nothing."""
        self.held = {}
        self.directory.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self.journal.unlink(missing_ok=True)
        self.partial.write_bytes(self.part.prefix)
        self._write_journal()

    def _identity(self) -> str:
        """First line of the journal: of which bytes it speaks."""
        runs = hashlib.sha256(repr((self.part.prefix, self.part.runs)).encode()).hexdigest()
        facts = {"of": self.part.source.sha256, "block": self.block_bytes, "runs": runs}
        return json.dumps(facts)

    def _read_journal(self) -> dict[int, str] | None:
        """Checksums of the blocks in the journal, by number; None when it is not of this part."""
        try:
            lines = self.journal.read_bytes().decode("ascii", "replace").split("\n")
        except OSError:
            return None
        if lines[0] != self._identity():
            return None
        found = (JOURNAL_LINE.fullmatch(line) for line in lines[1:-1])
        claimed = {int(match[1]): match[2] for match in found if match}
        return {block: digest for block, digest in claimed.items() if block in self.wanted}

    def _write_journal(self) -> None:
        lines = [self._identity(), *(f"{block} {digest}" for block, digest in self.held.items())]
        draft = self.journal.with_name(f"{self.journal.name}.new")
        draft.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        draft.replace(self.journal)

    def _piece_bytes(self, block: int) -> int:
        return sum(cut.stop - cut.start for cut in self.part.cuts(block, self.block_bytes))

    def _piece_digest(self, descriptor: int, block: int) -> str:
        """Checksum of our piece of a block; empty where the disk cannot read it."""
        digest = hashlib.sha256()
        try:
            for cut in self.part.cuts(block, self.block_bytes):
                end = cut.local + cut.stop - cut.start
                for at in range(cut.local, end, READ_BYTES):
                    digest.update(os.pread(descriptor, min(READ_BYTES, end - at), at))
        except OSError:
            return ""
        return digest.hexdigest()


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _append(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
