"""Scores of a prompt's tokens are those of SnapKV as kvpress computes them, of models of the
library's.

kvpress wants older libraries than we do, and patches the library's attention as it is imported. So
its rule (SnapKVPress of kvpress 0.5.5) is written out here, and where it was unpacked

    pip install --no-deps --target DIR kvpress
    PYTHONPATH=DIR python -m pytest tests/engine/memory/test_key_scores.py

its own class is asked too. What differs on purpose: it keeps all rows that score, scores only what
stands before them, and pools with zeros beyond its ends; we keep the newest 16 and the first four,
score the other rows too, and average what there is.
"""

import importlib.util
import sys
from dataclasses import dataclass
from types import ModuleType
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from transformers import DynamicCache

from molink.engine.memory import prompt_cuts
from molink.engine.memory.key_scores import chosen_tokens, key_scores
from molink_scheduler.prompt_cut import POOLED_TOKENS, SCORED_ROWS, WHOLE_LAYERS
from tests.engine.ring_driver import Job, RingDriver, load_stages
from tests.engine.step.test_prompt_cuts import PROMPT_TOKENS, prompt_of, sampling
from tests.engine.tiny_models import LAYERS, save_tiny

INNER = slice(POOLED_TOKENS // 2, PROMPT_TOKENS - SCORED_ROWS - POOLED_TOKENS // 2)
"""Tokens whose neighbours all stand before the rows that score."""


class WrittenOut:
    """Attention of each head's last queries, in means over them, pooled, in means over a group."""

    def __init__(self, window_size: int, kernel_size: int) -> None:
        self.rows, self.pooled = window_size, kernel_size

    def score(self, module, hidden_states, keys, values, attentions, kwargs) -> torch.Tensor:
        _, kv_heads, tokens, size = keys.shape
        q = module.q_proj(hidden_states[0, -self.rows :]).unflatten(-1, (-1, size)).transpose(0, 1)
        q = module.q_norm(q) if hasattr(module, "q_norm") else q
        cos, sin = (one[0, -self.rows :] for one in kwargs["position_embeddings"])
        near, far = q.chunk(2, -1)
        q = q * cos + torch.cat([-far, near], -1) * sin
        k = keys[0].repeat_interleave(len(q) // kv_heads, 0)
        is_hidden = torch.ones(self.rows, tokens).triu(tokens - self.rows + 1).bool()
        scores = (q @ k.mT / size**0.5).masked_fill(is_hidden, -torch.inf)
        means = torch.softmax(scores, -1)[..., : -self.rows].mean(1)
        pooled = F.avg_pool1d(means[None], self.pooled, 1, self.pooled // 2)[0]
        return pooled.unflatten(0, (kv_heads, -1)).mean(1)[None]


def of_kvpress(monkeypatch) -> type:
    """Its class, without what else its package imports and patches."""
    found = importlib.util.find_spec("kvpress")
    if found is None:
        pytest.skip("kvpress is not there")
    package = ModuleType("kvpress")
    package.__path__ = list(found.submodule_search_locations)
    monkeypatch.setitem(sys.modules, "kvpress", package)
    return importlib.import_module("kvpress.presses.snapkv_press").SnapKVPress


@dataclass
class Pressed:
    """What a press makes of each layer of a prompt."""

    press: WrittenOut

    def scores(self, model, prompt: list[int]) -> list[torch.Tensor]:
        """Of the layers that are cut, [kv heads, tokens]."""
        found, hooks = list[torch.Tensor](), []

        def score(module, _, kwargs, __):
            layer = kwargs["past_key_values"].layers[module.layer_idx]
            given = kwargs["hidden_states"], layer.keys, layer.values, None, kwargs
            found.append(self.press.score(module, *given)[0])

        for layer in model.model.layers[WHOLE_LAYERS:]:
            hooks.append(layer.self_attn.register_forward_hook(score, with_kwargs=True))
        with torch.no_grad():
            model(input_ids=torch.tensor([prompt]), past_key_values=DynamicCache())
        for hook in hooks:
            hook.remove()
        return found


def of_a_stage(directory, prompt: list[int]) -> list[torch.Tensor]:
    """What the product chooses by in the same layers."""
    found = list[torch.Tensor]()

    def seen(*given):
        found.append(key_scores(*given))
        return found[-1].clone()

    with patch.object(prompt_cuts, "key_scores", seen):
        stages = load_stages(directory, (0, LAYERS))
        RingDriver(stages, span_tokens=50).run([Job(1, prompt, 2, sampling(0.5))])
    return found


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("press", [lambda _: WrittenOut, of_kvpress], ids=["rule", "kvpress"])
def test_a_stage_scores_and_chooses_as_snapkv_does(press, name, tmp_path, monkeypatch):
    model, prompt = save_tiny(name, tmp_path), prompt_of(0)
    pressed = Pressed(press(monkeypatch)(window_size=SCORED_ROWS, kernel_size=POOLED_TOKENS))
    ours, theirs = of_a_stage(tmp_path, prompt), pressed.scores(model, prompt)
    assert len(ours) == len(theirs) == LAYERS - WHOLE_LAYERS
    config = model.config
    weights = SCORED_ROWS * config.num_attention_heads // config.num_key_value_heads
    for scores_KP, wanted_KP in zip(ours, theirs, strict=True):
        means_KP = F.avg_pool1d(scores_KP[None], POOLED_TOKENS, 1, POOLED_TOKENS // 2)[0] / weights
        torch.testing.assert_close(means_KP[:, INNER], wanted_KP[:, INNER], rtol=1e-3, atol=1e-6)
        for kept, wanted in zip(chosen_tokens(scores_KP, 75).tolist(), wanted_KP, strict=True):
            inner = {at for at in kept if max(INNER.start, 4) <= at < INNER.stop}
            best = wanted[: INNER.stop].clone()
            best[: max(INNER.start, 4)] = -1
            assert inner == set(best.topk(len(inner)).indices.tolist())
