"""Which rows of a decode batch can be attended in one call?

Attention of one row over a short context is over before the call's own overhead is paid, so eight
sequences should cost one call. Their K and V stand in one pool: where the sequences start at evenly
spaced slots, the pool seen with that spacing is itself the tensor [sequences, tokens], with no
copy. Requests of equal size that were placed side by side fall into this by themselves; any two
sequences always do. The tail of a shorter sequence runs into its neighbour's slots and is masked.

Gathering everybody's tokens into one padded tensor was rejected: the copy costs more than the calls
it saves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["DecodeGroup", "KeyRange", "group_decodes"]

PADDING_MAX = 2.0
"""Key positions that a group may compute per key that counts. Past this a call per sequence is
cheaper.
"""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys that one decode row attends to."""

    row: int
    start_slot: int
    tokens: int


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows attended in one call: row i reads slots [start + i * stride, ... + tokens)."""

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
    """How many of the first ranges can share a call."""
    count = 1
    while count < len(ranges) and _fits(ranges[: count + 1], slots_total):
        count += 1
    return count


def _fits(ranges: Sequence[KeyRange], slots_total: int) -> bool:
    stride = ranges[1].start_slot - ranges[0].start_slot
    tokens = max(keys.tokens for keys in ranges)
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
