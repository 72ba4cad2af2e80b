"""What is counted of a model before anything is loaded is what its stages then hold."""

from itertools import pairwise

import pytest

from molink.checkpoint.layer_sizes import planned_model
from molink.checkpoint.safetensors_header import read_header
from molink.checkpoint.stage_size import stage_size
from molink.engine.kernels.cpu.native_kernel import AVX2, AVX512, native_library
from molink.importing.gguf.file import import_gguf
from tests.engine.cpu_stages import cpu_stage
from tests.engine.model.quantized.blocks import TYPES
from tests.engine.model.quantized.checkpoints import save_gpt_oss, save_quantized
from tests.engine.model.quantized.formats import FORMATS, SOME_FORMATS
from tests.engine.tiny_models import save_tiny
from tests.engine.tiny_wrappers import LAYERS as TEXT_LAYERS
from tests.engine.tiny_wrappers import save_wrapper
from tests.importing.gguf_models import save_gguf
from tests.sweeps import swept

LAYERS = 3
CUTS = (0, 1, LAYERS)
SIZES = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": LAYERS}
"""So wide that biases, which a plan leaves out, are less than a thousandth."""

BYTES = {"bfloat16": 2, "float32": 4}

kernels_run = native_library(AVX512) is not None
needs_kernels = pytest.mark.skipif(not kernels_run, reason="no AVX512-BF16 here")
"""Without kernels exponents take a byte and scales of FP8 four, whatever a stage computes in."""


CONFIGS = ("pack-quantized", "awq", "fp8 channel", "int8 channel")

FIVE_BITS = ("q5_0", "q5_1", "q5_k")
"""Planned with the eight bits that a card holds; a CPU's kernels take five of a layer's codes."""


def stages_hold(directory, dtype, cuts=CUTS, least=0.99):
    """Each stage holds what the plan says, or that share of it at least."""
    planned = planned_model(str(directory))
    cost = planned.costs[BYTES[dtype]]
    for first, end in pairwise(cuts):
        held = cpu_stage(directory, range(first, end), dtype=dtype).weights_bytes
        assert least <= held / cost.stage_bytes(first, end) <= 1.01, (first, end)
    return planned


@needs_kernels
@pytest.mark.parametrize("name", swept(FORMATS, *SOME_FORMATS))
def test_every_format(name, tmp_path):
    save_quantized("llama", tmp_path, FORMATS[name], **SIZES)
    planned = stages_hold(tmp_path, "bfloat16")
    assert planned.measured
    tables = [read_header(path) for path in tmp_path.glob("*.safetensors")]
    stored = sum(one.stop - one.start for table in tables for one in table.tensors)
    assert sum(planned.cost.fetched_bytes(*cut) for cut in pairwise(CUTS)) == stored


@needs_kernels
@pytest.mark.parametrize("name", swept(["awq", "gptq 8 bits", "fp8 block"], "awq", "fp8 block"))
def test_who_lends_a_pc_counts_the_same(name, tmp_path):
    save_quantized("llama", tmp_path, FORMATS[name], **SIZES)
    whole = cpu_stage(tmp_path, range(LAYERS))
    size = stage_size(tmp_path, (0, LAYERS))
    assert size.held_bytes(4, 0) == pytest.approx(whole.weights_bytes, rel=0.01)
    assert size.held_bytes(4, 10) - size.held_bytes(4, 0) == 10 * whole.kv_token_bytes
    assert planned_model(str(tmp_path)).costs[4].stage_bytes(0, LAYERS) == size.held_bytes(4, 0)


@needs_kernels
@pytest.mark.parametrize("dtype", BYTES)
def test_experts_in_mxfp4(dtype, tmp_path):
    save_gpt_oss(tmp_path, **SIZES)
    stages_hold(tmp_path, dtype)


@needs_kernels
@pytest.mark.parametrize("name", swept(TYPES, "q4_0", "q5_k", "q8_0", "mxfp4"))
def test_every_type_of_block(name, tmp_path):
    save_gguf("llama", tmp_path / "m.gguf", [name], num_hidden_layers=LAYERS)
    import_gguf(tmp_path / "m.gguf", tmp_path / "out", None, lambda done, total: None)
    stages_hold(tmp_path / "out", "bfloat16", least=0.6 if name in FIVE_BITS else 0.99)


@pytest.mark.skipif(not (kernels_run or native_library(AVX2)), reason="no kernels here")
@pytest.mark.parametrize("model", swept(["mixtral", "tied_llama", "qwen3_moe"], of=2))
def test_experts_and_tied_heads(model, tmp_path):
    save_quantized(model, tmp_path, FORMATS["pack-quantized"], **SIZES)
    stages_hold(tmp_path, "float32")
    stages_hold(tmp_path, "float32", (0, LAYERS))


@needs_kernels
@pytest.mark.parametrize("dtype", BYTES)
def test_the_expansion_of_latent_attention_is_held_unpacked(dtype, tmp_path):
    dense = {"first_k_dense_replace": LAYERS, "kv_lora_rank": 64, "q_lora_rank": 64}
    dense |= {"qk_rope_head_dim": 32}  # Panels of our kernels are filled up to 32 rows.
    save_quantized("deepseek_v3", tmp_path, FORMATS["awq"], **SIZES, **dense)
    stages_hold(tmp_path, dtype)


@pytest.mark.parametrize("dtype", BYTES)
def test_weights_that_are_not_quantized(dtype, tmp_path):
    save_tiny("llama", tmp_path, "bfloat16", **SIZES)
    stages_hold(tmp_path, dtype)


def test_the_text_part_of_a_checkpoint_that_takes_pictures(tmp_path):
    save_wrapper("mistral3", tmp_path)
    stages_hold(tmp_path, "float32", (0, 2, TEXT_LAYERS))


@pytest.mark.parametrize("name", swept(CONFIGS, "awq", "fp8 channel"))
def test_the_config_alone_says_nearly_the_same(name, tmp_path):
    """All that it does not know are norms."""
    save_quantized("llama", tmp_path, FORMATS[name], **SIZES)
    by_files = planned_model(str(tmp_path))
    by_config = planned_model(str(tmp_path / "config.json"))
    assert not by_config.measured
    for size in BYTES.values():
        for layers in ((0, 2), (1, LAYERS)):
            told = by_config.costs[size].stage_bytes(*layers)
            assert told == pytest.approx(by_files.costs[size].stage_bytes(*layers), rel=0.02)


def test_a_gpt_oss_config_alone(tmp_path):
    """It does not know biases either, of which these narrow experts have many."""
    save_gpt_oss(tmp_path, **SIZES)
    by_files = planned_model(str(tmp_path)).cost.stage_bytes(0, LAYERS)
    by_config = planned_model(str(tmp_path / "config.json")).cost.stage_bytes(0, LAYERS)
    assert by_config == pytest.approx(by_files, rel=0.03)
