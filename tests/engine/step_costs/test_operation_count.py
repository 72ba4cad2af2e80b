"""A decode step of sixteen scattered rows launches no more operations than it is known to.

Stages are rewritten as for a card and computed on the meta device, where every launch of a kernel
of ours is counted in its place, as are torch's operations in theirs.
"""

import pytest
import torch

from molink.engine.kernels.cuda.fused_choice import FusedChoice
from molink.engine.model.pruning import decoder_layers
from tests.engine.step_costs.dispatched import OperationCount
from tests.engine.step_costs.meta_stages import (
    card_stage,
    decode,
    fused_stage,
    scatter,
    with_kernel,
)
from tests.engine.tiny_models import ARCHITECTURES, KINDS
from tests.sweeps import swept

ROWS, TOKENS = 16, 40
PERIOD = 2
"""Layers after which kinds of layers come again."""

OWNED = range(2, 2 + 2 * PERIOD)
"""Layers of a stage in the middle of a model; the second half of them is counted."""

CEILINGS = {
    "llama": (12, 15, 27),
    "tied_llama": (12, 15, 27),
    "qwen2": (12, 15, 27),
    "qwen3": (14, 17, 29),
    "mistral": (12, 15, 27),
    "gemma2": (14, 28, 40),
    "gemma3_text": (16, 23, 35),
    "phi3": (12, 15, 29),
    "olmo2": (14, 17, 31),
    "gpt2": (19, 22, 23),
    "opt": (15, 18, 19),
    "mixtral": (19, 22, 46),
    "qwen3_moe": (20, 23, 46),
    "gpt_oss": (16, 36, 72),
    "glm4": (14, 17, 33),
    "gemma4_text": (34.5, 41, 43),
    "hunyuan_v1_moe": (27, 30, 53),
    "deepseek_v3": (62, 62, 76),
}
"""Operations of a layer, the mean over a period: with our kernels, with them but attention by
torch, with torch alone. What lowers them may lower these numbers."""

TO_REACH = {"llama": 20, "gemma2": 30, "gpt_oss": 36}
"""Also where attention is torch's."""


def per_layer(stage, count):
    """Operations of a decode step in the second half of the stage's layers, each."""
    scatter(stage, ROWS, TOKENS)
    decode(stage, ROWS, TOKENS - 1)  # Makes room for KV.
    seen = []
    _, layers = decoder_layers(stage.model)
    counted = layers[OWNED.start + PERIOD], layers[OWNED.stop - 1]
    handles = [
        counted[0].register_forward_pre_hook(lambda *_: seen.append(count.total)),
        counted[1].register_forward_hook(lambda *_: seen.append(count.total)),
    ]
    with count:
        decode(stage, ROWS, TOKENS - 1)
    for handle in handles:
        handle.remove()
    return (seen[1] - seen[0]) / PERIOD


@pytest.mark.parametrize("name", swept(ARCHITECTURES, *KINDS))
def test_a_layer_launches_no_more_than_its_ceilings(name, counting):
    stage = fused_stage(name, OWNED, 12)
    by_torch = per_layer(stage, counting)
    by_kernel = per_layer(with_kernel(stage), counting)
    plain = per_layer(card_stage(name, OWNED, 12, FusedChoice(None)), counting)
    found = (by_kernel, by_torch, plain)
    assert by_kernel > 10 and all(
        n <= most for n, most in zip(found, CEILINGS[name], strict=True)
    ), found
    assert by_torch <= TO_REACH.get(name, by_torch)


def test_what_launches_something_is_counted_and_views_are_not():
    rows = torch.zeros(4, 6, device="meta")
    with torch.inference_mode(), OperationCount() as count:
        rows.view(6, 4).t()[1:].unsqueeze(0)
        torch.nn.functional.linear(rows, rows)
        rows.reshape(-1).add_(1)
        rows.float()
    assert dict(count.by_name) == {"mm": 1, "add_": 1}
