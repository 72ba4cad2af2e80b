"""Attention in parts: rows attend to keys that lie in several places, and the results are joined
as if all keys had been in one.

A part is what attention gives over some of the keys, normalised, and its log-sum-exp, which says
how much these keys weigh. The softmax of the log-sum-exps weighs the parts: this is exact for any
partition of the keys. Learned sinks are one more score that takes weight and gives no value: they
count once, where the parts are joined, and no part has them. Sums of floats depend on their order,
so parts are joined in the order of their keys, not in that of their arrival.

Latent rows have no parts: what a token keeps there is so small that nobody needs another place for
it, and their spans attend to keys that are made for them.

Shapes: T rows, H query heads, V size of values, P parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from molink.engine.kernels.cpu.native_join import join_by_kernel
from molink.engine.layers.attention_choice import AttentionChoice
from molink.engine.layers.latent_attention import LatentRows
from molink.engine.layers.layer_rows import LayerRows
from molink.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class Part:
    """Attention of rows to some of their keys."""

    order: int
    """Position of the first key, or any number by which parts stand in the order of their keys."""
    out_THV: torch.Tensor
    """Normalised; zeros where a row sees none of the keys."""
    log_sums_TH: torch.Tensor
    """Natural logarithm of the sum of the exponentials of the scores, without sinks, in fp32; -inf
    where a row sees none of the keys."""


def attend_part(
    rows: LayerRows | LatentRows, order: int, choice: AttentionChoice | None = None
) -> Part:
    """Attention of rows to a batch that holds some of their keys (`RaggedSpan.over_blocks`), by the
    kernels that compute them where it holds all. Rows of no span get what those get that see
    nothing. Raises UnsupportedModelError for latent rows."""
    if isinstance(rows, LatentRows):
        raise UnsupportedModelError(
            "layers with latent attention keep their KV in one place: it is small, and rows attend "
            "to keys that are made from all of it"
        )
    if choice is None or choice.kernels is None:
        return Part(order, *rows.attend_part())
    call = rows.window, rows.variant.without_sinks
    kernels = choice.kernels_for(rows.q_THA, rows.layer, *call, is_part=True)
    if kernels is None:
        return Part(order, *rows.attend_part())
    attended = kernels.attend(rows.q_THA, rows.layer, rows.batch, *call, log_sums=True)
    assert attended.log_sums_TH is not None
    return Part(order, attended.out_THV, attended.log_sums_TH)


def joined(parts: Sequence[Part], sinks_H: torch.Tensor | None) -> torch.Tensor:
    """Attention [T, H, V] to the keys of all parts, in their number format: computed in fp32 and
    rounded once. A row that sees no key at all gets zeros."""
    parts = sorted(parts, key=lambda part: part.order)
    outs, log_sums = [part.out_THV for part in parts], [part.log_sums_TH for part in parts]
    by_kernel = join_by_kernel(outs, log_sums, sinks_H)
    return _joined(outs, log_sums, sinks_H) if by_kernel is None else by_kernel


def _joined(
    outs: Sequence[torch.Tensor], log_sums: Sequence[torch.Tensor], sinks_H: torch.Tensor | None
) -> torch.Tensor:
    """The same by torch: on a card, and where there is no compiler."""
    log_sums_PTH = torch.stack(list(log_sums))
    if sinks_H is not None:
        sinks_1TH = sinks_H.float().expand_as(log_sums_PTH[:1])
        log_sums_PTH = torch.cat([log_sums_PTH, sinks_1TH])
    highest_TH = log_sums_PTH.amax(0)
    # Where nothing is seen: -inf less -inf is no number.
    highest_TH.masked_fill_(highest_TH == -torch.inf, 0.0)
    weights_PTH = (log_sums_PTH - highest_TH).exp_()
    total_TH = weights_PTH.sum(0).clamp_(min=1e-30)
    out_THV = torch.zeros_like(outs[0], dtype=torch.float32)
    for some_THV, weights_TH in zip(outs, weights_PTH / total_TH, strict=False):
        out_THV.addcmul_(some_THV.float(), weights_TH[..., None])
    return out_THV.to(outs[0].dtype)
