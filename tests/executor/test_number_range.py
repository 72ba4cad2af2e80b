"""A bfloat16 checkpoint in fp16: used where its numbers keep within the range, fp32 elsewhere."""

import logging
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from molink.errors import StageError
from molink.executor import loading
from molink.executor.number_range import (
    FP16_SAFE,
    check_received,
    check_sent,
    largest_number,
)
from molink.stage.packing import Packing
from tests.executor.cpu_stages import cpu_stage
from tests.executor.tiny_models import LAYERS, save_tiny


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


def test_rows_beyond_fp16_are_not_taken_in():
    rows = torch.full((3, 4), 60_000.0, dtype=torch.bfloat16)
    check_received(rows, torch.float16)
    check_received(None, torch.float16)
    rows[1, 2] = -70_000.0
    check_received(rows, torch.bfloat16)
    with pytest.raises(StageError, match=r"reaches 7.*e\+04, and fp16 ends at 65,504: set --dtype"):
        check_received(rows, torch.float16)
    rows[1, 2] = math.nan
    with pytest.raises(StageError, match="reaches inf"):
        check_received(rows, torch.float16)


@pytest.mark.parametrize("lost", [math.inf, -math.inf, math.nan])
def test_infinite_rows_do_not_travel_on(lost):
    rows = torch.full((3, 4), 65_504.0, dtype=torch.float16)
    check_sent(rows)
    rows[2, 3] = lost
    with pytest.raises(StageError, match="grown beyond its number format"):
        Packing(4).pack(rows, "raw")
    check_sent(rows.bfloat16())
