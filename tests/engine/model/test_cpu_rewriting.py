"""A loaded CPU stage runs on faster modules, found without knowing the architecture."""

import pytest
import torch
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from molink.engine.kernels.cpu.norms import (
    MIRROR_ROWS_MAX,
    RootMeanSquareNorm,
    replacement_for,
    rows_alone,
)
from molink.engine.kernels.cpu.packed_linear import PackedLinear, SharedInput
from molink.engine.model.cpu_rewriting import rewrite
from tests.engine.cpu_stages import cpu_stage
from tests.engine.tiny_models import LAYERS, save_tiny


def modules_of(directory, layers: range, kind: type) -> list[nn.Module]:
    stage = cpu_stage(directory, layers)
    return [module for module in stage.model.modules() if isinstance(module, kind)]


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "olmo2"])
def test_layers_that_read_one_input_share_a_product(name, tmp_path):
    save_tiny(name, tmp_path)
    assert len(modules_of(tmp_path, range(2, 4), PackedLinear)) == 2 * 4
    assert len(modules_of(tmp_path, range(2, 4), SharedInput)) == 2 * 2
    assert modules_of(tmp_path, range(2, 4), nn.Linear) == []


@pytest.mark.parametrize("rows", [1, 48, 49, 96, 97, 112])
@pytest.mark.parametrize("heads", [1, 3])
def test_a_norm_s_row_is_what_it_is_alone_where_rows_stand_alone(rows, heads):
    """Also beyond the number at which the formula changes for spans of prompts."""
    generator = torch.Generator().manual_seed(rows)
    norm = RootMeanSquareNorm(torch.rand(24, generator=generator), 1e-6)
    x_1THN = torch.randn(1, rows, heads, 24, generator=generator)
    with rows_alone(are_alone=True):
        together = norm(x_1THN)
        alone = [norm(x_1THN[:, at : at + 1]) for at in range(rows)]
    assert torch.equal(together, torch.cat(alone, 1))
    scale = torch.rms_norm(x_1THN, (24,), norm.scale, 1e-6)
    torch.testing.assert_close(together, scale)
    assert torch.equal(norm(x_1THN), scale) is (rows * heads > MIRROR_ROWS_MAX)


def test_norms_are_replaced_and_the_rest_stays(tmp_path):
    save_tiny("qwen3", tmp_path)
    assert len(modules_of(tmp_path, range(2, 4), RootMeanSquareNorm)) == 2 * 4


def test_a_head_that_is_also_the_tail_keeps_a_tied_weight_once(tmp_path):
    save_tiny("tied_llama", tmp_path)
    assert len(modules_of(tmp_path, range(LAYERS), nn.Linear)) == 1


def randomised(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.data += torch.randn_like(parameter) * 0.2
    return module.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma2RMSNorm])
@pytest.mark.parametrize("rows", [1, 8, MIRROR_ROWS_MAX + 20])
def test_the_replacement_computes_what_the_original_computes(dtype, kind, rows):
    module = randomised(kind(48, eps=1e-5), dtype)
    fast = replacement_for(module)
    assert fast is not None
    tolerance = 1e-5 if dtype is torch.float32 else 3e-2
    for scale in (1e-2, 1.0, 50.0):
        x = (torch.randn(1, rows, 48) * scale).to(dtype)
        with torch.inference_mode():
            torch.testing.assert_close(fast(x), module(x), atol=tolerance, rtol=tolerance)


def test_heads_are_normalised_one_by_one():
    module = randomised(LlamaRMSNorm(16), torch.float32)
    x = torch.randn(1, 4, 6, 16)
    with torch.inference_mode():
        torch.testing.assert_close(replacement_for(module)(x), module(x))


class OtherEpsilon(LlamaRMSNorm):
    def forward(self, hidden_states):
        self.variance_epsilon, kept = 0.1, self.variance_epsilon
        result = super().forward(hidden_states)
        self.variance_epsilon = kept
        return result


@pytest.mark.parametrize(
    "module", [nn.LayerNorm(32), nn.LayerNorm(32, bias=False), OtherEpsilon(32)]
)
def test_what_is_something_else_is_left_alone(module):
    assert replacement_for(module) is None


def test_a_norm_with_a_gate_is_left_alone():
    """Without its gate it computes what an RMS norm does."""

    class GatedNorm(LlamaRMSNorm):
        def forward(self, hidden_states, gate=None):
            normed = super().forward(hidden_states)
            return normed if gate is None else normed * gate

    assert replacement_for(randomised(GatedNorm(48), torch.float32)) is None


class Router(nn.Module):
    """A parent that asks one linear for its format, and works with the weight of another."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 8, bias=False)
        self.step = nn.Linear(8, 8, bias=False)

    def forward(self, x):
        return self.gate(x.to(self.gate.weight.dtype)) @ self.step.weight


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 8)
        self.router = Router()

    def get_input_embeddings(self):
        return self.embedding


def test_a_linear_whose_weight_its_parent_reads_stays():
    model, x = Whole().requires_grad_(False), torch.randn(1, 3, 8)
    wanted = model.router(x)
    rewrite(model, lambda: model.router(x), embeds=True)
    assert isinstance(model.router.gate, PackedLinear)
    assert type(model.router.step) is nn.Linear
    torch.testing.assert_close(model.router(x), wanted)
