"""A GGUF file written from its definition, good or bad."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STRING, ARRAY = 8, 9
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}


@dataclass(frozen=True)
class Typed:
    """Value with the number of its type, where Python's type does not tell."""

    kind: int
    value: Any


@dataclass(frozen=True)
class Tensor:
    """Tensor as the file describes it: dimensions with the fastest first."""

    name: str
    dimensions: Sequence[int]
    type: int
    data: bytes
    offset: int | None = None
    """Instead of the next free place."""


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Any) -> Typed:
    if isinstance(value, Typed):
        return value
    kinds = {bool: 7, int: 4, float: 6, str: STRING, list: ARRAY, tuple: ARRAY}
    return Typed(kinds[type(value)], value)


def body(one: Typed) -> bytes:
    if one.kind == STRING:
        return text(one.value)
    if one.kind == ARRAY:
        values = [typed(value) for value in one.value]
        kind = values[0].kind if values else 4
        head = struct.pack("<IQ", kind, len(values))
        return head + b"".join(body(Typed(kind, value.value)) for value in values)
    return struct.pack("<" + FORMATS[one.kind], one.value)


def gguf_bytes(
    metadata: Mapping[str, Any] | Sequence[tuple[str, Any]],
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    counts: tuple[int, int] | None = None,
) -> bytes:
    pairs = list(metadata.items()) if isinstance(metadata, Mapping) else list(metadata)
    table = struct.pack("<4sI", b"GGUF", version)
    table += struct.pack("<QQ", *(counts or (len(tensors), len(pairs))))
    for key, value in pairs:
        one = typed(value)
        table += text(key) + struct.pack("<I", one.kind) + body(one)
    data = b""
    for tensor in tensors:
        offset = len(data) if tensor.offset is None else tensor.offset
        table += text(tensor.name) + struct.pack("<I", len(tensor.dimensions))
        table += struct.pack(f"<{len(tensor.dimensions)}Q", *tensor.dimensions)
        table += struct.pack("<IQ", tensor.type, offset)
        data += tensor.data + b"\0" * (-len(tensor.data) % alignment)
    return table + b"\0" * (-len(table) % alignment) + data


def write_gguf(path: Path, *args: Any, **options: Any) -> Path:
    path.write_bytes(gguf_bytes(*args, **options))
    return path
