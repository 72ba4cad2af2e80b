"""The experts function computes what the library's own one does, for every kind of class."""

import pytest
import torch
from torch import nn

from molink.engine.kernels.cpu.packed_linear import PackedLinear
from molink.engine.layers.experts import EXPERTS_NAME, ExpertStack, is_experts
from molink.engine.model.packing_experts import pack_experts
from tests.engine.tiny_models import tiny_config, tiny_model

MODELS = ("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3")
ROWS = (1, 2, 23)


def experts_of(name):
    config = tiny_config(name)
    config._experts_implementation = EXPERTS_NAME
    model = tiny_model(config)
    return next(module for module in model.modules() if is_experts(module))


def chosen(module, rows):
    generator = torch.Generator().manual_seed(rows)
    width = module.down_proj.shape[-1 if module.is_transposed else -2]
    hidden = torch.randn(rows, width, generator=generator)
    scores = torch.rand(rows, len(module.down_proj), generator=generator)
    weights, index = scores.topk(2)
    return hidden, index, weights


def both(module, arguments):
    results = []
    for implementation in ("eager", EXPERTS_NAME):
        module.config._experts_implementation = implementation
        with torch.inference_mode():
            results.append(module(*arguments))
    return results


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", MODELS)
def test_plain_and_packed_experts_are_the_librarys(name, rows):
    module = experts_of(name)
    arguments = chosen(module, rows)
    wanted, plain = both(module, arguments)
    assert torch.allclose(plain, wanted, atol=1e-5)
    pack_experts(module)
    assert isinstance(module.down_proj, ExpertStack)
    assert all(isinstance(one, PackedLinear) for one in module.down_proj.linears)
    with torch.inference_mode():
        assert torch.allclose(module(*arguments), wanted, atol=1e-5)


def test_packing_leaves_one_copy_of_the_weights():
    module = experts_of("mixtral")
    size = sum(p.nbytes for p in module.parameters())
    pack_experts(module)
    packed = [one for one in module.modules() if isinstance(one, PackedLinear)]
    assert sum(one.weights_bytes for one in packed) == size
    assert not any(p.dim() == 3 for p in module.parameters())


def test_other_modules_are_no_experts():
    model = tiny_model(tiny_config("mixtral"))
    assert not any(is_experts(module) for module in model.modules())
    assert not any(is_experts(module) for module in tiny_model(tiny_config("llama")).modules())
    assert not is_experts(nn.Linear(2, 2))
