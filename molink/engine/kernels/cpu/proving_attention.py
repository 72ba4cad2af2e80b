"""Proof of our attention kernels beside torch's attention: on probes with everything on, and once
more at load, on the queries, keys and values of tokens.

Shapes: T rows of the batch, H query heads, N keys, K kv heads, A head size of keys, V of values.
"""

from collections.abc import Callable, Sequence

import torch

from molink.engine.memory.attention_math import AttentionVariant, attend_packed, causal_mask
from molink.engine.memory.kv_pool import KvPool, LayerKv
from molink.engine.memory.ragged_batch import RaggedBatch, RaggedSpan
from molink.engine.proof import FP32_UNIT, Reference, summed
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for

Attend = Callable[[torch.Tensor, LayerKv, RaggedBatch, int | None, AttentionVariant], torch.Tensor]
"""Attention [T, H, V] of queries [T, H, A] to a layer's keys, in a window."""

LARGE_CHANNELS = 6.0
"""How many times the others some channels of a probe are."""

SCORES = 4.0
"""Errors of scores that attention may have, as keys that are rounded to fp32 once more at random
have them: biases of keys make scores of thousands, whose last digits are large."""

ROUNDED_TIMES = 16
"""How often keys are rounded at random; the largest difference counts. Of three draws all are near
zero in one row of a hundred."""

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
    reference = _reference(query_THA, layer, window, variant, table, keys)
    got_THV = attend(torch.cat([query_THA, query_THA[-1:]]), layer, batch, window, variant)
    last = len(reference.truth) - got_THV.shape[1]
    return reference.trouble(got_THV[:rows]) or reference.trouble(got_THV[rows:], last)


def _reference(
    query_THA: torch.Tensor,
    layer: LayerKv,
    window: int | None,
    variant: AttentionVariant,
    table: tuple[int, ...],
    keys: int,
) -> Reference:
    """Torch's attention of the last rows over a layer's keys, and how far off scores may put it."""
    slots = (torch.tensor(table)[:, None] * BLOCK_TOKENS + torch.arange(BLOCK_TOKENS)).flatten()

    def attended(dtype: torch.dtype, noise: float | torch.Tensor = 0.0) -> torch.Tensor:
        keys_NKA, values_NKV = (
            kept.numbers(dtype)[slots[:keys]] for kept in (layer.keys, layer.values)
        )
        rows = query_THA.to(dtype), keys_NKA * (1 + noise), values_NKV
        return _attended(*rows, window, variant).flatten(0, 1)

    truth, slack = attended(torch.float64), torch.zeros(1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    shape = keys, layer.keys.kv_heads, query_THA.shape[-1]
    for _ in range(ROUNDED_TIMES):
        noise_NKA = torch.randn(shape, generator=generator, dtype=torch.float64) * FP32_UNIT
        slack = slack.maximum((attended(torch.float64, noise_NKA) - truth).abs())
    library = attended(query_THA.dtype)
    return Reference(truth, library, summed(keys) * LARGE_CHANNELS, SCORES * slack)


def _attended(
    query_THA: torch.Tensor,
    keys_NKA: torch.Tensor,
    values_NKV: torch.Tensor,
    window: int | None,
    variant: AttentionVariant,
) -> torch.Tensor:
    """Attention of the last rows over keys as torch computes it; [T, H, V]."""
    tokens, heads, size = query_THA.shape
    keys, kv_heads, _ = keys_NKA.shape
    mask = causal_mask(tokens, keys, window, heads // kv_heads, query_THA.dtype, query_THA.device)
    out_BKRV = attend_packed(
        query_THA.transpose(0, 1).reshape(1, kv_heads, -1, size),
        keys_NKA.transpose(0, 1)[None],
        values_NKV.transpose(0, 1)[None],
        mask,
        variant,
    )
    return out_BKRV.reshape(heads, tokens, -1).transpose(0, 1)
