"""Random ragged batches for an attention kernel, and what it should give for them.

A batch follows from its number: shape of the heads, format of KV, window, softcap and sinks, and
spans of every kind: decode rows, drafts, whole prompts, continued ones, rows whose keys end before
them, padding. Blocks are scattered over a pool that is poisoned: whatever belongs to nobody is not
a number, so a kernel that reads it, even under a weight of zero, shows it.

Shapes: T rows, N keys, S slots, H query heads, K kv heads, A head size of keys, V of values.
"""

from dataclasses import dataclass
from random import Random

import torch

from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import LayerKv
from molink.engine.memory.kv_rows import KvRows, quantize
from molink.engine.memory.ragged_batch import FEW_SPAN_ROWS, RaggedBatch, RaggedSpan
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for

__all__ = ["BatchSize", "HeadShape", "RandomBatch", "random_batch", "written_out"]


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of a layer."""

    heads: int
    kv_heads: int
    key_size: int
    value_size: int


HEAD_SHAPES = (
    HeadShape(8, 2, 64, 64),
    HeadShape(4, 4, 80, 80),
    HeadShape(6, 2, 96, 96),
    HeadShape(8, 1, 128, 128),
    HeadShape(4, 2, 192, 128),
    HeadShape(4, 1, 256, 256),
    HeadShape(16, 1, 64, 48),
    HeadShape(5, 5, 32, 32),
    HeadShape(3, 1, 24, 40),
    HeadShape(24, 1, 16, 8),
)
"""Each head its own, groups and one for all; sizes of keys and values that differ, that are no
powers of two and that are smaller than a matrix unit; a group larger than a tile of few rows."""

LARGEST = 3.0
"""Of keys and values, so that an error means the same everywhere: between 2 and 4 a unit in the
last place is 0.016 in bfloat16 and 0.002 in float16."""

WINDOWS = (None, None, 1, 7, 24, 40)
SOFTCAPS = (None, None, 5.0, 30.0)


@dataclass(frozen=True, slots=True)
class BatchSize:
    """Largest numbers in a batch."""

    spans: int
    rows: int
    """Of a span."""
    earlier_keys: int
    """Keys of a span before its own rows."""


@dataclass(frozen=True, slots=True)
class RandomBatch:
    """A batch, the pool that it reads, and the layer's variant of attention."""

    q_THA: torch.Tensor
    layer: LayerKv
    spans: tuple[RaggedSpan, ...]
    window: int | None
    variant: AttentionVariant

    def geometry(self, spans: tuple[RaggedSpan, ...] | None = None) -> RaggedBatch:
        """The geometry of these spans, or of all."""
        return RaggedBatch.of(self.spans if spans is None else spans, self.q_THA.device)

    @property
    def summary(self) -> str:
        """What it is, for who looks into a failure."""
        shape = (tuple(self.q_THA.shape), self.layer.keys.kv_heads, self.layer.values.size)
        lengths = [(span.rows, span.start, span.keys) for span in self.spans]
        variant = (self.window, self.variant.softcap, self.variant.sinks_H is not None)
        return f"{shape} {self.layer.keys.rows_SKA.dtype} {variant} {lengths}"


def random_batch(
    number: int, size: BatchSize, dtype: torch.dtype, device: torch.device
) -> RandomBatch:
    """The batch of this number; in each format the same."""
    random = Random(number)
    shape = random.choice(HEAD_SHAPES)
    generator = torch.Generator().manual_seed(number)
    tables, spans = _tables(random, _lengths(random, size))
    slots = BLOCK_TOKENS * (1 + max((b for table in tables for b in table), default=0))
    in_int8 = random.random() < 0.4

    def rows(kv_size: int) -> KvRows:
        exact = torch.randn(slots, shape.kv_heads, kv_size, generator=generator)
        numbers = exact.clamp_(-LARGEST, LARGEST).to(dtype)
        return _poisoned(KvRows(*quantize(numbers)) if in_int8 else KvRows(numbers), spans, device)

    count = sum(span.rows for span in spans)
    q_HTA = torch.randn(shape.heads, count, shape.key_size, generator=generator)
    sinks_H = torch.randn(shape.heads, generator=generator).to(dtype)
    return RandomBatch(
        # The library's queries come strided like this.
        q_HTA.to(device, dtype).transpose(0, 1),
        LayerKv(rows(shape.key_size), rows(shape.value_size)),
        spans,
        random.choice(WINDOWS),
        AttentionVariant(
            shape.key_size**-0.5,
            random.choice(SOFTCAPS),
            sinks_H.to(device) if random.random() < 0.4 else None,
        ),
    )


def _lengths(random: Random, size: BatchSize) -> list[tuple[int, int, int]]:
    """Rows of each span, position of its first row, keys."""
    lengths = []
    for _ in range(random.randint(1, size.spans)):
        rows = random.randint(1, size.rows)
        earlier = random.randint(0, size.earlier_keys)
        few = random.randint(2, FEW_SPAN_ROWS)
        kinds = (
            *[(1, earlier, earlier + 1)] * 4,
            (few, earlier, earlier + few),
            (rows, 0, rows),
            (rows, earlier, earlier + rows),
            (min(rows, few), earlier + 3, earlier),
            (1, 0, 0),
        )
        lengths.append(random.choice(kinds))
    return lengths


def _tables(
    random: Random, lengths: list[tuple[int, int, int]]
) -> tuple[list[tuple[int, ...]], tuple[RaggedSpan, ...]]:
    needed = [blocks_for(keys) for _, _, keys in lengths]
    free = list(range(sum(needed) + 3))
    random.shuffle(free)
    tables = [tuple(free.pop() for _ in range(count)) for count in needed]
    spans, row = [], 0
    for (rows, start, keys), table in zip(lengths, tables, strict=True):
        spans.append(RaggedSpan(row, rows, start, keys, table))
        row += rows
    return tables, tuple(spans)


def _slots(span: RaggedSpan) -> list[int]:
    slots = [block * BLOCK_TOKENS + i for block in span.blocks for i in range(BLOCK_TOKENS)]
    return slots[: span.keys]


def _poisoned(rows: KvRows, spans: tuple[RaggedSpan, ...], device: torch.device) -> KvRows:
    """The rows on their device, with slots that hold no key of a span made not numbers."""
    foreign = torch.ones(len(rows.rows_SKA), dtype=torch.bool)
    for span in spans:
        foreign[_slots(span)] = False
    poisoned = rows.rows_SKA if rows.scales_SK is None else rows.scales_SK
    poisoned[foreign] = float("nan")
    scales = None if rows.scales_SK is None else rows.scales_SK.to(device)
    return KvRows(rows.rows_SKA.to(device), scales)


# -- attention written out ------------------------------------------------------------------------


def written_out(batch: RandomBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention [T, H, V] of the batch and the log-sum-exp [T, H] of its rows, in fp32, span by
    span as the formulas stand."""
    outs, log_sums = zip(*(_of_span(batch, span) for span in batch.spans), strict=True)
    return torch.cat(outs), torch.cat(log_sums)


def _of_span(batch: RandomBatch, span: RaggedSpan) -> tuple[torch.Tensor, torch.Tensor]:
    slots = torch.tensor(_slots(span), dtype=torch.long, device=batch.q_THA.device)
    group = batch.q_THA.shape[1] // batch.layer.keys.kv_heads
    k_NHA, v_NHV = (_numbers(rows, slots, group) for rows in (batch.layer.keys, batch.layer.values))
    q_THA = batch.q_THA[span.row : span.row + span.rows].float()
    scores = torch.einsum("tha,nha->thn", q_THA, k_NHA) * batch.variant.scale
    if batch.variant.softcap is not None:
        scores = torch.tanh(scores / batch.variant.softcap) * batch.variant.softcap
    hidden = _hidden(span, batch.window, scores.device)
    scores = scores.masked_fill(hidden[:, None], float("-inf"))
    if batch.variant.sinks_H is not None:
        sinks = batch.variant.sinks_H.float()[None, :, None].expand(span.rows, -1, 1)
        scores = torch.cat([scores, sinks], -1)
    # The sink takes weight and is cut off again; a row that sees nothing gets zeros.
    weights = torch.softmax(scores, -1)[..., : span.keys].nan_to_num()
    return torch.einsum("thn,nhv->thv", weights, v_NHV), torch.logsumexp(scores, -1)


def _numbers(rows: KvRows, slots: torch.Tensor, group: int) -> torch.Tensor:
    taken = None if rows.scales_SK is None else rows.scales_SK[slots]
    return KvRows(rows.rows_SKA[slots], taken).numbers(torch.float32).repeat_interleave(group, 1)


def _hidden(span: RaggedSpan, window: int | None, device: torch.device) -> torch.Tensor:
    key = torch.arange(span.keys, device=device)[None]
    position = torch.arange(span.start, span.start + span.rows, device=device)[:, None]
    hidden = key > position
    return hidden if window is None else hidden | (key <= position - window)
