"""A miniature keeps every choice of its model and no size."""

import pytest
from transformers import AutoConfig

from molink.engine.self_test.miniature import shrink_config
from molink.errors import UnsupportedModelError

FULL, SLIDING, RECURRENT = "full_attention", "sliding_attention", "linear_attention"


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


def test_the_first_layer_of_each_kind_is_kept():
    kinds = [RECURRENT, RECURRENT, RECURRENT, FULL] * 12
    config = AutoConfig.for_model("qwen3_next", num_hidden_layers=48, layer_types=kinds)
    assert shrink_config(config).layer_types == [RECURRENT, RECURRENT, RECURRENT, FULL]


def test_kinds_that_follow_from_a_layers_number_are_kept_by_its_first_layers():
    config = AutoConfig.for_model(
        "jamba", num_hidden_layers=28, attn_layer_period=14, attn_layer_offset=7
    )
    small = shrink_config(config)
    assert small.num_hidden_layers == 8
    assert set(small.layer_types) == set(config.layer_types) == {FULL, RECURRENT}


def test_numbers_of_layers_are_no_kinds():
    config = AutoConfig.for_model("lfm2", full_attn_idxs=list(range(32)), num_hidden_layers=32)
    assert shrink_config(config).num_hidden_layers == 4


def test_settings_of_single_layers_are_shrunk_with_them():
    config = AutoConfig.for_model(
        "gemma4_text",
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_global_key_value_heads=2,
        attention_k_eq_v=True,
        head_dim=256,
        global_head_dim=512,
    )
    small = shrink_config(config)
    assert small.layer_types == [SLIDING, SLIDING, SLIDING, FULL]
    sliding, full = small.per_layer_config[0], small.per_layer_config[3]
    assert (full.head_dim, full.num_key_value_heads) == (2 * sliding.head_dim, 1)
    assert (sliding.num_attention_heads, sliding.num_key_value_heads) == (4, 2)
    assert config.per_layer_config[11].head_dim == 512


@pytest.mark.parametrize(
    ("model_type", "heads", "size", "inner"),
    [
        ("bamba", "mamba_n_heads", "mamba_d_head", "mamba_expand"),
        ("granitemoehybrid", "mamba_n_heads", "mamba_d_head", "mamba_expand"),
        ("zamba2", "n_mamba_heads", "mamba_headdim", "mamba_expand"),
    ],
)
def test_the_heads_of_a_scan_are_as_wide_as_its_rows(model_type, heads, size, inner):
    small = shrink_config(AutoConfig.for_model(model_type))
    assert getattr(small, heads) * getattr(small, size) == getattr(small, inner) * small.hidden_size


def test_as_many_heads_of_values_share_one_of_keys():
    config = AutoConfig.for_model(
        "qwen3_5_text", linear_num_key_heads=16, linear_num_value_heads=48
    )
    small = shrink_config(config)
    assert (small.linear_num_key_heads, small.linear_num_value_heads) == (2, 6)


def test_what_a_model_selects_is_less_than_what_the_self_test_shows_it():
    config = AutoConfig.for_model("minimax_m3_vl_text")
    small = shrink_config(config)
    assert small.index_block_size * small.index_topk_blocks < 10 < config.index_block_size


def test_a_model_without_attention():
    with pytest.raises(UnsupportedModelError, match="no attention layers"):
        shrink_config(AutoConfig.for_model("mamba"))
