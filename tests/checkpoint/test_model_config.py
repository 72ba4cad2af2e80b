"""Shapes from config.json, against the parameter counts that their makers publish."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from molink.checkpoint.model_config import known_models, model_shape
from molink.errors import UnsupportedModelError, UserError
from tests.engine.tiny_models import tiny_config

PARAMETERS = {
    "qwen-7b": 7.721e9,
    "qwen2.5-7b": 7.616e9,
    "llama-3-8b": 8.030e9,
    "llama-2-7b": 6.738e9,
    "llama-2-13b": 13.02e9,
    "llama-2-70b": 68.98e9,
    "llama-3-70b": 70.55e9,
    "llama-65b": 65.29e9,
    "llama-30b": 32.53e9,
    "mixtral-8x7b": 46.70e9,
    "llama-88m": 88.1e6,
}


def config(**changes):
    return {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
    } | changes


@pytest.fixture
def shape_of(tmp_path):
    def read(**changes):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config(**changes)))
        return model_shape(path)

    return read


@pytest.mark.parametrize("name", known_models())
def test_known_models_have_the_parameters_that_are_published(name):
    assert model_shape(name).parameters == pytest.approx(PARAMETERS[name], rel=1e-3)


@pytest.mark.parametrize(
    "family",
    [
        *("llama", "tied_llama", "qwen2", "qwen3", "gemma2", "phi3", "olmo2"),
        *("mixtral", "qwen3_moe", "gpt_oss", "glm4"),
    ],
)
def test_every_family_is_counted_as_transformers_builds_it(family, tmp_path):
    config = tiny_config(family, hidden_size=256, intermediate_size=512)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    expected = sum(one.numel() for one in model.parameters())
    assert model_shape(tmp_path).parameters == pytest.approx(expected, rel=5e-3)


def test_the_papers_numbers_of_qwen_7b():
    shape = model_shape("Qwen-7B")
    assert shape.row_bytes == 8192
    assert shape.layers * shape.kv_token_bytes == 524_288
    assert shape.intermediate_size == 11_008


def test_grouped_heads_shrink_keys_and_values():
    shape = model_shape("llama-3-8b")
    assert shape.layers * shape.kv_token_bytes == 131_072


def test_a_directory_and_its_file_are_the_same(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config()))
    assert model_shape(tmp_path) == model_shape(tmp_path / "config.json")
    assert model_shape(tmp_path).name == tmp_path.name


def test_names_of_older_families(shape_of):
    older = {"n_embd": 32, "n_layer": 5, "n_head": 2, "hidden_size": None, "model_type": "gpt2"}
    shape = shape_of(
        **older, num_hidden_layers=None, num_attention_heads=None, intermediate_size=None
    )
    assert (shape.layers, shape.hidden_size, shape.intermediate_size) == (5, 32, 128)
    assert shape.tied_embeddings
    assert shape.layer_parameters == 12 * 32 * 32


def test_one_key_head_for_all(shape_of):
    assert shape_of(multi_query=True).kv_values == 2 * 16


def test_the_text_part_of_a_multimodal_config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "seer", "text_config": config(hidden_size=96)}))
    assert model_shape(path).hidden_size == 96


def test_experts_count_in_memory_and_only_the_chosen_ones_in_flops(shape_of):
    dense = shape_of()
    shape = shape_of(
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=1
    )
    assert shape.layer_parameters == dense.attention_parameters + 9 * 3 * 64 * 32 + 64 * 8
    assert shape.row_flops == 2 * (dense.attention_parameters + 3 * 3 * 64 * 32 + 64 * 8)


def test_few_rows_hit_few_experts():
    shape = model_shape("mixtral-8x7b")
    assert shape.experts_hit(1) == pytest.approx(2)
    assert shape.experts_hit(2) == pytest.approx(3.5)
    assert shape.experts_hit(1000) == pytest.approx(8)
    assert model_shape("llama-3-8b").experts_hit(5) == 1


def test_latent_attention_counts_its_low_rank_projections(shape_of):
    latent = {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 12, "v_head_dim": 16}
    shape = shape_of(**latent)
    keys_values = 64 * (8 + 4) + 8 * 4 * (12 + 16)
    assert shape.attention_parameters == 64 * 4 * 16 + keys_values + 4 * 16 * 64
    assert shape.expansion_parameters == 8 * 4 * (12 + 16)


def test_latent_attention_keeps_one_row_for_all_heads(shape_of):
    latent = {"kv_lora_rank": 24, "qk_rope_head_dim": 16, "qk_nope_head_dim": 12, "v_head_dim": 16}
    shape = shape_of(**latent)
    assert (shape.kv_values, shape.kv_vectors) == (24 + 16, 5)
    assert shape.attention_width == 4 * (12 + 16 + 16)
    assert shape.decode_attention_width == 4 * (24 + 16 + 24)


def compressed(form, **weights):
    group = {"weights": weights, "targets": ["Linear"]}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"g": group}}


@pytest.mark.parametrize(
    "quantization, bits",
    [
        (compressed("pack-quantized", num_bits=4, group_size=32), 4 + 2 * 16 / 32),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 4 + 2 * 16 / 64),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 2 * 16 / 64),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 4 + 2 * 16 / 256),
        ({"quant_method": "fp8"}, 8 + 16 / 128),
        (compressed("float-quantized", num_bits=8), 8),
        (compressed("int-quantized", num_bits=8), 8),
        (None, 16),
    ],
)
def test_quantized_weights_take_their_codes_and_scales(shape_of, quantization, bits):
    """Widths of 64 and 128 have no groups of 128 in common."""
    shape = shape_of(quantization_config=quantization, torch_dtype="bfloat16")
    assert shape.layer_bytes == shape.layer_parameters * bits / 8
    assert shape.kv_token_bytes == 2 * shape.kv_values


def test_in_fp32_scales_grow_and_codes_do_not(shape_of):
    awq = {"quant_method": "awq", "bits": 4, "group_size": 64}
    shape = shape_of(quantization_config=awq, torch_dtype="float32")
    assert shape.layer_bytes == shape.layer_parameters * (4 + 2 * 32 / 64) / 8
    assert shape.table_bytes == 4 * shape.embedding_parameters


def test_of_mxfp4_only_experts_are_quantized(shape_of):
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    shape = shape_of(quantization_config={"quant_method": "mxfp4"}, **experts)
    assert shape.dense_bytes == 2 * shape.dense_parameters
    assert shape.expert_bytes == shape.expert_parameters * 4.5 / 8


def test_a_scheme_that_is_not_read_is_refused(shape_of):
    with pytest.raises(UnsupportedModelError, match="does not read: bitsandbytes"):
        shape_of(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})


def test_a_stage_holds_its_layers_and_its_tables(shape_of):
    shape = shape_of(tie_word_embeddings=True)
    assert shape.stage_bytes(2, False, False) == 2 * shape.layer_bytes
    assert shape.stage_bytes(2, True, False) == 2 * shape.layer_bytes + shape.table_bytes
    assert shape.stage_bytes(2, True, True) == 2 * shape.layer_bytes + shape.table_bytes


def test_an_unknown_model_is_told_the_known_ones():
    with pytest.raises(UserError, match=r"qwen-8b.*qwen-7b"):
        model_shape("qwen-8b")


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"hidden_size": None}, "no hidden_size"),
        ({"vocab_size": "many"}, "'many'"),
        ({"num_hidden_layers": -1}, "-1"),
        ({"num_attention_heads": 0}, "0"),
        ({"num_experts": 2, "num_experts_per_tok": 3}, "3 of 2"),
        ({"num_experts": 2}, "num_experts_per_tok"),
    ],
)
def test_a_config_that_does_not_tell_the_shape_is_refused(shape_of, changes, complaint):
    with pytest.raises(UserError, match=complaint):
        shape_of(**changes)


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_a_file_that_is_no_config_is_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"config\.json"):
        model_shape(path)


def test_a_directory_without_config_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        model_shape(tmp_path)


QWEN_3_5 = dict(
    model_type="qwen3_5_text",
    num_hidden_layers=64,
    hidden_size=5120,
    intermediate_size=17408,
    num_attention_heads=24,
    num_key_value_heads=4,
    head_dim=256,
    vocab_size=248_320,
    linear_num_key_heads=16,
    linear_num_value_heads=48,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
)


@pytest.mark.parametrize(
    "kinds",
    [
        dict(layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 16),
        dict(full_attention_interval=4),
        dict(attn_layer_indices=list(range(3, 64, 4))),
        dict(attn_layer_period=4, attn_layer_offset=3),
        dict(hybrid_override_pattern="M-M*" * 16),
        dict(linear_attn_config={"full_attn_layers": list(range(3, 64, 4))}),
    ],
)
def test_layers_with_a_recurrence_keep_no_keys(shape_of, kinds):
    """Qwen3.5 27B as published: 26.9 billion parameters, 64 KB of KV for a token."""
    shape = shape_of(**QWEN_3_5, **kinds)
    assert shape.parameters == pytest.approx(26.9e9, rel=2e-3)
    assert shape.layers * shape.kv_token_bytes == 65_536


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("qwen3_next", {}),
        ("olmo_hybrid", {}),
        ("bamba", dict(attn_layer_indices=[9, 18, 27])),
        ("granitemoehybrid", dict(num_local_experts=0, num_experts_per_tok=0)),
    ],
)
def test_parameters_of_hybrid_families(model_type, settings, tmp_path):
    config = AutoConfig.for_model(model_type, **settings)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    expected = sum(one.numel() for one in model.parameters())
    assert model_shape(tmp_path).parameters == pytest.approx(expected, rel=2e-2)


def test_a_model_without_experts_may_say_so(shape_of):
    assert shape_of(num_local_experts=0, num_experts_per_tok=0).experts == 1
