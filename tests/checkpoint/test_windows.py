"""Windows that configs name, and what a request keeps by them."""

import pytest

from molink.checkpoint.mixers import NO_WINDOWS, windows_of
from molink.checkpoint.model_config import shape_of_config
from molink_scheduler.kv.layer_class import room_tokens

SIZES = dict(vocab_size=1000, intermediate_size=100)
GEMMA_12B = dict(
    model_type="gemma3_text",
    hidden_size=3840,
    num_hidden_layers=48,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=256,
    sliding_window=1024,
    max_position_embeddings=131072,
    **SIZES,
)
GEMMA_27B = GEMMA_12B | dict(num_hidden_layers=62, num_key_value_heads=16, head_dim=128)
GPT_OSS = dict(
    model_type="gpt_oss",
    hidden_size=2880,
    num_hidden_layers=24,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=64,
    sliding_window=128,
    layer_types=["sliding_attention", "full_attention"] * 12,
    max_position_embeddings=131072,
    **SIZES,
)
TOKENS = 8192


@pytest.mark.parametrize(
    ("config", "share"),
    [(GEMMA_12B, 0.27), (GEMMA_27B, 0.27), (GPT_OSS, 0.51)],
    ids=["Gemma 3 12B", "Gemma 3 27B", "gpt-oss 20B"],
)
def test_plans_count_what_windows_keep(config, share):
    """KV of a request of 8,192 tokens, against that of a model without windows."""
    whole = shape_of_config("whole", config | dict(sliding_window=None)).cost
    cost = shape_of_config("near", config).cost
    kept = TOKENS * sum(cost.kept_of_token) + sum(cost.kept_of_request)
    assert not any(whole.kept_of_request)
    assert round(kept / (TOKENS * sum(whole.kept_of_token)), 2) == share


def test_sizes_of_stages_count_windows_like_states():
    shape = shape_of_config("near", GPT_OSS)
    values, vectors = shape.kv_numbers(0, 3)
    assert (values, vectors) == (shape.kv_values, shape.kv_vectors)
    assert shape.state_numbers(0, 3).columns == 2 * room_tokens(128) * shape.kv_values


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        (dict(model_type="gemma3_text"), [True] * 5 + [False] + [True] * 2),
        (dict(model_type="mistral"), [True] * 8),
        (dict(model_type="gpt_oss"), [True, False] * 4),
        (dict(sliding_window_pattern=4), [True, True, True, False] * 2),
        (dict(layer_types=["sliding_attention", "full_attention"] * 4), [True, False] * 4),
    ],
)
def test_layers_are_named_in_lists_in_patterns_or_by_their_type(changes, wanted):
    found = windows_of(dict(sliding_window=100) | changes, 8)
    assert found.layers == tuple(wanted)
    assert found.room_tokens == room_tokens(100)


@pytest.mark.parametrize(
    "config",
    [
        dict(model_type="gemma2", sliding_window=4096),
        dict(model_type="mistral", sliding_window=None),
        dict(model_type="mistral", sliding_window=100, max_position_embeddings=200),
        dict(model_type="qwen2", sliding_window=100, use_sliding_window=False),
        dict(model_type="of its own", sliding_window=100),
        dict(model_type="mistral", sliding_window=100, kv_lora_rank=8),
    ],
)
def test_no_windows_where_they_do_not_pay_or_nobody_says_whose_they_are(config):
    assert windows_of(config, 8) == NO_WINDOWS
