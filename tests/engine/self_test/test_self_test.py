"""The self-test lets through what is exact in stages, and nothing else."""

import time
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig
from transformers.models.cohere import modeling_cohere
from transformers.models.qwen2 import modeling_qwen2

from molink.checkpoint.description import ModelDescription, describe
from molink.engine.layers.attention_function import ATTENTION_NAME
from molink.engine.layers.experts import EXPERTS_NAME
from molink.engine.self_test import self_test
from molink.engine.self_test.self_test import check_architecture
from molink.errors import UnsupportedModelError
from tests.engine.cpu_stages import cpu_stage
from tests.engine.tiny_models import save_tiny

FULL_SIZE = (
    "llama",
    "gemma2",
    "gemma3_text",
    "phi3",
    "gpt_oss",
    "deepseek_v3",
    "qwen2_moe",
    "gpt2",
    "gemma4_unified_text",
)

PUBLISHED = {
    "Gemma 4 31B": dict(
        model_type="gemma4_text",
        hidden_size=5376,
        num_hidden_layers=60,
        num_attention_heads=32,
        num_key_value_heads=16,
        num_global_key_value_heads=4,
        attention_k_eq_v=True,
        hidden_size_per_layer_input=0,
    ),
    "Gemma 4 26B-A4B": dict(
        model_type="gemma4_text",
        hidden_size=2816,
        num_hidden_layers=30,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_global_key_value_heads=2,
        attention_k_eq_v=True,
        hidden_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
    ),
    "Hunyuan-A13B": dict(
        model_type="hunyuan_v1_moe",
        head_dim=128,
        num_key_value_heads=8,
        num_experts=64,
        moe_topk=8,
        moe_intermediate_size=3072,
    ),
}
"""Settings of checkpoints whose kinds their classes' defaults do not have."""

RECURRENT = ("mamba", "recurrent_gemma", "rwkv", "diffllama")
"""State in the module itself, or no attention that stages know."""


DESCRIPTION = ModelDescription("m", Path(), "m", 4, 64, 128, 4096, (), "float32")


def check(model_type: str, tmp_path, **settings) -> None:
    config = AutoConfig.for_model(model_type, **settings)
    config.save_pretrained(tmp_path)
    config._attn_implementation = ATTENTION_NAME
    config._experts_implementation = EXPERTS_NAME
    check_architecture(config, describe(str(tmp_path)))


@pytest.mark.parametrize("model_type", FULL_SIZE)
def test_full_size_configs_are_tested_in_miniature(model_type, tmp_path):
    started = time.monotonic()
    check(model_type, tmp_path)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings_are_served(name, tmp_path):
    settings = dict(PUBLISHED[name])
    check(settings.pop("model_type"), tmp_path, **settings)


@pytest.mark.parametrize("model_type", RECURRENT)
def test_a_recurrent_state_is_refused(model_type, tmp_path):
    with pytest.raises(UnsupportedModelError) as caught:
        check(model_type, tmp_path)
    assert "cannot be" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_loading_refuses_before_weights_are_read(tmp_path):
    AutoConfig.for_model("recurrent_gemma").save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="recurrent state"):
        cpu_stage(tmp_path, range(2), dtype="auto", self_test=True)


def start_at_zero(monkeypatch, rotary) -> None:
    """Let positions enter attention in a way that stages do not see: batches start at zero."""
    original = rotary.forward

    def from_zero(self, x, position_ids):
        return original(self, x, position_ids - position_ids.min())

    monkeypatch.setattr(rotary, "forward", from_zero)


def test_a_model_that_comes_out_wrong_is_refused(tmp_path, monkeypatch):
    start_at_zero(monkeypatch, modeling_qwen2.Qwen2RotaryEmbedding)
    save_tiny("qwen2", tmp_path)
    with pytest.raises(UnsupportedModelError, match="log-probabilities differ"):
        cpu_stage(tmp_path, range(2), dtype="auto", self_test=True)


def test_small_logits_hide_nothing(tmp_path, monkeypatch):
    """Falcon-H1 multiplies its logits by 0.02, and so every difference between them."""
    start_at_zero(monkeypatch, modeling_cohere.CohereRotaryEmbedding)
    with pytest.raises(UnsupportedModelError, match="log-probabilities differ"):
        check("cohere", tmp_path, logit_scale=1e-3)


def test_a_miniature_that_stays_large_is_refused_before_it_is_built(tmp_path):
    """Its part for pictures has sizes of its own; with random weights it would take gigabytes."""
    with pytest.raises(UnsupportedModelError, match="million parameters"):
        check("phi4_multimodal", tmp_path)


def test_sparse_attention_is_refused_although_short_sequences_come_out_right(tmp_path):
    """MiniMax-M3 as published: its blocks hold more tokens than any sequence of the self-test."""
    kinds = ["full_attention"] * 3 + ["minimax_m3_sparse"] * 5
    with pytest.raises(UnsupportedModelError, match="hands its attention 'block_indices'"):
        check("minimax_m3_vl_text", tmp_path, num_hidden_layers=8, layer_types=kinds)


def test_the_self_test_does_not_disturb_the_random_state(tmp_path):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    check("llama", tmp_path)
    assert torch.equal(torch.rand(3), wanted)


def test_the_same_miniature_each_time(monkeypatch):
    """Some constructors draw weights from torch's own generator."""
    config = AutoConfig.for_model("qwen3_next", num_hidden_layers=4)
    config._attn_implementation = ATTENTION_NAME
    config._experts_implementation = EXPERTS_NAME
    drawn = []

    def noted(small, description):
        drawn.append(torch.rand(3))
        return 0.0

    monkeypatch.setattr(self_test, "_largest_difference", noted)
    for seed in (1, 2):
        torch.manual_seed(seed)
        check_architecture(config, DESCRIPTION)
    assert torch.equal(*drawn)


def test_attention_that_cannot_be_replaced_is_named(tmp_path):
    with pytest.raises(UnsupportedModelError, match="computes attention in a way of its own"):
        check("falcon", tmp_path)
