"""Each reader gives exactly the matrix that the format's own writer meant."""

import pytest
import torch
from safetensors.torch import save_file

from molink.checkpoint.quantized.declared import declared_quantization
from molink.checkpoint.quantized.recognised import quantized_weights
from molink.checkpoint.quantized.stored_weight import StoredPart
from molink.checkpoint.safetensors_header import read_header
from molink.engine.kernels.packed_weights import Fp8Weight, Int4Weight, Int8Weight
from molink.engine.model.quantized.readers import read_weight
from molink.engine.model.quantized.tensor_files import TensorFiles
from molink.errors import CheckpointError, UnsupportedModelError
from tests.engine.model.quantized import formats
from tests.engine.model.quantized.formats import FORMATS, GPTQ_SCHEME, Format

OUTPUTS, INPUTS = 264, 192
"""More rows than a reader takes at a time; groups of 48 and 128 leave a short one."""


def plain(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)) * 0.1


def stored_in(directory, tensors, scheme, name="w"):
    path = directory / "model.safetensors"
    save_file({f"{name}{suffix}": one.contiguous() for suffix, one in tensors.items()}, path)
    declared = declared_quantization("m", {"quantization_config": scheme})
    (stored,) = quantized_weights("m", read_header(path).tensors, declared).values()
    return stored, TensorFiles({part.name: path for part in stored.parts.values()})


def is_exact(weight, exact):
    return torch.equal(weight.dequantized(torch.float32), exact)


@pytest.mark.parametrize("name", FORMATS)
def test_a_matrix_is_what_its_writer_meant(name, tmp_path):
    form = FORMATS[name]
    tensors, exact = form.write(plain(OUTPUTS, INPUTS))
    stored, files = stored_in(tmp_path, tensors, form.scheme)
    weight = read_weight(stored, files, torch.float32)
    assert weight.shape == (stored.outputs, stored.inputs) == (OUTPUTS, INPUTS)
    assert weight.group == stored.packed_group
    assert is_exact(weight, exact)
    assert exact.abs().max() > 0.1


def test_the_form_follows_the_bits(tmp_path):
    kinds = {"pack-quantized": Int4Weight, "gptq 8 bits": Int8Weight, "fp8 block": Fp8Weight}
    for name, kind in kinds.items():
        form = FORMATS[name]
        stored, files = stored_in(tmp_path, form.write(plain(OUTPUTS, INPUTS))[0], form.scheme)
        assert type(read_weight(stored, files, torch.bfloat16)) is kind


def test_one_expert_of_a_stack_is_read(tmp_path):
    tensors, exact = formats.mxfp4(plain(3, 40, INPUTS))
    stored, files = stored_in(tmp_path, tensors, {"quant_method": "mxfp4"}, "x.experts.down_proj")
    for expert in range(3):
        assert is_exact(read_weight(stored, files, torch.float32, expert), exact[expert])


def test_a_stack_of_fp8_experts(tmp_path):
    written = [formats.fp8_block(plain(3, OUTPUTS, INPUTS)[expert]) for expert in range(3)]
    tensors = {
        "": torch.stack([one[".weight"] for one, _ in written]),
        "_scale_inv": torch.stack([one[".weight_scale_inv"] for one, _ in written]),
    }
    stored, files = stored_in(tmp_path, tensors, {"quant_method": "fp8"}, "x.experts.down_proj")
    assert is_exact(read_weight(stored, files, torch.float32, 2), written[2][1])


def test_scales_that_are_powers_of_two(tmp_path):
    tensors, _ = formats.fp8_block(plain(OUTPUTS, INPUTS))
    powers = tensors[".weight_scale_inv"].to(torch.float8_e8m0fnu)
    tensors[".weight_scale_inv"] = powers
    stored, files = stored_in(tmp_path, tensors, {"quant_method": "fp8"})
    scale = powers.float().repeat_interleave(128, 0)[:OUTPUTS].repeat_interleave(128, 1)
    exact = tensors[".weight"].float() * scale[:, :INPUTS]
    assert is_exact(read_weight(stored, files, torch.float32), exact)


def test_outputs_that_fill_no_whole_word_of_zero_points(tmp_path):
    tensors, exact = formats.pack_quantized(plain(36, 64), symmetric=False)
    stored, files = stored_in(tmp_path, tensors, FORMATS["pack-quantized asymmetric"].scheme)
    assert is_exact(read_weight(stored, files, torch.float32), exact)


def test_an_order_that_says_nothing_is_served_and_another_refused(tmp_path):
    tensors, exact = formats.gptq(plain(OUTPUTS, INPUTS))
    assert is_exact(read_weight(*stored_in(tmp_path, tensors, GPTQ_SCHEME), torch.float32), exact)
    tensors[".g_idx"] = tensors[".g_idx"].flip(0)
    stored, files = stored_in(tmp_path, tensors, GPTQ_SCHEME)
    with pytest.raises(UnsupportedModelError, match=r"act-order.*take its version without"):
        read_weight(stored, files, torch.float32)


def test_a_shape_of_something_else_is_refused(tmp_path):
    form: Format = FORMATS["pack-quantized"]
    tensors, _ = form.write(plain(OUTPUTS, INPUTS))
    tensors[".weight_shape"] = torch.tensor([OUTPUTS, INPUTS - 1])
    stored, files = stored_in(tmp_path, tensors, form.scheme)
    with pytest.raises(CheckpointError, match="says 264 x 191"):
        read_weight(stored, files, torch.float32)


def test_a_truncated_file_is_refused(tmp_path):
    form = FORMATS["awq"]
    stored, files = stored_in(tmp_path, form.write(plain(OUTPUTS, INPUTS))[0], form.scheme)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[: stored.parts[StoredPart.ZERO].stop - 5])
    with pytest.raises(CheckpointError, match="shorter than its table says: fetch it again"):
        read_weight(stored, files, torch.float32)
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_weight(stored, files, torch.float32)
