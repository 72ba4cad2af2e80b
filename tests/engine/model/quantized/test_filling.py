"""A quantized checkpoint that is damaged, mixed up or beyond us is refused with one sentence."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from molink.checkpoint.checkpoint import INDEX, open_checkpoint
from molink.checkpoint.safetensors_header import encode_header, read_header
from molink.checkpoint.shard_plan import plan_shards, shape_of
from molink.engine.model.weights import (
    StagePart,
    build_stage_class,
    load_model_config,
    needed_tensors,
)
from molink.errors import CheckpointError, UnsupportedModelError, UserError
from tests.engine.cpu_stages import cpu_stage
from tests.engine.model.quantized.checkpoints import save_gpt_oss, save_quantized
from tests.engine.model.quantized.formats import FORMATS
from tests.engine.ring_driver import Job, RingDriver, load_stages
from tests.engine.tiny_models import LAYERS, generate
from tests.sweeps import swept

RANGES = [range(2), range(2, 5), range(5, LAYERS)]
UP = "model.layers.1.mlp.up_proj"


def refusal(directory, error: type[UserError] = CheckpointError) -> str:
    with pytest.raises(error) as refused:
        cpu_stage(directory, range(LAYERS))
    message = str(refused.value)
    assert "\n" not in message
    assert re.search("fetch it again|take |its config.json is", message), message
    return message


def change(directory, name, alter):
    """Write one tensor anew; None removes it."""
    index = json.loads((directory / INDEX).read_text())
    path = directory / index["weight_map"][name]
    tensors = load_file(path)
    tensors[name] = alter(tensors[name])
    if tensors[name] is None:
        del tensors[name], index["weight_map"][name]
        (directory / INDEX).write_text(json.dumps(index))
    save_file(tensors, path, metadata={"format": "pt"})


def change_config(directory, **facts):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


@pytest.fixture
def awq(tmp_path):
    save_quantized("llama", tmp_path, FORMATS["awq"])
    return tmp_path


def test_a_file_that_is_cut_short(awq):
    path = sorted(awq.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-10])
    assert "its table names tensors up to byte" in refusal(awq)


def test_a_part_that_is_missing(awq):
    change(awq, f"{UP}.scales", lambda scales: None)
    assert f"lacks {UP}.scales" in refusal(awq)


def test_scales_of_another_group_size(awq):
    change(awq, f"{UP}.scales", lambda scales: scales[:1].clone())
    assert "do not fit together" in refusal(awq)


def test_the_weights_of_another_model(awq):
    change_config(awq, intermediate_size=128)
    assert re.search(r"is a matrix of .*, where the model has one of", refusal(awq))


def test_experts_of_which_one_is_missing(tmp_path):
    save_quantized("qwen3_moe", tmp_path, FORMATS["awq"])
    expert = "model.layers.1.mlp.experts.2.up_proj"
    for part in ("qweight", "qzeros", "scales"):
        change(tmp_path, f"{expert}.{part}", lambda _: None)
    assert "has no match for expert 2" in refusal(tmp_path)


def test_a_stack_of_another_number_of_experts(tmp_path):
    save_gpt_oss(tmp_path)
    stem = "model.layers.1.mlp.experts.down_proj"
    for part in ("blocks", "scales"):
        change(tmp_path, f"{stem}_{part}", lambda stack: stack[:3].clone())
    assert "holds 3 matrices" in refusal(tmp_path)


def test_an_order_of_inputs_that_only_the_data_tell(tmp_path):
    save_quantized("llama", tmp_path, FORMATS["gptq"])
    change(tmp_path, f"{UP}.g_idx", lambda order: order.flip(0))
    assert "act-order" in refusal(tmp_path, UnsupportedModelError)


def test_a_layer_that_is_no_plain_linear_one(tmp_path):
    """gpt2 multiplies by the transpose."""
    save_quantized("gpt2", tmp_path, FORMATS["gptq"])
    assert "in a way of its own" in refusal(tmp_path, UnsupportedModelError)


def test_a_scheme_that_is_not_read_is_refused_before_weights_are_looked_for(awq):
    change_config(awq, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    for path in awq.glob("*.safetensors"):
        path.unlink()
    assert "bitsandbytes" in refusal(awq, UnsupportedModelError)


# -- fetched by layers ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", swept(["pack-quantized asymmetric", "fp8 block", "gptq"], of=2))
def test_a_stage_loads_from_nothing_but_its_own_tensors(name, tmp_path):
    """What an agent keeps of a checkpoint: the tensors of its layers, in files of their own."""
    reference = save_quantized("qwen3_moe", tmp_path / "whole", FORMATS[name])
    directories = [cut(tmp_path / "whole", tmp_path / str(n), r) for n, r in enumerate(RANGES)]
    stages = [cpu_stage(*pair) for pair in zip(directories, RANGES, strict=True)]
    job = Job(0, [5, 9, 70, 11, 13], 8)
    assert RingDriver(stages).run([job]) == [generate(reference, job.prompt, job.tokens)]


def cut(whole, directory, layers):
    """Write the parts of a checkpoint that a stage needs; checks the plan against the loader."""
    checkpoint = open_checkpoint(str(whole))
    plan = plan_shards(checkpoint.weight_map(), shape_of(checkpoint.config()), layers)
    config = load_model_config(checkpoint)
    stage = build_stage_class(config, StagePart(layers, LAYERS))
    assert plan.weight_map == needed_tensors(stage, config, checkpoint.weight_map())
    directory.mkdir()
    (directory / "config.json").write_bytes((whole / "config.json").read_bytes())
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": plan.weight_map}))
    for need in plan.files:
        data = (whole / need.name).read_bytes()
        table = read_header(whole / need.name)
        kept = [one for one in table.tensors if one.name in need.tensors]
        body = b"".join(data[one.start : one.stop] for one in kept)
        (directory / need.name).write_bytes(encode_header(kept, table.metadata) + body)
    return directory


def test_the_self_test_takes_a_quantized_config(awq):
    stages = load_stages(awq, (0, 3, LAYERS), self_test=True)
    assert RingDriver(stages).run([Job(0, [5, 6, 7], 3)])[0]
    assert all(p.dtype == torch.float32 for stage in stages for p in stage.model.parameters())
