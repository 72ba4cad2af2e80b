"""A loaded CPU stage runs on faster modules, found without knowing the architecture."""

import pytest
from torch import nn

from molink.executor.cpu.packed_linear import PackedLinear
from molink.executor.cpu.root_mean_square import RootMeanSquareNorm
from molink.executor.cpu.shared_input import SharedInput
from molink.executor.stage import StageExecutor, StageOptions
from tests.executor.tiny_models import LAYERS, save_tiny

OPTIONS = StageOptions(device="cpu", dtype="float32", kv_tokens=64, self_test=False)


def modules_of(directory, layers: range, kind: type) -> list[nn.Module]:
    stage = StageExecutor.load(str(directory), layers, OPTIONS)
    return [module for module in stage.model.modules() if isinstance(module, kind)]


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "olmo2"])
def test_layers_that_read_one_input_share_a_product(name, tmp_path):
    save_tiny(name, tmp_path)
    assert len(modules_of(tmp_path, range(2, 4), PackedLinear)) == 2 * 4
    assert len(modules_of(tmp_path, range(2, 4), SharedInput)) == 2 * 2
    assert modules_of(tmp_path, range(2, 4), nn.Linear) == []


def test_norms_are_replaced_and_the_rest_stays(tmp_path):
    save_tiny("qwen3", tmp_path)
    assert len(modules_of(tmp_path, range(2, 4), RootMeanSquareNorm)) == 2 * 4


def test_a_head_that_is_also_the_tail_keeps_a_tied_weight_once(tmp_path):
    save_tiny("tied_llama", tmp_path)
    assert len(modules_of(tmp_path, range(LAYERS), nn.Linear)) == 1
