"""Scores of a prompt's tokens, by which its KV is cut: what its last rows attend to (SnapKV, arXiv
2404.14469; PPIO's sparse KV).

The weights that the last rows give a key are summed over these rows and over the query heads that
share it, and averaged with those of its neighbours. Each kv head chooses for itself: keys are kept
turned by their positions, so those of different tokens may stand in one place.

Computed by torch, in fp32, once for a prompt and layer. To sum the weights inside the kernel that
attends would save the second pass over the keys; no kernel does yet.

Shapes: R rows, H query heads, K kv heads, A head size of keys, P tokens of the prompt, N of them
that are kept.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from molink.engine.memory.attention_math import AttentionVariant
from molink_scheduler.prompt_cut import NEWEST_TOKENS, POOLED_TOKENS, SINK_TOKENS


def key_scores(q_RHA: torch.Tensor, k_PKA: torch.Tensor, variant: AttentionVariant) -> torch.Tensor:
    """Sum of the weights that the last R rows of a prompt give each of its keys, [K, P] in fp32:
    all heads of a group and all rows together weigh R x H / K, learned sinks included."""
    rows, (tokens, kv_heads, _) = len(q_RHA), k_PKA.shape
    position_P = torch.arange(tokens, device=q_RHA.device)
    is_hidden_RP = position_P > position_P[tokens - rows :, None]
    groups = q_RHA.reshape(rows, kv_heads, -1, q_RHA.shape[-1]).unbind(1)
    sinks: Sequence[torch.Tensor | None] = (None,) * kv_heads
    if variant.sinks_H is not None:
        sinks = variant.sinks_H.float().view(kv_heads, -1).unbind()
    # One kv head at a time: all scores of a long prompt at once would take gigabytes.
    return torch.stack(
        [
            _weights(q_RGA, k_PA, sink, is_hidden_RP, variant)
            for q_RGA, k_PA, sink in zip(groups, k_PKA.unbind(1), sinks, strict=True)
        ]
    )


def _weights(
    q_RGA: torch.Tensor,
    k_PA: torch.Tensor,
    sinks_G: torch.Tensor | None,
    is_hidden_RP: torch.Tensor,
    variant: AttentionVariant,
) -> torch.Tensor:
    """The same of one kv head, [P]."""
    scores_GRP = (q_RGA.float().transpose(0, 1) @ k_PA.float().T).mul_(variant.scale)
    if variant.softcap is not None:
        scores_GRP = scores_GRP.div_(variant.softcap).tanh_().mul_(variant.softcap)
    scores_GRP.masked_fill_(is_hidden_RP, -torch.inf)
    if sinks_G is None:
        return torch.softmax(scores_GRP, -1).sum((0, 1))
    sinks_GR1 = sinks_G[:, None, None].expand(-1, scores_GRP.shape[1], 1)
    weights = torch.softmax(torch.cat([scores_GRP, sinks_GR1], -1), -1)
    return weights[..., :-1].sum((0, 1))


def chosen_tokens(scores_KP: torch.Tensor, count: int) -> torch.Tensor:
    """Positions of the tokens that each kv head keeps, ascending, [K, N]: always the first and the
    newest ones, beside them those of the highest scores, each averaged with its neighbours'."""
    reach = POOLED_TOKENS // 2
    pooled_1KP = F.avg_pool1d(scores_KP[None], POOLED_TOKENS, 1, reach, count_include_pad=False)
    pooled_KP = pooled_1KP[0]
    pooled_KP[:, :SINK_TOKENS] = torch.inf
    pooled_KP[:, -NEWEST_TOKENS:] = torch.inf
    return pooled_KP.topk(count, dim=1).indices.sort(dim=1).values
