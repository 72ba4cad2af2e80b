"""The table of contents of a GGUF file: its metadata and where its tensors are.

Magic, version, the numbers of tensors and of metadata; then the metadata as pairs of a key and a
typed value, then a name, dimensions, a type and an offset for each tensor; behind it, from the next
multiple of an alignment, the data. Strings carry their length, arrays their count, and nothing says
how long the whole table is: it must be walked.

Files come from strangers. Every length is compared with what is left of the file before anything
is read or made for it, counts have limits, and arrays (a vocabulary has 100,000 strings) stay in
the file until they are asked for: a plan needs none of them. The library's own reader was rejected:
it takes seconds and 700 MB for a large vocabulary, and believes what it reads.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from molink.checkpoint.gguf.block_types import (
    BLOCK_TYPES,
    OTHER_TYPES,
    PLAIN_TYPES,
    RECODED_TYPES,
    BlockType,
    recoded_type,
)
from molink.checkpoint.gguf.walk import (
    ARRAY,
    SCALARS,
    STRING,
    TEXT_BYTES_MAX,
    U32,
    U64,
    VALUES_MAX,
    GgufArray,
    Value,
    Walk,
)
from molink.printable import printable_line

DIMENSIONS_MAX = 4
"""Most dimensions of a tensor, by the format."""

DIMENSION_MAX = 2**31
"""Largest dimension of a tensor, as of any other checkpoint that is read."""

ALIGNMENT = 32
ALIGNMENT_MAX = 2**20
ALIGNMENT_KEY = "general.alignment"

NAME_CHARACTERS_MAX = 80
"""Most characters that an error repeats of a name from a file."""


@dataclass(frozen=True, slots=True)
class Stored:
    """How the file has a tensor that an import writes anew."""

    type: BlockType
    start: int
    """First byte in the file."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Entry of the table: one tensor and where its bytes are."""

    name: str
    shape: tuple[int, ...]
    """Rows first, as torch counts; the file has the fastest dimension first."""
    type: BlockType
    start: int
    """First byte, counted from the beginning of the file."""
    stop: int
    path: Path
    """The file: parts of a model have each their own."""
    stored: Stored | None = None
    """Form in the file of a tensor that no kernel reads as it is: `type` is then what it becomes,
    and `start` and `stop` count the bytes of that. None: it is read as it is."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.shape[-1] // self.type.values * self.type.size

    @property
    def is_plain(self) -> bool:
        """Whether it holds single numbers, no blocks."""
        return self.type.values == 1


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Table of contents of one GGUF file."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: tuple[GgufTensor, ...]
    """Tensors in the order in which they lie in the file."""
    unread: Counter[str]
    """Types that are not read, with the numbers of their tensors, which are left out above."""

    def array(self, key: str) -> list[str] | list[int] | list[float] | None:
        """The values of an array; None when there is none of this name. Raises CheckpointError
        when the file has changed since."""
        value = self.metadata.get(key)
        if not isinstance(value, GgufArray):
            return None
        with Walk.through(self.path) as walk:
            walk.at = value.start
            if value.count > VALUES_MAX:
                raise walk.damaged(f"{_word(key)} has {value.count} values")
            if value.kind == STRING:
                return [walk.text(TEXT_BYTES_MAX) for _ in range(value.count)]
            return list(walk.numbers(SCALARS[value.kind], value.count))


def read_gguf(path: Path) -> GgufHeader:
    """The table of a file; its data stay where they are, and so do arrays.

    Raises CheckpointError for a file that is no GGUF file, is damaged or ends early.
    """
    with Walk.through(path) as walk:
        tensor_count, pair_count = walk.counts()
        metadata = _metadata(walk, pair_count)
        entries = [_entry(walk) for _ in range(tensor_count)]
        alignment = metadata.get(ALIGNMENT_KEY, ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= ALIGNMENT_MAX:
            raise walk.damaged(f"{ALIGNMENT_KEY} is no size")
        start = -(-walk.at // alignment) * alignment
        known = [_tensor(walk, entry, start) for entry in entries if entry[2] in _READ]
    others = (kind for _, _, kind, _ in entries if kind not in _READ)
    unread = Counter(OTHER_TYPES.get(kind, f"number {kind}") for kind in others)
    known.sort(key=lambda tensor: (tensor.start, tensor.stop))
    for before, after in pairwise(known):
        if after.start < before.stop:
            raise walk.damaged(f"{_word(before.name)} and {_word(after.name)} overlap")
    names = Counter(entry[0] for entry in entries)
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise walk.damaged(f"two tensors have one name, {_word(twice)}")
    tensors = tuple(_recoded(tensor) for tensor in known)
    return GgufHeader(path, MappingProxyType(metadata), tensors, unread)


# -- metadata -------------------------------------------------------------------------------------


def _metadata(walk: Walk, pairs: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for _ in range(pairs):
        key = walk.text()
        if key in metadata:
            raise walk.damaged(f"{_word(key)} is there twice")
        metadata[key] = _value(walk)
    return metadata


def _value(walk: Walk) -> Value:
    kind = walk.number(U32)
    if kind == STRING:
        return walk.text(TEXT_BYTES_MAX)
    if kind == ARRAY:
        return walk.skip_array()
    if kind not in SCALARS:
        raise walk.damaged(f"the type {kind}")
    return walk.number(SCALARS[kind])


# -- tensors --------------------------------------------------------------------------------------

Entry = tuple[str, tuple[int, ...], int, int]
"""Name, shape, type and offset as the file has them, the shape turned round."""


def _entry(walk: Walk) -> Entry:
    name = walk.text()
    count = walk.number(U32)
    if not 0 < count <= DIMENSIONS_MAX:
        raise walk.damaged(f"{_word(name)} has {count} dimensions")
    shape = tuple(walk.number(U64) for _ in range(count))[::-1]
    return name, shape, walk.number(U32), walk.number(U64)


_READ = PLAIN_TYPES | BLOCK_TYPES | RECODED_TYPES


def _tensor(walk: Walk, entry: Entry, data_start: int) -> GgufTensor:
    """A tensor as it lies in the file."""
    name, shape, number, offset = entry
    block = _READ[number]
    if not all(0 < size < DIMENSION_MAX for size in shape) or shape[-1] % block.values:
        raise walk.damaged(f"{_word(name)} has the shape {shape}")
    size = math.prod(shape) // block.values * block.size
    start = data_start + offset
    if start + size > walk.size:
        raise walk.damaged(f"{_word(name)} would end at byte {start + size} of {walk.size}")
    return GgufTensor(name, shape, block, start, start + size, walk.path)


def _recoded(tensor: GgufTensor) -> GgufTensor:
    """The tensor as kernels read it."""
    if tensor.type not in RECODED_TYPES.values():
        return tensor
    new = recoded_type(tensor.type)
    size = math.prod(tensor.shape) // new.values * new.size
    stored = Stored(tensor.type, tensor.start)
    return replace(tensor, type=new, start=0, stop=size, stored=stored)


def _word(name: str) -> str:
    return printable_line(name)[:NAME_CHARACTERS_MAX]
