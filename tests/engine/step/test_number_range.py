"""A bfloat16 checkpoint in fp16: used where its numbers keep within the range, fp32 elsewhere."""

import logging
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from molink.engine import loading
from molink.engine.step.number_range import (
    FP16_SAFE,
    largest_number,
    release_wiped,
)
from molink_scheduler.batch import PREFILL, Admission, Batch, Release, Span
from molink_scheduler.request import SamplingParams
from tests.engine.cpu_stages import cpu_stage
from tests.engine.tiny_models import LAYERS, save_tiny


def checkpoint(directory, factor: float):
    """A tiny bfloat16 model; its second layer's MLP puts out `factor` times as much."""
    save_tiny("llama", directory)
    for path in directory.glob("*.safetensors"):
        tensors = {name: tensor.bfloat16() for name, tensor in load_file(path).items()}
        for name, tensor in tensors.items():
            if "layers.1.mlp.down_proj" in name:
                tensor.mul_(factor)
        save_file(tensors, path, {"format": "pt"})
    config = directory / "config.json"
    config.write_text(config.read_text().replace("float32", "bfloat16"))
    return directory


@pytest.fixture
def fp16_card(monkeypatch):
    """The CPU stands in for a card that has fp16 and no bfloat16."""
    choose = loading.choose_dtype

    def chosen(wanted, device, checkpoint_dtype):
        return torch.float16 if wanted == "auto" else choose(wanted, device, checkpoint_dtype)

    monkeypatch.setattr(loading, "choose_dtype", chosen)


@pytest.mark.parametrize("layers", [range(2), range(1, LAYERS)])
def test_numbers_that_keep_within_stay_fp16(tmp_path, fp16_card, layers):
    stage = cpu_stage(checkpoint(tmp_path, 1), layers, dtype="auto")
    assert stage.dtype is torch.float16
    assert 0 < largest_number(stage) < FP16_SAFE
    assert stage.kv.tokens_used == 0


@pytest.mark.parametrize("layers", [range(2), range(1, LAYERS)])
@pytest.mark.parametrize("factor", [1e6, 1e9])
def test_numbers_that_leave_the_range_are_computed_in_fp32(
    tmp_path, fp16_card, caplog, layers, factor
):
    with caplog.at_level(logging.WARNING):
        stage = cpu_stage(checkpoint(tmp_path, factor), layers, dtype="auto")
    assert stage.dtype is torch.float32
    assert FP16_SAFE < largest_number(stage) < math.inf
    assert "computing in fp32" in caplog.text and "65,504" in caplog.text


def test_a_format_that_was_asked_for_is_kept(tmp_path, fp16_card):
    stage = cpu_stage(checkpoint(tmp_path, 1e9), range(2), dtype="float16")
    assert stage.dtype is torch.float16 and largest_number(stage) == math.inf


def test_blocks_of_what_has_left_the_range_hold_zeros_before_others_get_them(tmp_path):
    """A kernel reads whole blocks: what is masked of an infinity is NaN."""
    stage = cpu_stage(checkpoint(tmp_path, 1), range(2), dtype="float32")
    span = Span(1, 0, 3, samples=False)
    admission = Admission(1, 3, 20, SamplingParams(max_tokens=4))
    stage.step(Batch(0, PREFILL, -1, (span,), (admission,)), [3, 4, 5])
    blocks = list(stage.kv.table(1))
    before = [rows[blocks].any() for rows in stage.kv_memory.block_rows()]
    assert blocks and any(before)
    release_wiped(stage, Release(1))
    assert not any(rows[blocks].any() for rows in stage.kv_memory.block_rows())
    assert stage.kv.tokens_used == 0
    release_wiped(stage, Release(1))  # One that is unknown is fine.
