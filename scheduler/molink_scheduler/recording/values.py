"""The core's values and states as JSON, and back: what the event log is written in.

A state is more than a tree: several parts of a head share one clock. So whatever can change has a
number, and where it occurs again stands the number alone.

A reader makes values of the classes below and of no others, whatever a file says. Pickle was
rejected: it makes whatever a file says.
"""

import base64
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from types import ModuleType
from typing import Any

from molink_scheduler import batch, events, prompt_order, request, resume
from molink_scheduler.head import (
    decode_batcher,
    fetches,
    kv_book,
    kv_forecast,
    micro_batch_choice,
    micro_batches,
    prompt_queue,
    scheduler,
    sequence,
    settings,
)
from molink_scheduler.head import snapshots as head_snapshots
from molink_scheduler.kv import blocks, ledger, owners, prefix_tree, snapshots, tiered_tree, tiers
from molink_scheduler.stage import away, book, core, held_request, queue, shadow_queue
from molink_scheduler.timing import round_tracker, steps

_MODULES: tuple[ModuleType, ...] = (
    *(
        batch,
        events,
        prompt_order,
        request,
        resume,
        blocks,
        ledger,
        owners,
        prefix_tree,
        tiered_tree,
        tiers,
    ),
    *(away, book, core, held_request, queue, shadow_queue, round_tracker, steps),
    *(decode_batcher, fetches, kv_book, kv_forecast, micro_batch_choice, micro_batches),
    *(prompt_queue, scheduler, sequence, settings, snapshots, head_snapshots),
)
_CLASSES: dict[str, type] = {}


def know(modules: Iterable[ModuleType]) -> None:
    """Write and read values of these modules' classes too. Raises ValueError for a known name."""
    for module in modules:
        for name, value in vars(module).items():
            is_own = isinstance(value, type) and value.__module__ == module.__name__
            if is_own and _CLASSES.setdefault(name, value) is not value:
                raise ValueError(f"two classes are called {name}")


know(_MODULES)

IDS_MIN = 16
"""Least number of token ids that are written as one string: JSON takes 1 us for each number, and a
head holds some ten thousand."""

CACHED_BLOCKS_MAX = 32_768
"""Blocks of a directory of cached blocks that is written: of 500,000 tokens, more than a home PC's
memory holds KV of, about a megabyte packed. A head that caches more serves as well, and its log
cannot be played again."""

UNPACKED_BYTES_MAX = 16 * 2**20
"""Bytes of one array that was packed: a node of a directory has at most 2 MB, and a prompt too."""

UNWRITTEN = "unwritten"

_CONTAINERS: dict[str, type] = {
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
_READ: dict[str, Callable[[Any], Any]] = {
    "bytes": lambda held: _unpacked(held),
    "array": lambda held: array(held[0], _unpacked(held[1])),
    "range": lambda held: range(*held),
}


def encode(value: Any) -> Any:
    """Value as JSON can hold it. Raises TypeError for a value of another class."""
    return _Encoder().encoded(value)


def decode(raw: Any) -> Any:
    """The value that was encoded. Raises ValueError when it is none."""
    try:
        return _Decoder().decoded(raw)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no value of a stage's log: {error}") from error


def _packed(raw: bytes) -> str:
    """Bytes as text. Token ids shrink to a third by the lengths of their codes alone; a search for
    repetitions takes half as long again and finds none."""
    packing = zlib.compressobj(level=1, strategy=zlib.Z_HUFFMAN_ONLY)
    return base64.b64encode(packing.compress(raw) + packing.flush()).decode()


def _unpacked(text: str) -> bytes:
    """The bytes that were packed. Raises ValueError for others, and for too many."""
    try:
        unpacking = zlib.decompressobj()
        raw = unpacking.decompress(base64.b64decode(text, validate=True), UNPACKED_BYTES_MAX)
    except zlib.error as error:
        raise ValueError(f"no packed bytes: {error}") from error
    if not unpacking.eof:
        raise ValueError(f"packed bytes that are cut off, or more than {UNPACKED_BYTES_MAX}")
    return raw


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
        if kind.__name__ in _CONTAINERS:
            return {kind.__name__: [self.encoded(one) for one in value]}
        if _CLASSES.get(kind.__name__) is not kind:
            raise TypeError(f"{kind.__name__} is no value of a stage's log")
        if isinstance(value, Enum):
            return {kind.__name__: value.value}
        if isinstance(value, tuple):
            return {kind.__name__: [self.encoded(one) for one in value]}
        return self._instance(value)

    def _instance(self, value: Any) -> Any:
        if isinstance(value, prefix_tree.PrefixTree) and sum(value.blocks_in) > CACHED_BLOCKS_MAX:
            return {UNWRITTEN: type(value).__name__}
        if type(value).__dataclass_params__.frozen:
            held = {field.name: self.encoded(getattr(value, field.name)) for field in fields(value)}
            return {type(value).__name__: held}
        if id(value) in self._numbers:
            return {"again": self._numbers[id(value)]}
        self._numbers[id(value)] = number = len(self._numbers)
        held = {field.name: self.encoded(getattr(value, field.name)) for field in fields(value)}
        return {type(value).__name__: held, "number": number}


class _Decoder:
    """Reader of one value."""

    def __init__(self) -> None:
        self._instances: dict[int, Any] = {}

    def decoded(self, raw: Any) -> Any:
        if isinstance(raw, list):
            return [self.decoded(one) for one in raw]
        if not isinstance(raw, dict):
            return raw
        name, held = next(iter(raw.items()))
        if name.endswith(" of ids"):
            ids = map(int, held.split())
            return tuple(ids) if name == "tuple of ids" else list(ids)
        if name == "again":
            return self._instances[held]
        if name == "dict":
            return {self.decoded(key): self.decoded(value) for key, value in held}
        if name in _READ:
            return _READ[name](held)
        if name in _CONTAINERS:
            return _CONTAINERS[name](self.decoded(one) for one in held)
        if name == UNWRITTEN:
            raise ValueError(f"more than {CACHED_BLOCKS_MAX} cached blocks: not to be played again")
        kind = _CLASSES[name]
        if issubclass(kind, Enum):
            return kind(held)
        if issubclass(kind, tuple):
            return kind(*(self.decoded(one) for one in held))
        return self._instance(kind, held, raw.get("number"))

    def _instance(self, kind: type, held: dict[str, Any], number: int | None) -> Any:
        if not is_dataclass(kind) or {field.name for field in fields(kind)} != set(held):
            raise ValueError(f"this version's {kind.__name__} has other fields")
        value = object.__new__(kind)
        if number is not None:
            self._instances[number] = value
        for name, raw in held.items():
            object.__setattr__(value, name, self.decoded(raw))
        return value
