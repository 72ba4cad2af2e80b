"""The self-test lets through what is exact in stages, and nothing else."""

import time

import pytest
import torch
from transformers import AutoConfig
from transformers.models.qwen2 import modeling_qwen2

from molink.checkpoint.description import describe
from molink.errors import UnsupportedModelError
from molink.executor.architecture.miniature import shrink_config
from molink.executor.architecture.self_test import check_architecture
from molink.executor.attention import ATTENTION_NAME
from tests.executor.cpu_stages import cpu_stage
from tests.executor.tiny_models import save_tiny

FULL_SIZE = (
    "llama",
    "gemma2",
    "gemma3_text",
    "phi3",
    "gpt_oss",
    "deepseek_v3",
    "qwen2_moe",
    "gpt2",
)
RECURRENT = ("mamba", "jamba", "qwen3_next", "recurrent_gemma", "diffllama", "bamba", "falcon_h1")


def check(model_type: str, tmp_path, **settings) -> None:
    config = AutoConfig.for_model(model_type, **settings)
    config.save_pretrained(tmp_path)
    config._attn_implementation = ATTENTION_NAME
    check_architecture(config, describe(str(tmp_path)))


@pytest.mark.parametrize("model_type", FULL_SIZE)
def test_full_size_configs_are_tested_in_miniature(model_type, tmp_path):
    started = time.monotonic()
    check(model_type, tmp_path)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("model_type", RECURRENT)
def test_a_recurrent_state_is_refused(model_type, tmp_path):
    with pytest.raises(UnsupportedModelError) as caught:
        check(model_type, tmp_path)
    assert "cannot be" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_loading_refuses_before_weights_are_read(tmp_path):
    AutoConfig.for_model("jamba").save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="recurrent state"):
        cpu_stage(tmp_path, range(2), dtype="auto", self_test=True)


def test_a_model_that_comes_out_wrong_is_refused(tmp_path, monkeypatch):
    """Positions enter attention in a way that stages do not see: batches start at zero."""
    original = modeling_qwen2.Qwen2RotaryEmbedding.forward

    def from_zero(self, x, position_ids):
        return original(self, x, position_ids - position_ids.min())

    monkeypatch.setattr(modeling_qwen2.Qwen2RotaryEmbedding, "forward", from_zero)
    save_tiny("qwen2", tmp_path)
    with pytest.raises(UnsupportedModelError, match="log-probabilities differ"):
        cpu_stage(tmp_path, range(2), dtype="auto", self_test=True)


def test_sparse_attention_is_refused_although_short_sequences_come_out_right(tmp_path):
    """MiniMax-M3 as published: its blocks hold more tokens than any sequence of the self-test."""
    kinds = ["full_attention"] * 3 + ["minimax_m3_sparse"] * 5
    with pytest.raises(UnsupportedModelError, match="hands its attention 'block_indices'"):
        check("minimax_m3_vl_text", tmp_path, num_hidden_layers=8, layer_types=kinds)


def test_shrinking_keeps_what_is_a_choice():
    config = AutoConfig.for_model("gemma3_text", num_attention_heads=8, num_key_value_heads=4)
    small = shrink_config(config)
    assert small.num_attention_heads // small.num_key_value_heads == 2
    assert set(small.layer_types) == set(config.layer_types)
    assert len(small.layer_types) == small.num_hidden_layers < config.num_hidden_layers
    assert config.hidden_size > small.hidden_size
    assert small.sliding_window < config.sliding_window


def test_shrinking_cuts_rope_factors():
    factors = [1.0] * 48
    rope = dict(rope_type="longrope", short_factor=factors, long_factor=factors, factor=2.0)
    rope |= dict(original_max_position_embeddings=2048, rope_theta=1e4)
    config = AutoConfig.for_model("phi3", rope_parameters=rope, max_position_embeddings=4096)
    small = shrink_config(config)
    head_size = small.hidden_size // small.num_attention_heads
    assert len(small.rope_parameters["short_factor"]) == head_size // 2
    assert len(config.rope_parameters["short_factor"]) == 48


def test_the_self_test_does_not_disturb_the_random_state(tmp_path):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    check("llama", tmp_path)
    assert torch.equal(torch.rand(3), wanted)
