"""Inputs made from good ones: bytes turned, cut, doubled and joined; values replaced by odd ones.

Which bytes change follows from the random numbers alone, so a seed plays an input again.
"""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import msgpack

from tests.fuzz.target import INPUT_BYTES_MAX, Target

EDGES = (b"\0", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b"[" * 64, b"\xc1")
"""Bytes at which lengths, signs and kinds begin or end."""

ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**53 + 1,
    2**63,
    2**64 - 1,
    0.0,
    -0.5,
    1e300,
    float("inf"),
    float("-inf"),
    float("nan"),
    "",
    "x",
    "0",
    "\x1b]0;owned\x07",
    "\0",
    "\u202e",
    "../../etc/passwd",
    "ß" * 300,
    [],
    [[]],
    {},
    {"kind": "x"},
    [0] * 300,
)

DEEP = "a deep list stands here"

JSON_ONLY = (10**400, -(10**400), "\ud800", 10**20, DEEP)
"""What msgpack cannot say."""


def mutated(target: Target, random: Random) -> bytes:
    """An input for this target."""
    data = random.choice(target.seeds)
    if target.shape != "bytes" and random.random() < 0.6:
        data = changed_value(data, target.shape, random) or data
    if random.random() < (0.7 if target.shape == "bytes" else 0.3):
        data = changed_bytes(data, target.seeds, random)
    return data[:INPUT_BYTES_MAX]


# -- bytes ----------------------------------------------------------------------------------------


def changed_bytes(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """A few changes at random places."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 8))):
        at, end = sorted((random.randint(0, len(changed)), random.randint(0, len(changed))))
        match random.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case 1 if at < len(changed):
                changed[at] = random.randrange(256)
            case 2:
                changed[at:at] = random.choice(EDGES)
            case 3:
                del changed[at : min(end, at + 16)]
            case 4:
                changed[at:at] = changed[at:end]
            case 5:
                del changed[at:]
            case 6:
                changed[at:] = random.choice(others)[at:]
    return bytes(changed)


# -- values ---------------------------------------------------------------------------------------


def changed_value(data: bytes, shape: str, random: Random) -> bytes | None:
    """The same document with some of its values replaced; None when it is no document."""
    try:
        value = json.loads(data) if shape == "json" else msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return None
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        value = _replaced(value, _odd(shape, random), random)
    if shape == "json":
        return json.dumps(value).replace(f'"{DEEP}"', "[" * 1500 + "]" * 1500).encode()
    packed: bytes = msgpack.packb(value)
    return packed


def _odd(shape: str, random: Random) -> Any:
    odd = ODD_VALUES + (JSON_ONLY if shape == "json" else ())
    return random.choice(odd)


def _replaced(value: Any, odd: Any, random: Random) -> Any:
    """`value` with one of its leaves or branches replaced, left out, renamed or doubled."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        return _in_object(dict(value), odd, random)
    if isinstance(value, list) and value and random.random() < 0.9:
        return _in_list(list(value), odd, random)
    return odd


def _in_object(fields: dict[Any, Any], odd: Any, random: Random) -> dict[Any, Any]:
    name = random.choice(list(fields))
    match random.randrange(8):
        case 0:
            del fields[name]
        case 1:
            fields[random.choice(("", "x", "__class__", str(name) * 2))] = odd
        case _:
            fields[name] = _replaced(fields[name], odd, random)
    return fields


def _in_list(items: list[Any], odd: Any, random: Random) -> list[Any]:
    at = random.randrange(len(items))
    match random.randrange(8):
        case 0:
            del items[at]
        case 1:
            items.insert(at, odd)
        case 2:
            items += items[:50]
        case _:
            items[at] = _replaced(items[at], odd, random)
    return items
