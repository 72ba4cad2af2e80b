"""Softmax attention of query rows over keys and values, for every variant that architectures ask
for.

Query heads that share a kv head are stacked as rows of one problem ([kv heads, group x rows]): the
keys are read once for all of them, 1.5 times faster on a CPU than repeating them. Plain attention
goes to torch's fused kernel; a softcap on the scores and learned sinks (an extra logit that takes
weight and gives no value) need the scores, and are computed step by step in the order of the
reference implementations.

Shapes: B sequences, T rows, N keys, H query heads, K kv heads, G = H / K, R = G x T, A head size of
keys, V of values.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

__all__ = ["AttentionVariant", "attend_causal", "attend_packed", "causal_mask"]


@dataclass(frozen=True, slots=True)
class AttentionVariant:
    """Scale of a layer's attention, and what it adds to plain attention."""

    scale: float
    softcap: float | None = None
    sinks_H: torch.Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the fused kernel computes it."""
        return self.softcap is None and self.sinks_H is None


def attend_causal(
    q_HTA: torch.Tensor, k_KTA: torch.Tensor, v_KTV: torch.Tensor, scale: float
) -> torch.Tensor:
    """Plain attention of a sequence's first T tokens over themselves, [H, T, V]."""
    return F.scaled_dot_product_attention(
        q_HTA[None],
        k_KTA[None],
        v_KTV[None],
        is_causal=True,
        scale=scale,
        enable_gqa=len(q_HTA) != len(k_KTA),
    )[0]


def attend_packed(
    q_BKRA: torch.Tensor,
    k_BKNA: torch.Tensor,
    v_BKNV: torch.Tensor,
    mask: torch.Tensor | None,
    variant: AttentionVariant,
) -> torch.Tensor:
    """Attention of stacked query rows under an additive mask that broadcasts to [B, K, R, N]; [B,
    K, R, V].
    """
    if variant.is_plain:
        return F.scaled_dot_product_attention(
            q_BKRA, k_BKNA, v_BKNV, attn_mask=mask, scale=variant.scale
        )
    # In the order of the reference implementations: scale, softcap, mask, softmax.
    scores = q_BKRA @ k_BKNA.transpose(-1, -2) * variant.scale
    if variant.softcap is not None:
        scores = torch.tanh(scores / variant.softcap) * variant.softcap
    if mask is not None:
        scores = scores + mask
    weights = _softmax_with_sinks(scores.float(), variant.sinks_H)
    return weights.to(v_BKNV.dtype) @ v_BKNV


def causal_mask(
    rows: int,
    keys: int,
    window: int | None,
    group: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Additive mask [group * rows, keys] for the last `rows` of `keys` positions, head-major like
    the stacked rows.
    """
    # Positions in the sequence: the rows are its last ones.
    key = torch.arange(keys, device=device)[None]
    query = torch.arange(keys - rows, keys, device=device)[:, None]
    hidden = key > query
    if window is not None:
        hidden |= key <= query - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return mask.masked_fill_(hidden, float("-inf")).repeat(group, 1)


def _softmax_with_sinks(scores_BKRN: torch.Tensor, sinks_H: torch.Tensor | None) -> torch.Tensor:
    if sinks_H is None:
        return torch.softmax(scores_BKRN, -1)
    batch, kv_heads, rows, keys = scores_BKRN.shape
    group = len(sinks_H) // kv_heads
    # Stacked rows are head-major, so each head's sink stands before as many rows as it has.
    sinks_KR = sinks_H.float().view(kv_heads, group).repeat_interleave(rows // group, 1)
    sinks = sinks_KR[None, :, :, None].expand(batch, -1, -1, 1)
    # The sink is one more column, which takes its weight and is cut off again.
    return torch.softmax(torch.cat([scores_BKRN, sinks], -1), -1)[..., :keys]
