"""Where do the rows of a batch stand, which KV slots do they write and read, and which decode rows
can share a call?

Worked out once per step and used by every layer. A *slot* is the place of one token in the KV pool:
block times 16 plus offset. A sequence whose blocks are neighbours is read as a view; one that is
scattered carries the list of its slots and is gathered.

Attention of one row over a short context is over before the call's own overhead is paid, so eight
sequences should cost one call. Their K and V stand in one pool: where the sequences start at evenly
spaced slots, the pool seen with that spacing is itself the tensor [sequences, tokens], with no
copy. Requests of equal size that were placed side by side fall into this by themselves; any two
sequences always do. The tail of a shorter sequence runs into its neighbour's slots and is masked.
Gathering the tokens of all rows into one padded tensor was rejected: the copy costs more than the
calls it saves.

Shapes: T rows of the batch, N tokens of a sequence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from molink_scheduler.batch import Batch, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks

__all__ = ["DecodeGroup", "KeyRange", "SpanPlace", "StepPlan", "group_decodes", "plan_step"]

PADDING_MAX = 2.0
"""Key positions that a group may compute per key that counts. Past this a call per sequence is
cheaper.
"""


@dataclass(frozen=True, slots=True)
class SpanPlace:
    """Place of one span: its rows in the batch and its slots in the pool."""

    row: int
    """Its first row in the batch."""
    tokens: int
    kv_tokens: int
    """Tokens of the sequence once the span is written: what its last row attends to."""
    start_slot: int | None
    """Slot of the sequence's first token when its blocks are neighbours, else None."""
    slots_N: torch.Tensor | None
    """Slots of all its tokens when they are scattered, else None."""


@dataclass(slots=True)
class StepPlan:
    """Geometry of one step, and what its layers share."""

    positions_T: torch.Tensor
    slots_T: torch.Tensor
    """Where each row's K and V are written."""
    spans: list[SpanPlace]
    _shared: dict[Any, Any] = field(default_factory=dict)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` made, once per step for each `key`; masks and groupings are alike in
        all layers.
        """
        value = self._shared.get(key)
        if value is None:
            value = self._shared[key] = make()
        return value


def plan_step(batch: Batch, kv: KvBlocks, device: torch.device) -> StepPlan:
    """Plan a batch whose blocks have been grown already."""
    positions: list[int] = []
    slots: list[int] = []
    places = []
    for span in batch.spans:
        start_slot = kv.contiguous_start(span.request_id)
        scattered = None if start_slot is not None else _scattered_slots(span, kv)
        places.append(_place(span, len(positions), start_slot, scattered, device))
        positions += range(span.start, span.end)
        if scattered is not None:
            slots += scattered[span.start :]
        elif start_slot is not None:
            slots += range(start_slot + span.start, start_slot + span.end)
    return StepPlan(
        torch.tensor(positions, device=device), torch.tensor(slots, device=device), places
    )


def _place(
    span: Span,
    row: int,
    start_slot: int | None,
    scattered: list[int] | None,
    device: torch.device,
) -> SpanPlace:
    slots_N = None if scattered is None else torch.tensor(scattered, device=device)
    return SpanPlace(row, span.tokens, span.end, start_slot, slots_N)


def _scattered_slots(span: Span, kv: KvBlocks) -> list[int]:
    slots = [
        block * BLOCK_TOKENS + offset
        for block in kv.table(span.request_id)
        for offset in range(BLOCK_TOKENS)
    ]
    return slots[: span.end]


# -- decode rows that share a call ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Range of keys that one decode row attends to."""

    row: int
    start_slot: int
    tokens: int


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Group of rows attended in one call: row i reads slots [start + i * stride, ... + tokens)."""

    rows: tuple[int, ...]
    start_slot: int
    stride_slots: int
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Keys of the longest row."""
        return max(self.lengths)

    def rows_index(self, device: torch.device) -> slice | torch.Tensor:
        """The rows as a slice where they are neighbours in order, else as an index."""
        first, count = self.rows[0], len(self.rows)
        if self.rows == tuple(range(first, first + count)):
            return slice(first, first + count)
        return torch.tensor(self.rows, device=device)

    def mask(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
        """Additive mask [rows, 1, 1, tokens] that hides what lies behind each end."""
        if min(self.lengths) == self.tokens:
            return None
        lengths = torch.tensor(self.lengths, device=device)
        hidden = torch.arange(self.tokens, device=device)[None] >= lengths[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
        return mask.masked_fill_(hidden, float("-inf"))[:, None, None]


def group_decodes(ranges: Sequence[KeyRange], slots_total: int) -> list[DecodeGroup]:
    """Cut the rows, sorted by slot, into the longest even runs that do not pad too much."""
    remaining = sorted(ranges, key=lambda keys: keys.start_slot)
    groups = []
    while remaining:
        count = _run_length(remaining, slots_total)
        groups.append(_group(remaining[:count]))
        remaining = remaining[count:]
    return groups


def _run_length(ranges: Sequence[KeyRange], slots_total: int) -> int:
    """How many of the first ranges can share a call.

    The longest run, found greedily: a range that does not fit begins the next one.
    """
    count = 1
    while count < len(ranges) and _fits(ranges[: count + 1], slots_total):
        count += 1
    return count


def _fits(ranges: Sequence[KeyRange], slots_total: int) -> bool:
    stride = ranges[1].start_slot - ranges[0].start_slot
    tokens = max(keys.tokens for keys in ranges)
    # Evenly spaced, the last row's padding still inside the pool, and not too much padding in all.
    return (
        stride > 0
        and ranges[-1].start_slot - ranges[-2].start_slot == stride
        and ranges[-1].start_slot + tokens <= slots_total
        and tokens * len(ranges) <= PADDING_MAX * sum(keys.tokens for keys in ranges)
    )


def _group(ranges: Sequence[KeyRange]) -> DecodeGroup:
    stride = ranges[1].start_slot - ranges[0].start_slot if len(ranges) > 1 else 0
    return DecodeGroup(
        rows=tuple(keys.row for keys in ranges),
        start_slot=ranges[0].start_slot,
        stride_slots=stride,
        lengths=tuple(keys.tokens for keys in ranges),
    )
