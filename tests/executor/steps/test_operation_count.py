"""A decode step of sixteen scattered rows launches no more operations than it is known to."""

import pytest
import torch

from tests.executor.steps.dispatched import OperationCount
from tests.executor.steps.meta_stages import decode, meta_stage, scatter
from tests.executor.tiny_models import ARCHITECTURES

ROWS, TOKENS = 16, 40
PERIOD = 2
"""Layers after which kinds of layers come again."""

CEILINGS = {
    "llama": 44,
    "tied_llama": 44,
    "qwen2": 44,
    "qwen3": 60,
    "mistral": 44,
    "gemma2": 84,
    "gemma3_text": 92,
    "phi3": 45,
    "olmo2": 62,
    "gpt2": 25,
    "opt": 21,
    "mixtral": 62,
    "qwen3_moe": 76,
    "gpt_oss": 90,
    "glm4": 63,
    "gemma4_text": 93.5,
    "hunyuan_v1_moe": 84,
    "deepseek_v3": 106,
}
"""Operations of a layer, the mean over a period. What lowers them may lower these numbers."""


def operations(name: str, layers: int) -> int:
    """Operations of a stage in the middle of a model."""
    stage = meta_stage(name, range(2, 2 + layers), 12)
    scatter(stage, ROWS, TOKENS)
    with OperationCount() as count:
        decode(stage, ROWS, TOKENS - 1)
    return count.total


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_layer_launches_no_more_than_its_ceiling(name):
    per_layer = (operations(name, 2 * PERIOD) - operations(name, PERIOD)) / PERIOD
    assert 10 < per_layer <= CEILINGS[name]


def test_what_launches_something_is_counted_and_views_are_not():
    rows = torch.zeros(4, 6, device="meta")
    with torch.inference_mode(), OperationCount() as count:
        rows.view(6, 4).t()[1:].unsqueeze(0)
        torch.nn.functional.linear(rows, rows)
        rows.reshape(-1).add_(1)
        rows.float()
    assert dict(count.by_name) == {"mm": 1, "add_": 1}
