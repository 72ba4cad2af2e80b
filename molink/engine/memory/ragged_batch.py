"""Geometry of a ragged batch over a paged pool: what attention needs to know, as integers on its
device.

A decode row is a span of one row, a piece of a prompt a span of many; both read the KV blocks that
their table names, so scattered and neighbouring blocks cost the same and nothing is gathered. All
of it is made once per step, in one upload, and read by every layer: by the kernels of cards
(`kernels.cuda`) and of CPUs (`kernels.cpu.native_attention`), and by torch where neither suits.

A program of a kernel computes one *tile*: some neighbouring rows of one span, with all query heads
that share a kv head. Spans of few rows split their keys over several programs, whose parts are
merged; spans of many rows fill a card without that. Which of the two a span is depends on the span
alone, so that what a row gets does not depend on what else is in the batch.

Positions are counted from the first key of a span's table. Keys of a span may end before its rows
begin: rows then see all of them, as they do where another machine holds the beginning of a context.

Shapes: S spans, B blocks of the longest table, P tiles, M rows whose parts are merged.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch

from molink.engine.device.streams import uploaded
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from molink_scheduler.prompt_cut import PromptCut

FEW_SPAN_ROWS = 8
"""Spans of at most so many rows split their keys: decode, and drafts that are checked."""


@dataclass(frozen=True, slots=True)
class RaggedSpan:
    """Neighbouring rows of a batch that belong to one sequence."""

    row: int
    """First row of the span in the batch."""
    rows: int
    start: int
    """Position of its first row."""
    keys: int
    """Keys that its table holds; 0: its rows are padding and get zeros."""
    blocks: Sequence[int]
    """KV blocks of the keys, in order."""

    def first_key(self, window: int | None) -> int:
        """First position that any of its rows can see."""
        return 0 if window is None else max(0, self.start - window + 1)

    def sees_any(self, window: int | None) -> bool:
        """Whether its table holds a key that any of its rows can see."""
        return self.keys > self.first_key(window)

    def over_blocks(self, held: Sequence[int]) -> "RaggedSpan":
        """Span of the same rows over some blocks of its table alone, those of these places in it,
        in order. In a window they have to be neighbours, as positions are counted from the first
        of them; none: its rows see nothing. Blocks from its first row's on stay together."""
        if not held:
            return replace(self, keys=0, blocks=())
        gone = BLOCK_TOKENS * (held[-1] + 1 - len(held))
        assert gone <= self.start, "the rows' own keys lie in one place"
        keys = min(self.keys, BLOCK_TOKENS * (held[-1] + 1)) - gone
        blocks = [self.blocks[place] for place in held]
        return replace(self, start=self.start - gone, keys=keys, blocks=blocks)

    def behind_cut(self, cut: PromptCut) -> "RaggedSpan":
        """Span of the same rows, all behind a cut, over what is kept."""
        start, keys = self.start - cut.moved_tokens, self.keys - cut.moved_tokens
        return replace(self, start=start, keys=keys, blocks=self.blocks[cut.whole_blocks :])

    def over_copy(self, first: int) -> "RaggedSpan":
        """Span of the same rows, alone, over a copy of their keys that begins at position
        `first`."""
        keys = self.keys - first
        return RaggedSpan(0, self.rows, self.start - first, keys, range(blocks_for(keys)))


@dataclass(frozen=True, slots=True)
class SeenKeys:
    """Place of the keys that the rows of a span see, for who reads them in one piece."""

    blocks_B: torch.Tensor | None
    """Blocks to gather; None where they are neighbours, and so a piece already."""
    slots: slice
    """Slots in the gathered blocks, or in the pool."""


@dataclass(frozen=True, slots=True)
class TileRows:
    """Rows of a span that a tile takes, by the kind of span."""

    few: int
    many: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """Programs of one launch: the span of each, and its first row in that span."""

    span_P: torch.Tensor
    row_P: torch.Tensor

    def __len__(self) -> int:
        return len(self.span_P)


@dataclass(frozen=True, slots=True)
class SplitTiles:
    """Tiles of a batch: those that split their keys, and those that walk them."""

    few: Tiles
    part_P: torch.Tensor
    """Place of each few tile's first row among the rows whose parts are merged."""
    merged_M: torch.Tensor
    """Rows of the batch whose parts are merged."""
    many: Tiles

    @classmethod
    def of(cls, sent: Iterator[torch.Tensor]) -> "SplitTiles":
        """Tiles from what `host_tiles` made: the next six tensors of those sent to the device."""
        few_span, few_row, part_P, merged_M, many_span, many_row = islice(sent, 6)
        return cls(Tiles(few_span, few_row), part_P, merged_M, Tiles(many_span, many_row))


@dataclass(frozen=True)
class RaggedBatch:
    """Spans of a batch as int32 tensors on their device."""

    spans: tuple[RaggedSpan, ...]
    """Spans on the host: they say what is launched, and what torch is called for."""
    row_S: torch.Tensor
    """First row of each span in the batch."""
    rows_S: torch.Tensor
    start_S: torch.Tensor
    """Position of each span's first row."""
    keys_S: torch.Tensor
    blocks_SB: torch.Tensor
    _shared: dict[Hashable, Any] = field(init=False, default_factory=dict)

    @classmethod
    def of(cls, spans: Sequence[RaggedSpan], device: torch.device) -> "RaggedBatch":
        """The geometry of these spans."""
        geometry = host_geometry(spans)
        return cls(tuple(spans), *uploaded(geometry, device))

    @cached_property
    def has_decodes(self) -> bool:
        """Whether any span is a single row."""
        return any(span.rows == 1 for span in self.spans)

    @cached_property
    def has_pieces(self) -> bool:
        """Whether any span has several rows."""
        return any(span.rows > 1 for span in self.spans)

    def covers(self, rows: int) -> bool:
        """Whether each of so many rows belongs to a span."""
        return sum(span.rows for span in self.spans) == rows

    @property
    def tile_sizes(self) -> tuple[TileRows, ...]:
        """Sizes of the tiles into which it has been cut."""
        return tuple(key for key in self._shared if isinstance(key, TileRows))

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what `make` made, once for each `key`: tiles and masks are alike in all layers."""
        made = self._shared.get(key)
        if made is None:
            made = self._shared[key] = make()
        return made

    def seen(self, number: int, window: int | None) -> SeenKeys:
        """Keys that the rows of span `number` see."""
        seen: SeenKeys = self.once(("seen", number, window), lambda: self._seen(number, window))
        return seen

    def _seen(self, number: int, window: int | None) -> SeenKeys:
        span = self.spans[number]
        first, end = span.first_key(window), blocks_for(span.keys)
        begin, offset = divmod(first, BLOCK_TOKENS)
        blocks = np.asarray(span.blocks)[begin:end]
        if is_piece := bool((np.diff(blocks) == 1).all()):
            offset += int(blocks[0]) * BLOCK_TOKENS
        slots = slice(offset, offset + span.keys - first)
        return SeenKeys(None if is_piece else self.blocks_SB[number, begin:end], slots)

    def tiles(self, size: TileRows) -> SplitTiles:
        """The batch cut into tiles of this size."""
        tiles: SplitTiles = self.once(size, lambda: self._cut(size))
        return tiles

    def _cut(self, size: TileRows) -> SplitTiles:
        return SplitTiles.of(iter(uploaded(host_tiles(self.spans, size), self.row_S.device)))


@dataclass(frozen=True)
class DecodeTables(RaggedBatch):
    """Batch of one row for each span, told by tensors alone, which a recorded step
    (`step.graphs`) reads anew each time. Of its spans the host knows nothing but the number."""

    @classmethod
    def over(
        cls, start_S: torch.Tensor, keys_S: torch.Tensor, blocks_SB: torch.Tensor
    ) -> "DecodeTables":
        """The rows of a step in order."""
        row_S = torch.arange(len(keys_S), dtype=torch.int32, device=keys_S.device)
        return cls((), row_S, torch.ones_like(row_S), start_S, keys_S, blocks_SB)

    def _cut(self, size: TileRows) -> SplitTiles:
        none = self.row_S[:0]
        few = Tiles(self.row_S, torch.zeros_like(self.row_S))
        return SplitTiles(few, self.row_S, self.row_S, Tiles(none, none))


def host_geometry(spans: Sequence[RaggedSpan]) -> list[np.ndarray]:
    """First row, rows, start and keys of the spans, and their tables, zeros behind the ends."""
    numbers = [(span.row, span.rows, span.start, span.keys) for span in spans]
    columns = np.array(numbers, np.int32).reshape(-1, 4).T
    blocks_SB = np.zeros((len(spans), max(len(span.blocks) for span in spans)), np.int32)
    for table, span in zip(blocks_SB, spans, strict=True):
        table[: len(span.blocks)] = span.blocks
    return [*columns, blocks_SB]


def host_tiles(spans: Sequence[RaggedSpan], size: TileRows) -> list[np.ndarray]:
    """Tiles of the spans, as `SplitTiles.of` takes them from the device."""
    few: list[tuple[int, int]] = []
    many: list[tuple[int, int]] = []
    parts: list[int] = []
    merged: list[int] = []
    for number, span in enumerate(spans):
        if span.rows > FEW_SPAN_ROWS:
            many += [(number, row) for row in range(0, span.rows, size.many)]
            continue
        for row in range(0, span.rows, size.few):
            few.append((number, row))
            parts.append(len(merged) + row)
        merged += range(span.row, span.row + span.rows)
    lists = [*_columns(few), parts, merged, *_columns(many)]
    return [np.array(numbers, np.int32) for numbers in lists]


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [first for first, _ in pairs], [second for _, second in pairs]
