"""Proof of our attention kernels beside torch's attention: on probes with everything on, and once
more at load, on the queries, keys and values of tokens.

Shapes: T rows of the batch, H query heads, N keys, K kv heads, A head size of keys, V of values.
"""

from collections.abc import Callable, Sequence

import torch

from molink.executor.attention.attention_math import AttentionVariant, attend_packed, causal_mask
from molink.executor.attention.kv_pool import KvPool, LayerKv
from molink.executor.attention.ragged_batch import RaggedBatch, RaggedSpan
from molink.executor.proof import Reference, summed
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for

__all__ = ["PROBE_SLOTS", "Attend", "agrees", "probe_numbers", "rows_trouble"]

Attend = Callable[[torch.Tensor, LayerKv, RaggedBatch, int | None, AttentionVariant], torch.Tensor]
"""Attention [T, H, V] of queries [T, H, A] to a layer's keys, in a window."""

LARGE_CHANNELS = 6.0
"""How many times the others some channels of a probe are."""

PROBE_KEYS = 300
PROBE_TABLE = tuple(range(blocks_for(PROBE_KEYS) - 1, -1, -1))
"""Blocks of the probe's keys, from the end of the pool to its beginning."""

PROBE_SLOTS = len(PROBE_TABLE) * BLOCK_TOKENS


def probe_numbers(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Queries, keys or values of a probe, two channels of each head larger than the others: with
    these scores reach a softcap."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(shape[0]))
    numbers[..., :2] *= LARGE_CHANNELS
    return numbers.to(dtype)


def agrees(attend: Attend, query_THA: torch.Tensor, layers: Sequence[LayerKv]) -> bool:
    """Whether six query heads attend a probe's keys as by torch, plain and with everything on."""
    capped = AttentionVariant(0.2, 5.0, torch.linspace(-1, 4, 6))
    plain = AttentionVariant(query_THA.shape[-1] ** -0.5)
    calls: tuple[tuple[int | None, AttentionVariant], ...] = ((None, plain), (9, capped))
    return all(
        _trouble(attend, query_THA, layer, window, variant, PROBE_TABLE, PROBE_KEYS) is None
        for layer in layers
        for window, variant in calls
    )


def rows_trouble(
    attend: Attend,
    query_THA: torch.Tensor,
    key_TKA: torch.Tensor,
    value_TKV: torch.Tensor,
    window: int | None,
    variant: AttentionVariant,
) -> str | None:
    """Why rows that begin a sequence are not attended as by torch; None: they are, or keys are
    latents that other queries meet. A window and a softcap are tried that these rows reach."""
    if query_THA.shape[-1] != key_TKA.shape[-1]:
        return None
    rows, layer = len(query_THA), KvPool(BLOCK_TOKENS).layer_of(0, key_TKA, value_TKV)
    for kept, given in ((layer.keys, key_TKA), (layer.values, value_TKV)):
        kept.write(torch.arange(rows), given)
    if variant.softcap is not None:
        keys_THA = key_TKA.repeat_interleave(query_THA.shape[1] // key_TKA.shape[1], 1)
        scores = torch.einsum("tha,nha->htn", query_THA.float(), keys_THA.float()) * variant.scale
        reached = min(variant.softcap, float(scores.abs().amax()) / 2)
        variant = AttentionVariant(variant.scale, reached, variant.sinks_H)
    window = window and min(window, rows // 2)
    return _trouble(attend, query_THA, layer, window, variant, (0,), rows)


def _trouble(
    attend: Attend,
    query_THA: torch.Tensor,
    layer: LayerKv,
    window: int | None,
    variant: AttentionVariant,
    table: tuple[int, ...],
    keys: int,
) -> str | None:
    """Why a span of the last rows, or the last one alone, is not attended as torch does."""
    rows = len(query_THA)
    spans = (
        RaggedSpan(0, rows, keys - rows, keys, table),
        RaggedSpan(rows, 1, keys - 1, keys, table),
    )
    batch = RaggedBatch.of(spans, query_THA.device)
    truth, library = (
        _attended(query_THA.to(dtype), layer, window, variant, table, keys).flatten(0, 1)
        for dtype in (torch.float64, query_THA.dtype)
    )
    reference = Reference(truth, library, summed(keys) * LARGE_CHANNELS)
    got_THV = attend(torch.cat([query_THA, query_THA[-1:]]), layer, batch, window, variant)
    last = len(truth) - got_THV.shape[1]
    return reference.trouble(got_THV[:rows]) or reference.trouble(got_THV[rows:], last)


def _attended(
    query_THA: torch.Tensor,
    layer: LayerKv,
    window: int | None,
    variant: AttentionVariant,
    table: tuple[int, ...],
    keys: int,
) -> torch.Tensor:
    """What torch gives for the last rows over keys; [T, H, V]."""
    slots = (torch.tensor(table)[:, None] * BLOCK_TOKENS + torch.arange(BLOCK_TOKENS)).flatten()
    tokens, heads, size = query_THA.shape
    kv_heads, dtype = layer.keys.kv_heads, query_THA.dtype
    keys_NKA, values_NKV = (
        rows.numbers(dtype)[slots[:keys]] for rows in (layer.keys, layer.values)
    )
    mask = causal_mask(tokens, keys, window, heads // kv_heads, dtype, query_THA.device)
    out_BKRV = attend_packed(
        query_THA.transpose(0, 1).reshape(1, kv_heads, -1, size),
        keys_NKA.transpose(0, 1)[None],
        values_NKV.transpose(0, 1)[None],
        mask,
        variant,
    )
    return out_BKRV.reshape(heads, tokens, -1).transpose(0, 1)
