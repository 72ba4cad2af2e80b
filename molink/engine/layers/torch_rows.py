"""Attention of one layer's query rows by torch: where no kernel of ours suits, and what they are
held against.

torch takes one tensor of keys for a call, so a sequence in neighbouring blocks is a view of the
pool, and any other is gathered. On a CPU each span is a call of its own: it reads its keys once and
copies none, which a shared call could not do. On a card what counts is the number of launches:
there decode rows are gathered together, those of about the same length, so that padding stays below
what counts. A recorded step knows no lengths: it gathers whole tables and masks what is behind
their ends.

Shapes: T rows, N keys, H query heads, K kv heads, A head size of keys, V of values, R decode rows
of a call, B blocks of the longest of them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from molink.engine.device.streams import uploaded
from molink.engine.memory.attention_math import (
    AttentionVariant,
    KeyMask,
    attend_causal,
    attend_packed,
    attend_packed_part,
    causal_mask,
)
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.kv_rows import KvRows
from molink.engine.memory.ragged_batch import (
    DecodeTables,
    RaggedBatch,
    RaggedSpan,
)
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for

GATHERED_BLOCKS_MAX = 2**11
"""Blocks that are gathered for one call, at least one row's: 32,768 tokens, 128 MB of an 8B model's
layer."""

Select = Callable[[KvRows, int], KvRows]
"""Takes the rows that a call reads from those of all slots; 0: of keys, 1: of values."""


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Decode rows that share a call."""

    rows_R: torch.Tensor
    blocks: torch.Tensor
    """Blocks of all rows, B each."""
    mask: torch.Tensor
    """Additive, [R, 1, 1, N]: hides what a row does not see of its blocks."""

    @classmethod
    def of(
        cls, spans: Sequence[RaggedSpan], window: int | None, like: torch.Tensor
    ) -> "DecodeRows":
        """Decode rows of queries like these."""
        firsts = [span.first_key(window) for span in spans]
        tables = [
            np.asarray(span.blocks)[first // BLOCK_TOKENS : blocks_for(span.keys)]
            for span, first in zip(spans, firsts, strict=True)
        ]
        blocks_RB = np.zeros((len(spans), max(map(len, tables))), np.int32)
        for row, table in zip(blocks_RB, tables, strict=True):
            row[: len(table)] = table
        hidden = [first % BLOCK_TOKENS for first in firsts]
        ends = [s.keys - n + h for s, n, h in zip(spans, firsts, hidden, strict=True)]
        numbers = np.array([[span.row for span in spans], hidden, ends], np.int32)
        blocks, (rows_R, hidden_R, end_R) = uploaded([blocks_RB.ravel(), numbers], like.device)
        mask = _mask(blocks_RB.shape[1], hidden_R, end_R, like)
        return cls(rows_R.long(), blocks, mask)

    @classmethod
    def over(cls, tables: DecodeTables, window: int | None, like: torch.Tensor) -> "DecodeRows":
        """All rows of a recorded step. One without keys sees the first slot of its table: that
        gives numbers, which nobody reads, and alone a mask that hides everything gives none."""
        end_R = tables.keys_S.clamp(min=1)
        first_R = torch.zeros_like(end_R) if window is None else end_R - window
        mask = _mask(tables.blocks_SB.shape[1], first_R, end_R, like)
        return cls(tables.row_S.long(), tables.blocks_SB.flatten(), mask)


def _mask(
    blocks: int, first_R: torch.Tensor, end_R: torch.Tensor, like: torch.Tensor
) -> torch.Tensor:
    n = torch.arange(blocks * BLOCK_TOKENS, device=like.device)
    is_hidden = (n < first_R[:, None]) | (n >= end_R[:, None])
    mask = torch.zeros(is_hidden.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(is_hidden, float("-inf"))[:, None, None]


@dataclass(frozen=True, slots=True)
class TorchRows:
    """Query rows of one layer's attention call, and what reads their keys and values."""

    batch: RaggedBatch
    q_THA: torch.Tensor
    value_size: int
    numbers: Callable[[Select], tuple[torch.Tensor, torch.Tensor]]
    """Keys [N, K, A] and values [N, K, V] of selected rows."""
    window: int | None
    variant: AttentionVariant
    log_sums_TH: torch.Tensor | None = None
    """Where to put log-sum-exps of the rows, which see some of their keys only; None: they see all
    of them."""

    def attend(
        self, pool: KvPool, *, has_decodes: bool = True, has_pieces: bool = True
    ) -> torch.Tensor:
        """Attend all rows; [T, H, V]. On a CPU those of spans of one row, or of several, may be
        left unwritten."""
        out_THV = self.q_THA.new_empty(*self.q_THA.shape[:2], self.value_size)
        into: tuple[torch.Tensor, ...] = (out_THV,)
        if self.log_sums_TH is not None:
            into = out_THV.zero_(), self.log_sums_TH.fill_(-torch.inf)
        key = ("torch", self.window, self.q_THA.dtype)
        alone, decodes = self.batch.once(key, self._calls)
        for number in alone:
            span = self.batch.spans[number]
            is_wanted = has_decodes if span.rows == 1 else has_pieces
            if not is_wanted or not span.sees_any(self.window):
                continue
            rows = slice(span.row, span.row + span.rows)
            for whole, some in zip(into, self._span(number, span, pool), strict=True):
                whole[rows] = some
        for call in decodes:
            for whole, some in zip(into, self._decodes(call, pool), strict=True):
                whole[call.rows_R] = some
        return out_THV

    def _calls(self) -> tuple[list[int], list[DecodeRows]]:
        """Numbers of the spans that get a call each, and decode rows that share some."""
        if isinstance(self.batch, DecodeTables):
            return [], [DecodeRows.over(self.batch, self.window, self.q_THA)]
        spans = self.batch.spans
        if self.q_THA.device.type == "cpu":
            return list(range(len(spans))), []
        alone = [number for number, span in enumerate(spans) if span.rows > 1]
        decodes = [span for span in spans if span.rows == 1 and span.sees_any(self.window)]
        return alone, list(self._shared(decodes))

    def _shared(self, decodes: Sequence[RaggedSpan]) -> Iterator[DecodeRows]:
        by_size = defaultdict(list)
        for span in decodes:
            seen = blocks_for(span.keys) - span.first_key(self.window) // BLOCK_TOKENS
            by_size[(seen - 1).bit_length()].append(span)
        for size, spans in by_size.items():
            count = max(1, GATHERED_BLOCKS_MAX >> size)
            for first in range(0, len(spans), count):
                yield DecodeRows.of(spans[first : first + count], self.window, self.q_THA)

    def _packed(
        self,
        q_BKRA: torch.Tensor,
        k_BKNA: torch.Tensor,
        v_BKNV: torch.Tensor,
        mask: torch.Tensor | KeyMask | None,
    ) -> tuple[torch.Tensor, ...]:
        """Attention of stacked rows, and their log-sum-exps where these are wanted."""
        if self.log_sums_TH is None:
            return (attend_packed(q_BKRA, k_BKNA, v_BKNV, mask, self.variant),)
        return attend_packed_part(q_BKRA, k_BKNA, v_BKNV, mask, self.variant)

    def _decodes(self, call: DecodeRows, pool: KvPool) -> tuple[torch.Tensor, ...]:
        keys, values = self.numbers(lambda rows, which: pool.gather(rows, call.blocks, which))
        count = len(call.rows_R)
        k_RKNA, v_RKNV = (t.view(count, -1, *t.shape[1:]).transpose(1, 2) for t in (keys, values))
        q_RHA = self.q_THA[call.rows_R]
        q_RKGA = q_RHA.view(count, k_RKNA.shape[1], -1, q_RHA.shape[-1])
        packed = self._packed(q_RKGA, k_RKNA, v_RKNV, call.mask)
        return tuple(one.flatten(1, 2) for one in packed)

    # -- one span ---------------------------------------------------------------------------------

    def _span(self, number: int, span: RaggedSpan, pool: KvPool) -> tuple[torch.Tensor, ...]:
        seen = self.batch.seen(number, self.window)
        numbers = self.numbers(lambda rows, which: pool.read(rows, seen, which))
        k_KNA, v_KNV = (one.transpose(0, 1) for one in numbers)
        q_HTA = self.q_THA[span.row : span.row + span.rows].transpose(0, 1)
        # A prompt's first span attends to itself alone: the fused causal kernel needs no mask.
        is_first = span.keys == span.rows and self.log_sums_TH is None
        if is_first and self.variant.is_plain and (self.window or span.rows) >= span.rows:
            return (attend_causal(q_HTA, k_KNA, v_KNV, self.variant.scale).transpose(0, 1),)
        # Query heads that share a kv head become rows of one problem, which reads the keys once.
        heads, tokens, head_size = q_HTA.shape
        q_KRA = q_HTA.reshape(len(k_KNA), -1, head_size)
        mask = self._span_mask(span, k_KNA.shape[1], heads // len(k_KNA))
        packed = self._packed(q_KRA[None], k_KNA[None], v_KNV[None], mask)
        return tuple(
            one[0].reshape(heads, tokens, *one.shape[3:]).transpose(0, 1) for one in packed
        )

    def _span_mask(self, span: RaggedSpan, keys: int, group: int) -> torch.Tensor | KeyMask | None:
        if span.rows == 1:
            return None
        start = span.start - span.first_key(self.window)
        shape = (span.rows, keys, self.window, group, self.q_THA.dtype, self.q_THA.device)
        if not self.variant.is_plain:
            return lambda part: causal_mask(*shape, part, start=start)
        mask: torch.Tensor = self.batch.once(
            (*shape, start), lambda: causal_mask(*shape, start=start)
        )
        return mask
