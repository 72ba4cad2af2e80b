"""What a probe times has the format, and so the size and the kernels, of the checkpoint itself."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import LlamaConfig

from molink.checkpoint.layer_sizes import planned_model
from molink.engine.kernels.cpu.native_kernel import AVX512, native_library
from molink.engine.probes.step_probe import _line, _random_stage, probe_steps
from molink.importing.gguf.file import import_gguf
from tests.engine.model.quantized.checkpoints import save_gpt_oss, save_quantized
from tests.engine.model.quantized.formats import FORMATS
from tests.importing.gguf_models import save_gguf

SIZES = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 3}

needs_kernels = pytest.mark.skipif(native_library(AVX512) is None, reason="no AVX512-BF16 here")
"""Without them a stage holds another number of bytes."""


def is_timed_in_its_format(directory, dtype, size):
    stage = _random_stage(str(directory), "cpu", dtype, 1)
    (layer,) = stage.layers
    real = planned_model(str(directory)).costs[size].layer_bytes[layer]
    assert stage.weights_bytes == pytest.approx(real, rel=0.02)
    assert torch.get_default_dtype() == torch.float32


@needs_kernels
@pytest.mark.parametrize(
    "name", ["pack-quantized", "awq", "gptq", "fp8 block", "fp8 channel", "int8 channel"]
)
def test_a_layer_of_random_codes_is_as_large_as_a_real_one(name, tmp_path):
    save_quantized("llama", tmp_path, FORMATS[name], **SIZES)
    is_timed_in_its_format(tmp_path, "float32", 4)


@needs_kernels
def test_experts_are_timed_in_their_format(tmp_path):
    save_quantized("mixtral", tmp_path / "int4", FORMATS["pack-quantized"], **SIZES)
    is_timed_in_its_format(tmp_path / "int4", "bfloat16", 2)
    save_gpt_oss(tmp_path / "fp4", **SIZES)
    is_timed_in_its_format(tmp_path / "fp4", "bfloat16", 2)


@needs_kernels
def test_an_imported_gguf_file_is_timed_in_four_bits(tmp_path):
    save_gguf("llama", tmp_path / "m.gguf", ["q4_k"], num_hidden_layers=3)
    import_gguf(tmp_path / "m.gguf", tmp_path / "out", None, lambda done, total: None)
    is_timed_in_its_format(tmp_path / "out", "float32", 4)


def test_other_layers_take_no_memory_while_one_is_timed(tmp_path):
    """All of them together would take 2.7 GB."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 80}
    config = LlamaConfig(**sizes, num_attention_heads=16, vocab_size=64, dtype="bfloat16")
    config.save_pretrained(tmp_path)
    words = (str(tmp_path), "--device", "cpu", "--layers", "1", "--memory-bytes", "300000000")
    command = (sys.executable, "-m", "molink.engine.probes.step_probe", *words)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["prefill_row_s"] > 0


def test_times_come_from_the_config_alone(tmp_path):
    save_quantized("llama", tmp_path, FORMATS["awq"], **SIZES)
    for file in tmp_path.glob("*.safetensors*"):
        file.unlink()
    times = probe_steps(str(tmp_path), "cpu", "float32", 1)
    assert set(times) == {"decode_fixed_s", "decode_row_s", "prefill_row_s"}
    assert times["prefill_row_s"] > 0 and min(times.values()) >= 0


def test_a_line_through_three_numbers_of_rows():
    assert _line((1, 4, 8), (3.0, 6.0, 10.0)) == pytest.approx((1.0, 2.0))
    assert _line((1, 4, 8), (3.0, 2.0, 1.0)) == (0.0, 2.0), "more rows are never quicker"
    slope, fixed = _line((1, 4, 8), (1.0, 8.0, 16.0))
    assert fixed == 0.0 and slope == pytest.approx(161 / 81)
