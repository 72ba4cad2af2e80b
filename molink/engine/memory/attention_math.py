"""Softmax attention of query rows over keys and values, for every variant that architectures ask
for.

Query heads that share a kv head are stacked as rows of one problem ([kv heads, group x rows]): the
keys are read once for all of them, 1.5 times faster on a CPU than repeating them. Plain attention
goes to torch's fused kernel; a softcap on the scores and learned sinks (an extra logit that takes
weight and gives no value) need the scores, and are computed step by step in the order of the
reference implementations, over some keys at a time. Two results over different keys are joined by
the logarithms of their sums of exponentials. So memory does not grow with the context: the scores
of a span of 512 rows over 32,000 keys would take gigabytes.

Shapes: B sequences, T rows, N keys, H query heads, K kv heads, G = H / K, R = G x T, A head size of
keys, V of values.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

KeyMask = Callable[[slice], torch.Tensor]
"""Additive mask of some of the keys, made when they are looked at."""

SCORES_MAX = 2**23
"""Scores that are there at a time: 32 MB, several times over while they become weights."""

SCORE_MIN = -1e30
"""Score of a hidden key: weighs nothing beside any that is seen. Not -inf, of which alone softmax
makes no numbers."""

KEYS_MIN = 64
"""Keys that are looked at together, however many the rows are."""


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

    @property
    def without_sinks(self) -> "AttentionVariant":
        """The variant for some of a row's keys: sinks count where parts are joined."""
        return self if self.sinks_H is None else replace(self, sinks_H=None)


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
    mask: torch.Tensor | KeyMask | None,
    variant: AttentionVariant,
) -> torch.Tensor:
    """Attention of stacked query rows under an additive mask that broadcasts to [B, K, R, N]; [B,
    K, R, V]. Plain attention takes a mask as a tensor only.
    """
    if variant.is_plain:
        assert mask is None or isinstance(mask, torch.Tensor)
        return F.scaled_dot_product_attention(
            q_BKRA, k_BKNA, v_BKNV, attn_mask=mask, scale=variant.scale
        )
    out_BKRV, log_sums = _in_pieces(q_BKRA, k_BKNA, v_BKNV, mask, variant)
    if variant.sinks_H is not None:
        assert log_sums is not None
        # A sink is one more score, that takes weight and gives no value.
        out_BKRV = out_BKRV * torch.sigmoid(log_sums - _sinks_of_rows(variant.sinks_H, log_sums))
    return out_BKRV.to(v_BKNV.dtype)


def attend_packed_part(
    q_BKRA: torch.Tensor,
    k_BKNA: torch.Tensor,
    v_BKNV: torch.Tensor,
    mask: torch.Tensor | KeyMask | None,
    variant: AttentionVariant,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention [B, K, R, V] of stacked query rows to some of their keys, computed in fp32, and the
    natural logarithm of the sum of each row's exponentials [B, K, R]: zeros and -inf for a row that
    sees none of these keys. Sinks are left to who joins the parts."""
    rows = (q_BKRA.float(), k_BKNA, v_BKNV, mask, variant.without_sinks)
    out_BKRV, log_sums = _in_pieces(*rows, is_part=True)
    assert log_sums is not None
    is_blind = log_sums < SCORE_MIN / 2
    log_sums = log_sums.masked_fill(is_blind, -torch.inf)[..., 0]
    return out_BKRV.masked_fill(is_blind, 0.0).to(v_BKNV.dtype), log_sums


def _in_pieces(
    q_BKRA: torch.Tensor,
    k_BKNA: torch.Tensor,
    v_BKNV: torch.Tensor,
    mask: torch.Tensor | KeyMask | None,
    variant: AttentionVariant,
    *,
    is_part: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention over as many keys at a time as `SCORES_MAX` allows, without sinks."""
    keys, step = k_BKNA.shape[2], max(KEYS_MIN, SCORES_MAX // q_BKRA[..., 0].numel())
    is_all, result = step >= keys and not is_part, None
    for first in range(0, keys, step):
        part = slice(first, min(first + step, keys))
        hidden = mask[..., part] if isinstance(mask, torch.Tensor) else mask and mask(part)
        of = k_BKNA[:, :, part], v_BKNV[:, :, part]
        k_BKPA, v_BKPV = (one.float() for one in of) if is_part else of
        piece = _attend_some(q_BKRA, k_BKPA, v_BKPV, hidden, variant, is_all=is_all)
        result = piece if result is None else _joined(result, piece)
    assert result is not None, "rows see a key at least"
    return result


def _attend_some(
    q_BKRA: torch.Tensor,
    k_BKNA: torch.Tensor,
    v_BKNV: torch.Tensor,
    mask: torch.Tensor | None,
    variant: AttentionVariant,
    *,
    is_all: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention to some of the keys, and the logarithm of the sum of each row's exponentials [B,
    K, R, 1]; None where these are all keys and nothing is weighed against them."""
    # In the order of the reference implementations: scale, softcap, mask, softmax.
    scores = (q_BKRA @ k_BKNA.transpose(-1, -2)).float()
    if variant.softcap is not None:
        scores = scores.mul_(variant.scale / variant.softcap).tanh_().mul_(variant.softcap)
        scores = scores if mask is None else scores.add_(mask)
    elif mask is not None:
        scores = torch.add(mask, scores, alpha=variant.scale)
    else:
        scores = scores.mul_(variant.scale)
    if mask is not None and not is_all:
        scores = scores.clamp_(min=SCORE_MIN)  # A row may see none of these keys.
    weights = torch.softmax(scores, -1)
    if is_all and variant.sinks_H is None:
        return weights.to(v_BKNV.dtype) @ v_BKNV, None
    # The largest weight is the exponential of the largest score less that logarithm.
    log_sums = scores.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log_()
    return weights.to(v_BKNV.dtype) @ v_BKNV, log_sums


def _joined(
    one: tuple[torch.Tensor, torch.Tensor | None], other: tuple[torch.Tensor, torch.Tensor | None]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to the keys of both."""
    (one_BKRV, one_sums), (other_BKRV, other_sums) = one, other
    assert one_sums is not None and other_sums is not None
    share = torch.sigmoid(other_sums - one_sums)
    out_BKRV = one_BKRV.float().lerp(other_BKRV.float(), share)
    return out_BKRV, torch.logaddexp(one_sums, other_sums)


def _sinks_of_rows(sinks_H: torch.Tensor, log_sums: torch.Tensor) -> torch.Tensor:
    # Stacked rows are head-major, so each head's sink stands before as many rows as it has.
    _, kv_heads, rows, _ = log_sums.shape
    sinks_KG = sinks_H.float().view(kv_heads, -1)
    return sinks_KG.repeat_interleave(rows // sinks_KG.shape[1], 1)[None, :, :, None]


def causal_mask(
    rows: int,
    keys: int,
    window: int | None,
    group: int,
    dtype: torch.dtype,
    device: torch.device,
    part: slice = slice(None),
    start: int | None = None,
) -> torch.Tensor:
    """Additive mask [group * rows, keys] for rows from position `start` on (None: the last ones)
    over `keys` positions, head-major like the stacked rows; of some keys only where `part` says so.
    """
    start = keys - rows if start is None else start
    key = torch.arange(*part.indices(keys), device=device)[None]
    query = torch.arange(start, start + rows, device=device)[:, None]
    hidden = key > query
    if window is not None:
        hidden |= key <= query - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return mask.masked_fill_(hidden, float("-inf")).repeat(group, 1)
