"""The table of contents of a safetensors file, read and written.

Eight bytes say how long the JSON is that follows; it gives each tensor's type, shape and place in
the data behind it. With this table alone one knows which bytes of a file a stage needs, and with a
shorter one in front of just these bytes they are a safetensors file again. The data of the new file
keeps the order of the old one, and is cut nowhere but between tensors, so tensors stay aligned.

No torch here, and not the safetensors package: it reads tables only of files that are whole.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from molink.errors import CheckpointError

HEADER_BYTES_MAX = 100_000_000
"""The limit of the safetensors format itself; a larger number means that the file is something
else."""

LENGTH_BYTES = 8
"""Bytes of the number in front, the table's length."""

ALIGNMENT_BYTES = 8
"""Multiple of bytes to which spaces fill the table up, as the format's own library does."""

METADATA = "__metadata__"

NUMBER_MAX = 2**63 - 1
"""Largest place in a file, and most elements of a tensor: no file system knows more."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Entry of a safetensors table: one tensor and where its bytes are."""

    name: str
    dtype: str
    """Type in the format's words, such as "BF16"."""
    shape: tuple[int, ...]
    start: int
    """First byte, counted from the beginning of the file."""
    stop: int
    """Byte after the last."""


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """Table of contents of one safetensors file."""

    tensors: tuple[StoredTensor, ...]
    """Tensors in the order in which they lie in the file."""
    metadata: Mapping[str, str]
    content: Mapping[str, Any]
    """The JSON itself."""
    data_start: int
    """Bytes in front of the data."""


def read_header(path: Path) -> SafetensorsHeader:
    """The table of a file. Raises CheckpointError when it is no safetensors file."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if not 0 < size <= HEADER_BYTES_MAX:
                raise ValueError("no safetensors header")
            content = json.loads(file.read(size))
        return parse_header(content, LENGTH_BYTES + size)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not a readable safetensors file ({error}): fetch it again"
        ) from error


def check_whole(header: SafetensorsHeader, path: Path) -> None:
    """Raise CheckpointError when a file ends before the tensors that its table names."""
    end = max((tensor.stop for tensor in header.tensors), default=header.data_start)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
    if size < end:
        raise CheckpointError(
            f"{path} has {size} bytes, but its table names tensors up to byte {end}: fetch it again"
        )


def parse_header(content: Any, data_start: int) -> SafetensorsHeader:
    """The table from its JSON. Raises ValueError for anything else."""
    if not isinstance(content, dict):
        raise ValueError("its header is not a JSON object")
    tensors = [
        _tensor(name, entry, data_start) for name, entry in content.items() if name != METADATA
    ]
    metadata = content.get(METADATA) or {}
    if not isinstance(metadata, dict):
        raise ValueError("its metadata are not a JSON object")
    tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
    for before, after in pairwise(tensors):
        if after.start < before.stop:
            raise ValueError(f"its tensors {before.name!r} and {after.name!r} overlap")
    return SafetensorsHeader(tuple(tensors), metadata, content, data_start)


def encode_header(tensors: Iterable[StoredTensor], metadata: Mapping[str, str]) -> bytes:
    """The beginning of a file that holds these tensors one behind the other."""
    content: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.stop - tensor.start
        entry = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (begin, end)}
        content[tensor.name] = entry
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _tensor(name: str, entry: Any, data_start: int) -> StoredTensor:
    try:
        start, stop = entry["data_offsets"]
        dtype, shape = entry["dtype"], tuple(entry["shape"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its entry of {name!r} is not one of a tensor") from error
    numbers = (start, stop, *shape)
    if not isinstance(dtype, str) or not all(
        isinstance(number, int) and number >= 0 for number in numbers
    ):
        raise ValueError(f"its entry of {name!r} is not one of a tensor")
    if max(stop, math.prod(shape)) > NUMBER_MAX:
        raise ValueError(f"its entry of {name!r} is larger than any file")
    if start > stop:
        raise ValueError(f"its entry of {name!r} ends before it begins")
    return StoredTensor(name, dtype, shape, data_start + start, data_start + stop)
