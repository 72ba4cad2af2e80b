"""Three uneven stages with KV in int8 give what a model gives whose keys and values are rounded.

The reference is the library's own model and its own attention, over keys and values that are
rounded on their way in: after rotation, a step for each token and head.
"""

import sys
from functools import partial

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from tests.engine.ring_driver import Job, RingDriver, load_stages
from tests.engine.test_exactness import jobs_of
from tests.engine.tiny_models import LAYERS, generate, save_tiny
from tests.sweeps import swept

FAMILIES = ("llama", "qwen3", "mistral", "gemma2", "gpt_oss")
"""Plain, with a window, with softcaps and with sinks."""


def rounded(rows: torch.Tensor) -> torch.Tensor:
    step = (rows.abs().amax(-1, keepdim=True) / 127).bfloat16().float()
    return (rows / step).round().clamp(-127, 127) * step


def attention_over_rounded(module, query, key, value, *mask, **options):
    own = sys.modules[type(module).__module__].eager_attention_forward
    return own(module, query, rounded(key), rounded(value), *mask, **options)


AttentionInterface.register("rounded_kv", attention_over_rounded)
AttentionMaskInterface.register("rounded_kv", eager_mask)


@pytest.mark.parametrize("name", swept(FAMILIES, "llama", "mistral", "gemma2", "gpt_oss"))
def test_tokens_equal_those_of_rounded_keys_and_values(name, tmp_path):
    model = save_tiny(name, tmp_path)
    stages = load_stages(tmp_path, (0, 2, 3, LAYERS), kv_dtype="int8")
    jobs = jobs_of(seed=1)
    outputs = RingDriver(stages).run(jobs)
    model.set_attn_implementation("rounded_kv")
    assert outputs == [generate(model, job.prompt, job.tokens) for job in jobs]
    assert len({token for output in outputs for token in output}) > 8
    assert all(stage.kv_dtype == "int8" and stage.kv.tokens_used == 0 for stage in stages)


@pytest.mark.parametrize("rank", swept([16, 24], 24))
def test_tokens_equal_those_of_rounded_latent_rows(rank, tmp_path):
    """In vectors of eight, as long as the rotated part."""
    model = save_tiny("deepseek_v3", tmp_path, kv_lora_rank=rank)
    stages = load_stages(tmp_path, (0, 2, 3, LAYERS), kv_dtype="int8")
    jobs = jobs_of(seed=1)
    outputs = RingDriver(stages).run(jobs)
    for layer in model.model.layers:
        layer.self_attn.expand_kv = partial(expand_rounded, layer.self_attn)
    assert outputs == [generate(model, job.prompt, job.tokens) for job in jobs]
    assert stages[0].kv_token_bytes == 2 * (rank + 8 + 2 * (rank // 8 + 1))


def expand_rounded(module, latent, rotated):
    rounded_latent = rounded(latent.unflatten(-1, (-1, 8))).flatten(-2)
    return type(module).expand_kv(module, rounded_latent, rounded(rotated))


def test_recomputation_after_a_release_gives_the_same_tokens(tmp_path):
    save_tiny("llama", tmp_path)
    stages = load_stages(tmp_path, (0, 3, LAYERS), kv_dtype="int8")
    first = Job(0, list(range(3, 25)), 10)
    (whole,) = RingDriver(stages).run([first])
    resumed = Job(1, first.prompt + whole[:4], 6, scattered=True)
    assert RingDriver(stages).run([resumed]) == [whole[4:]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_takes_a_byte_a_number_and_two_a_head(dtype, tmp_path):
    save_tiny("llama", tmp_path)
    plain, int8 = (
        load_stages(tmp_path, (0, LAYERS), dtype, kv_dtype=kv_dtype)[0]
        for kv_dtype in ("auto", "int8")
    )
    heads, size, number = 2, 16, {"float32": 4, "bfloat16": 2}[dtype]
    assert plain.kv_token_bytes == LAYERS * 2 * heads * size * number
    assert int8.kv_token_bytes == LAYERS * 2 * heads * (size + 2)
