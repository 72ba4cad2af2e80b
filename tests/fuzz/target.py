"""One decoder that somebody else's bytes reach, and what it may do with them."""

import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

RECORDED = Path(__file__).parents[1] / "golden" / "recorded"

INPUT_BYTES_MAX = 4096
"""Of a made input: what a decoder can get wrong, it gets wrong in less."""

MIB = 2**20

Shape = Literal["bytes", "json", "msgpack"]
"""What an input is, so that a mutation can change a value in it and not only its bytes."""


@dataclass(frozen=True)
class Target:
    """Decoder under fuzzing."""

    name: str
    run: Callable[[bytes], object]
    allowed: tuple[type[BaseException], ...]
    """What it may raise for bytes that it does not like; anything else is a finding."""
    seeds: tuple[bytes, ...]
    shape: Shape = "bytes"
    memory_bytes: int = 2 * MIB
    """Most that it may hold while it looks at one input; an input has INPUT_BYTES_MAX at most."""


def golden(codec: str) -> dict[str, str]:
    """What was recorded of a codec, by name."""
    return json.loads((RECORDED / f"{codec}.json").read_text(encoding="utf-8"))


def golden_bytes(codec: str) -> tuple[bytes, ...]:
    """Recorded texts as they are."""
    return tuple(text.encode() for text in golden(codec).values())


def golden_hex(codec: str) -> tuple[bytes, ...]:
    """Recorded bytes."""
    return tuple(bytes.fromhex(text) for text in golden(codec).values())


def json_seeds(*values: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


# -- several byte strings in one input ------------------------------------------------------------

_SIZE = struct.Struct("<H")


def joined(parts: Iterable[bytes]) -> bytes:
    """Several in one, each behind its length."""
    return b"".join(_SIZE.pack(len(part)) + part for part in parts)


def split(data: bytes) -> list[bytes]:
    """The parts of any input; the last may be shorter than announced."""
    parts, at = [], 0
    while at + _SIZE.size <= len(data):
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        parts.append(data[at : at + size])
        at += size
    return parts
