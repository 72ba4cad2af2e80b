"""A prompt's KV cut by the library's own model: one pass over all tokens, in which rows behind the
prompt do not see what was left out.

Written out from the papers, and sharing nothing with the product: no pool, no blocks, no places.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

NAME = "cut_reference"
AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)


@dataclass
class Cut:
    prompt: int
    kept: int
    whole: int = 3
    rows: int = 32
    scores: dict[int, torch.Tensor] = field(default_factory=dict)
    """Of each layer that is cut, [kv heads, prompt]."""
    kept_of: dict[int, torch.Tensor] = field(default_factory=dict)

    def attend(
        self, module, query, key, value, mask=None, scaling=None, sliding_window=None,
        softcap=None, s_aux=None, **_,
    ):  # fmt: skip
        q, k, v = query[0].double(), key[0].double(), value[0].double()
        heads, tokens, size = q.shape
        group = heads // len(k)
        keys, values = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        scores = q @ keys.mT * (size**-0.5 if scaling is None else scaling)
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        row, column = torch.arange(tokens)[:, None], torch.arange(tokens)[None]
        hidden = column > row
        if sliding_window:
            hidden = hidden | (column <= row - sliding_window)
        scores = scores.masked_fill(hidden, -torch.inf)
        if module.layer_idx >= self.whole and not sliding_window and tokens >= self.prompt:
            gone = self.left_out(module.layer_idx, softmax(scores, s_aux), len(k))
            for head in range(heads):
                scores[head, self.prompt :, : self.prompt].masked_fill_(
                    gone[head // group], -torch.inf
                )
        out = softmax(scores, s_aux) @ values
        return out.to(query.dtype).transpose(0, 1)[None], None

    def left_out(self, layer: int, weights: torch.Tensor, kv_heads: int) -> torch.Tensor:
        last = weights[:, self.prompt - self.rows : self.prompt, : self.prompt]
        sums = last.unflatten(0, (kv_heads, -1)).sum((1, 2))
        self.scores[layer] = sums
        gone = torch.ones(kv_heads, self.prompt, dtype=torch.bool)
        for head in range(kv_heads):
            means = [sums[head, max(0, at - 2) : at + 3].mean().item() for at in range(self.prompt)]
            always = {*range(4), *range(self.prompt - 16, self.prompt)}
            others = sorted(set(range(self.prompt)) - always, key=lambda at: -means[at])
            gone[head, [*always, *others[: self.kept - len(always)]]] = False
        self.kept_of[layer] = ~gone
        return gone


def softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    if sinks is None:
        return torch.softmax(scores, -1)
    extra = sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.softmax(torch.cat([scores, extra], -1), -1)[..., :-1]


@contextmanager
def cutting(model, cut: Cut):
    """Let the library's model attend as `cut` says."""
    before = model.config._attn_implementation
    AttentionInterface.register(NAME, cut.attend)
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


@torch.no_grad()
def generate_cut(model, prompt: list[int], tokens: int, cut: Cut) -> list[int]:
    """The answer, greedily; its first token is the whole prompt's."""
    known = list(prompt)
    with cutting(model, cut):
        for _ in range(tokens):
            logits = model(input_ids=torch.tensor([known]), use_cache=False).logits
            known.append(logits[0, -1].argmax().item())
    return known[len(prompt) :]
