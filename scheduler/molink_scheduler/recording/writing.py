"""The core's values and states as JSON: what the event log is written in; `values` reads it.

A state is more than a tree: several parts of a head share one clock. So whatever can change has a
number, and where it occurs again stands the number alone.
"""

import base64
import zlib
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from molink_scheduler.kv.prefix_tree import PrefixTree

IDS_MIN = 16
"""Least number of token ids that are written as one string: JSON takes 1 us for each number, and a
head holds some ten thousand."""

CACHED_BLOCKS_MAX = 32_768
"""Blocks of a directory of cached blocks that is written: of 500,000 tokens, more than a home PC's
memory holds KV of, about a megabyte packed. A head that caches more serves as well, and its log
cannot be played again."""

UNWRITTEN = "unwritten"

CONTAINERS: dict[str, type] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}


_WRITTEN: dict[type, Callable[[Any], Any]] = {
    bytes: lambda value: _packed(value),
    array: lambda value: [value.typecode, _packed(value.tobytes())],
    range: lambda value: [value.start, value.stop, value.step],
}


def encode(value: Any) -> Any:
    """Value as JSON can hold it. Raises TypeError for a value of another class."""
    return _Encoder().encoded(value)


def _packed(raw: bytes) -> str:
    """Bytes as text. Token ids shrink to a third by the lengths of their codes alone; a search for
    repetitions takes half as long again and finds none."""
    packing = zlib.compressobj(level=1, strategy=zlib.Z_HUFFMAN_ONLY)
    return base64.b64encode(packing.compress(raw) + packing.flush()).decode()


class _Encoder:
    """Writer of one value; numbers what it meets that can change."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def encoded(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        kind = type(value)
        if kind in (list, tuple) and len(value) >= IDS_MIN and set(map(type, value)) == {int}:
            return {f"{kind.__name__} of ids": " ".join(map(str, value))}
        if kind is list:
            return [self.encoded(one) for one in value]
        if kind is dict:
            return {"dict": [[self.encoded(k), self.encoded(v)] for k, v in value.items()]}
        if kind in _WRITTEN:
            return {kind.__name__: _WRITTEN[kind](value)}
        if kind in (set, frozenset):
            value = sorted(value)  # Their order says nothing.
        if kind.__name__ in CONTAINERS:
            return {kind.__name__: [self.encoded(one) for one in value]}
        if not _is_of_core(kind):
            raise TypeError(f"{kind.__name__} is no value of a stage's log")
        if isinstance(value, Enum):
            return {kind.__name__: value.value}
        if isinstance(value, tuple):
            return {kind.__name__: [self.encoded(one) for one in value]}
        return self._instance(value)

    def _instance(self, value: Any) -> Any:
        if isinstance(value, PrefixTree) and sum(value.blocks_in) > CACHED_BLOCKS_MAX:
            return {UNWRITTEN: type(value).__name__}
        if type(value).__dataclass_params__.frozen:
            held = {field.name: self.encoded(getattr(value, field.name)) for field in fields(value)}
            return {type(value).__name__: held}
        if id(value) in self._numbers:
            return {"again": self._numbers[id(value)]}
        self._numbers[id(value)] = number = len(self._numbers)
        held = {field.name: self.encoded(getattr(value, field.name)) for field in fields(value)}
        return {type(value).__name__: held, "number": number}


def _is_of_core(kind: type) -> bool:
    """Whether a class is one of the core's own, whose values can be read again."""
    is_value = is_dataclass(kind) or issubclass(kind, Enum | tuple)
    return is_value and kind.__module__.startswith("molink_scheduler.")
