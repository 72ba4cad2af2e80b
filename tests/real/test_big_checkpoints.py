"""Random checkpoints in small: MoLink reads them, and they hold outliers."""

import json

import pytest
from safetensors.torch import load_file

from molink.engine.loading import load_stage
from molink.stage_protocol.messages import StageWork
from tools.real.big_checkpoints import BigShape, write_checkpoint
from tools.real.big_shapes import Stage, stages_table

TINY = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


@pytest.mark.parametrize(
    ("name", "more"), [("llama-tiny", {}), ("gpt-oss-tiny", {"num_local_experts": 4})]
)
def test_a_checkpoint_is_read_in_four_bits(tmp_path, name, more):
    shape = BigShape(name, TINY | {"num_hidden_layers": 8} | more)
    folder = tmp_path / name
    size = write_checkpoint(shape, folder, layers=3)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    stored = {file: load_file(folder / file) for file in set(index.values())}
    assert size == sum(one.nbytes for file in stored.values() for one in file.values())
    assert {name for file in stored.values() for name in file} == set(index)
    norm = stored[index["model.norm.weight"]]["model.norm.weight"]
    assert norm.max() == 300 and norm.min() < 0
    work = StageWork((0, 3), device="cpu", dtype="bfloat16", kv_tokens=64)
    assert load_stage(str(folder), work).weights_bytes < 1.1 * size, "codes stay codes"


def test_the_plan_is_compared_within_ten_per_cent():
    stage = Stage("m", (0, 8), 2_000, 2_100, 2_150, 2_000, 2_050)
    assert stage.is_as_planned() and "| m | 0 to 8 |" in stages_table([stage])
    assert not Stage("m", (0, 8), 2_000, 2_100, 2_250, 2_000, 2_050).is_as_planned()
