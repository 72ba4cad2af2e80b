"""What a config declares, and the sentence for every scheme that is not read."""

import json

import pytest

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import describe, read_declared
from molink.checkpoint.quantized.declared import declared_quantization
from molink.errors import UnsupportedModelError

WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}


def compressed(form="pack-quantized", groups=({},), **more):
    schemes = {
        f"group_{number}": {"targets": ["Linear"], "weights": WEIGHTS | group}
        for number, group in enumerate(groups)
    }
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": schemes, **more}


def declared(scheme, model_type="llama"):
    return declared_quantization("m", {"model_type": model_type, "quantization_config": scheme})


def test_a_model_that_is_not_quantized_declares_nothing():
    found = declared_quantization("m", {"model_type": "llama"})
    assert (found.method, found.bits, found.zero_offset) == (None, None, 0)


@pytest.mark.parametrize(
    ("scheme", "wanted"),
    [
        (compressed(), ("compressed-tensors", 4, 128, 0)),
        (compressed(groups=[{"group_size": None}]), ("compressed-tensors", 4, None, 0)),
        (compressed("float-quantized", [{"num_bits": 8}]), ("compressed-tensors", 8, 128, 0)),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, ("awq", 4, 64, 0)),
        ({"quant_method": "awq", "version": "GEMM", "q_group_size": 32}, ("awq", 4, 32, 0)),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, ("gptq", 4, 32, 1)),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": True},
            ("gptq", 8, None, 1),
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"},
            ("gptq", 4, 32, 0),
        ),
        ({"quant_method": "mxfp4"}, ("mxfp4", None, None, 0)),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8", None, None, 0)),
    ],
)
def test_what_is_read(scheme, wanted):
    found = declared(scheme)
    assert (found.method, found.bits, found.group, found.zero_offset) == wanted


def test_the_text_part_of_a_vision_checkpoint_may_say_it():
    scheme = {"quant_method": "awq", "bits": 4}
    config = {"model_type": "m", "text_config": {"quantization_config": scheme}}
    assert declared_quantization("m", config).method == "awq"


def test_mlx_declares_elsewhere():
    config = {"model_type": "m", "quantization": {"bits": 4, "group_size": 64}}
    with pytest.raises(UnsupportedModelError, match="MLX"):
        declared_quantization("m", config)
    assert declared_quantization("m", {"quantization": "none"}).method is None


def test_the_block_of_fp8():
    assert declared({"quant_method": "fp8", "weight_block_size": [64, 32]}).block == (64, 32)
    assert declared({"quant_method": "fp8"}).block == (128, 128)
    weights = [{"num_bits": 8, "strategy": "block", "block_structure": "64x32"}]
    assert declared(compressed("float-quantized", weights)).block == (64, 32)


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "hqq"}, "HQQ"),
        ({"quant_method": "aqlm"}, "AQLM"),
        ({"quant_method": "exl2"}, "EXL2"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4"),
        ({"quant_method": "something\x1b[2Jnew"}, "something.*new"),
        ({"bits": 4}, "without a name"),
        ({"bits": 4, "group_size": 64}, "MLX"),
        (["a list"], "no JSON object"),
        (compressed("nvfp4-pack-quantized"), "nvfp4-pack-quantized"),
        (compressed("marlin-24"), "marlin-24"),
        (compressed(groups=[{"num_bits": 3}]), "3 bits"),
        (compressed(groups=[{}, {"num_bits": 8}]), "several schemes.*4 bits, 8 bits"),
        (compressed(groups=[]), "several schemes"),
        (compressed(groups=[{"actorder": "group"}]), "act-order"),
        (compressed(transform_config={"config_groups": {"R1": {}}}), "rotations"),
        (compressed(sparsity_config={"format": "sparse-24-bitmask"}), "sparse"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version gemv"),
        ({"quant_method": "awq", "bits": 4, "version": "marlin"}, "version marlin"),
        ({"quant_method": "awq", "bits": 3}, "AWQ of 3 bits"),
        ({"quant_method": "gptq", "bits": 3}, "GPTQ of 3 bits"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "layout marlin"),
        ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "layout marlin"),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True},
            "act-order.*take its version without",
        ),
    ],
)
def test_what_is_refused_names_the_scheme_and_what_to_take(scheme, words):
    with pytest.raises(UnsupportedModelError, match=words) as refused:
        declared(scheme)
    message = str(refused.value)
    assert message.startswith("m is quantized in a way")
    assert "; take " in message
    assert "\x1b" not in message
    assert "\n" not in message


@pytest.mark.parametrize("model_type", ["starcoder2", "falcon", "bloom"])
def test_awq_that_scales_activations_is_refused(model_type):
    with pytest.raises(UnsupportedModelError, match="scales activations"):
        declared({"quant_method": "awq", "bits": 4}, model_type)


def test_the_first_gptq_checkpoints_keep_their_scheme_in_a_file_of_its_own(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 64}))
    found = read_declared(open_checkpoint(str(tmp_path)))
    assert (found.method, found.bits, found.group, found.zero_offset) == ("gptq", 4, 64, 1)


def test_quantized_weights_of_float16_are_computed_in_bfloat16(tmp_path):
    facts = dict(num_hidden_layers=4, hidden_size=8, vocab_size=9, max_position_embeddings=10)
    config = {"model_type": "llama", "torch_dtype": "float16", **facts}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert describe(str(tmp_path)).dtype == "float16"
    scheme = {"quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config | scheme))
    assert describe(str(tmp_path)).dtype == "bfloat16"
