"""The core's values and states, read from what an event log was written in (`writing`).

A reader makes values of the classes below and of no others, whatever a file says. Pickle was
rejected: it makes whatever a file says.
"""

import base64
import zlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from types import ModuleType
from typing import Any

from molink_scheduler import batch, events, prompt_order, request, resume
from molink_scheduler.drafting import acceptance, asks, fixed_widths, probes, proposals, widths
from molink_scheduler.head import (
    changing_capacity,
    decode_batcher,
    drafts,
    fetches,
    kept_requests,
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
from molink_scheduler.kv import (
    block_table,
    blocks,
    capacity,
    changes,
    fetch_answers,
    ledger,
    owners,
    prefix_tree,
    ring_cache,
    snapshots,
    tiered_tree,
    tiers,
    wishes,
)
from molink_scheduler.recording.writing import CACHED_BLOCKS_MAX, CONTAINERS, UNWRITTEN
from molink_scheduler.recovery import events as recovery_events
from molink_scheduler.recovery import instructions, members, state
from molink_scheduler.stage import book, core, held_request, kept_states, queue, shadow_queue
from molink_scheduler.timing import next_decode, round_tracker, steps

_MODULES: tuple[ModuleType, ...] = (
    *(
        acceptance,
        asks,
        batch,
        events,
        fixed_widths,
        probes,
        prompt_order,
        proposals,
        request,
        resume,
        block_table,
        blocks,
        capacity,
        changes,
        fetch_answers,
        ledger,
        owners,
        prefix_tree,
        ring_cache,
        tiered_tree,
        tiers,
        widths,
        wishes,
    ),
    *(
        book,
        core,
        held_request,
        kept_states,
        queue,
        shadow_queue,
        next_decode,
        round_tracker,
        steps,
    ),
    *(
        changing_capacity,
        decode_batcher,
        drafts,
        fetches,
        kept_requests,
        kv_book,
        kv_forecast,
        micro_batch_choice,
        micro_batches,
    ),
    *(prompt_queue, scheduler, sequence, settings, snapshots, head_snapshots),
    *(recovery_events, instructions, members, state),
)


def _classes_of(modules: Iterable[ModuleType]) -> dict[str, type]:
    """Classes that these modules define, by their names. Raises ValueError where two have one."""
    found: dict[str, type] = {}
    for module in modules:
        for name, value in vars(module).items():
            is_own = isinstance(value, type) and value.__module__ == module.__name__
            if is_own and found.setdefault(name, value) is not value:
                raise ValueError(f"two classes are called {name}")
    return found


_CLASSES = _classes_of(_MODULES)

UNPACKED_BYTES_MAX = 16 * 2**20
"""Bytes of one array that was packed: a node of a directory has at most 2 MB, and a prompt too."""


_READ: dict[str, Callable[[Any], Any]] = {
    "bytes": lambda held: _unpacked(held),
    "array": lambda held: array(held[0], _unpacked(held[1])),
    "range": lambda held: range(*held),
}


def decode(raw: Any) -> Any:
    """The value that was encoded. Raises ValueError when it is none."""
    try:
        return _Decoder().decoded(raw)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no value of a stage's log: {error}") from error


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
        if name in CONTAINERS:
            return CONTAINERS[name](self.decoded(one) for one in held)
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
