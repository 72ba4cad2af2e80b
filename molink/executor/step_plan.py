"""Where do the rows of a batch stand, and which KV slots do they write and read?

Worked out once per step and used by every layer. A *slot* is the place of one token in the KV pool:
block times 16 plus offset. A sequence whose blocks are neighbours is read as a view; one that is
scattered carries the list of its slots and is gathered.

Shapes: T rows of the batch, N tokens of a sequence.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from molink_scheduler.batch import Batch, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks

__all__ = ["SpanPlace", "StepPlan", "plan_step"]


@dataclass(frozen=True, slots=True)
class SpanPlace:
    """One span of the step."""

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
    """The step's geometry, and what its layers share."""

    positions_T: torch.Tensor
    slots_T: torch.Tensor
    """Where each row's K and V are written."""
    spans: list[SpanPlace]
    _shared: dict[Any, Any] = field(default_factory=dict)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` returns, made once per step for each `key`: masks and groupings depend on no
        layer.
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
