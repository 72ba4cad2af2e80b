"""Which bytes of the coordinator's files make which of ours? Pure.

Our unit is the *part*: what one weight file holds of one layer (or of one place around the layers),
as a safetensors file of its own. So when the layers of this node change, those it has stay as they
are and only new ones are fetched, whether the checkpoint is one file or many. A file of all the
node's layers was rejected: each change would rewrite it, and half of it twice would need the room.

Transfers are checked by *block* of the original file, so blocks at the edge of a part are fetched
whole and only our bytes of them kept. A part keeps the order of the original, so what one block
gives to it is one *piece* without gaps.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from molink.checkpoint.safetensors_header import StoredTensor, encode_header
from molink.checkpoint.shard_plan import FileNeed, Home, ShardPlan
from molink.checkpoint.weights_manifest import FileEntry, WeightsManifest

__all__ = ["Cut", "Part", "Run", "part_name", "parts_of"]


@dataclass(frozen=True, slots=True)
class Run:
    """Range of bytes that follow each other in the original file and in our part."""

    start: int
    """In the original file."""
    stop: int
    local: int
    """Where they begin in the part."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Slice of one block, and where it goes in our part."""

    start: int
    """In the block."""
    stop: int
    local: int


@dataclass(frozen=True, slots=True)
class Part:
    """Weight file of ours: what one of the coordinator's files holds of one layer."""

    name: str
    source: FileEntry
    prefix: bytes
    """What stands in front of the first run."""
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
        """What one block gives to it, in order; together they are one piece."""
        first, last = block * block_bytes, (block + 1) * block_bytes
        found = []
        for run in self.runs:
            start, stop = max(run.start, first), min(run.stop, last)
            if start < stop:
                found.append(Cut(start - first, stop - first, run.local + start - run.start))
        return found


def parts_of(manifest: WeightsManifest, plan: ShardPlan) -> list[Part]:
    """Every file that a node must have: the small ones as they are, then weights by layer."""
    parts = [_whole(entry) for entry in manifest.small_files()]
    for need in plan.files:
        parts += _of_file(manifest.file(need.name), need, plan)
    return parts


def part_name(home: Home, file: str) -> str:
    """Name of the part with one layer's share of a weight file."""
    return f"layer-{home:05d}.{file}" if isinstance(home, int) else f"{home.value}.{file}"


def _whole(entry: FileEntry) -> Part:
    runs = (Run(0, entry.size, 0),) if entry.size else ()
    return Part(entry.name, entry, b"", runs)


def _of_file(entry: FileEntry, need: FileNeed, plan: ShardPlan) -> list[Part]:
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
        parts.append(Part(part_name(home, entry.name), entry, prefix, runs, names))
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
