"""Kernels with faults that were really made: each is rejected by the proof's own inputs, and by
rows as tokens make them; `test_wrong_kernels_at_load` has them in stages that load."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from molink.engine.kernels.cpu.native_attention import (
    AttentionKernels,
    _agrees,
    _kernels,
    kernels_for,
)
from molink.engine.kernels.cpu.native_kernel import native_library
from molink.engine.kernels.cpu.norms import RootMeanSquareNorm, norm_trouble
from molink.engine.kernels.cpu.packed_linear import (
    NativeLinear,
    OnednnLinear,
    PackedLinear,
    linear_kernel,
    product_trouble,
)
from molink.engine.kernels.cpu.proving_attention import rows_trouble
from molink.engine.layers.quantized_linear import QuantizedLinear
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import KvPool
from molink.engine.model.cpu_rewriting import _attended
from molink.engine.proof import alike, probe_rows, probe_weights, reference_of
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from tests.engine.kernels.cpu.test_coded_linear import random_weight

native = pytest.mark.skipif(native_library() is None, reason="no AVX512-BF16 or no C compiler")

WIDTH = 512
BFLOAT16 = torch.bfloat16


def token_rows(count: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows as `Swaps` keeps them: of tokens, and one of them small."""
    rows = torch.randn(count, width, generator=torch.Generator().manual_seed(5))
    return torch.cat([rows, rows[:1] * 1e-3]).to(dtype)


class EpsilonOutside(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x):
        wide = x.float()
        root = wide.square().mean(-1, keepdim=True).sqrt() + 1e-6
        return (wide / root * self.weight.float()).to(x.dtype)


class HalfSums(EpsilonOutside):
    def forward(self, x):
        squares, total = x.square(), x.new_zeros(x.shape[:-1])
        for column in squares.unbind(-1):
            total = total + column
        mean = (total / x.shape[-1])[..., None].float()
        return (x.float() * torch.rsqrt(mean + 1e-6) * self.weight.float()).to(x.dtype)


def without_one(weight: torch.Tensor) -> nn.Module:
    return RootMeanSquareNorm(weight, 1e-6)


@pytest.mark.parametrize("rows", [None, token_rows(8, WIDTH, BFLOAT16)], ids=["probe", "load"])
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [(Gemma3RMSNorm, without_one), (LlamaRMSNorm, EpsilonOutside), (LlamaRMSNorm, HalfSums)],
)
def test_a_wrong_norm(kind, wrong, rows):
    module = kind(WIDTH, eps=1e-6).to(BFLOAT16)
    module.weight.data = probe_weights(WIDTH, BFLOAT16)
    trouble = norm_trouble(module, wrong(module.weight.detach()), rows)
    assert trouble is not None
    assert trouble.startswith("is off by")


class HalfSumsProduct(PackedLinear):
    """Adds up in the format of its rows."""

    def __init__(self, weight, bias) -> None:
        super().__init__(weight, weight.dtype)
        self._matrix, self._bias = weight, bias

    def forward(self, x):
        total = x.new_zeros(*x.shape[:-1], len(self._matrix))
        for of_x, of_w in zip(x.unbind(-1), self._matrix.unbind(1), strict=True):
            total = total + of_x[..., None] * of_w
        return total if self._bias is None else total + self._bias


def packed(weight, bias):
    """The best layout for rows of this format that this CPU has."""
    kinds = {torch.bfloat16: NativeLinear if linear_kernel() else OnednnLinear}
    return kinds.get(weight.dtype, OnednnLinear)(weight, bias)


class BiasLost(PackedLinear):
    def __init__(self, weight, bias) -> None:
        super().__init__(weight, weight.dtype)
        self._own = packed(weight, None)

    def forward(self, x):
        return self._own(x)


@pytest.mark.parametrize("rows", [None, token_rows(8, WIDTH, BFLOAT16)], ids=["probe", "load"])
@pytest.mark.parametrize("wrong", [HalfSumsProduct, BiasLost])
def test_a_wrong_product(wrong, rows):
    weight = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(1)) * WIDTH**-0.5
    weight, bias = weight.to(BFLOAT16), torch.full((32,), 0.2, dtype=BFLOAT16)
    assert product_trouble(packed(weight, bias), weight, bias, BFLOAT16, rows) is None
    assert product_trouble(wrong(weight, bias), weight, bias, BFLOAT16, rows) is not None


def without_zeros(weight):
    return replace(weight, zero=torch.zeros_like(weight.zero))


def of_wider_groups(weight):
    """Every second group's scale read for two."""
    repeated = {
        name: part[:, ::2].repeat_interleave(2, 1)
        for name, part in weight.tensors().items()
        if name != "codes"
    }
    return replace(weight, **repeated)


@pytest.mark.parametrize("rows", [None, token_rows(8, WIDTH, BFLOAT16)], ids=["probe", "load"])
@pytest.mark.parametrize("wrong", [without_zeros, of_wider_groups])
def test_a_wrong_reading_of_few_bits(wrong, rows):
    weight = random_weight("int4", 64, WIDTH, 64)
    layer = QuantizedLinear(weight, None, BFLOAT16)
    assert product_trouble(layer, weight, None, BFLOAT16, rows) is None
    misread = QuantizedLinear(wrong(weight), None, BFLOAT16)
    assert product_trouble(misread, weight, None, BFLOAT16, rows) is not None


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.up = nn.Linear(64, 96), nn.Linear(64, 96)

    def forward(self, x):
        return F.silu(self.gate(x)) * self.up(x)

    def exchanged(self, x):
        return F.silu(self.up(x)) * self.gate(x)


@pytest.mark.parametrize("rows", [probe_rows, token_rows], ids=["probe", "load"])
def test_gate_and_up_exchanged(rows):
    module, x = Mlp().to(BFLOAT16), rows(8, 64, BFLOAT16)
    reference = reference_of(module, x)
    assert reference.trouble(module(x)) is None
    assert reference.trouble(module.exchanged(x)) is not None


@pytest.mark.parametrize("rows", [probe_rows, token_rows], ids=["probe", "load"])
def test_a_rotation_shifted_by_one(rows):
    q = rows(16, 64, BFLOAT16)[:16].view(1, 2, 8, 64)
    angles = torch.arange(2000, 2009)[:, None] * 10_000 ** (-torch.arange(32) / 32)
    cos, sin = (torch.cat([one, one], -1)[None] for one in (angles.cos(), angles.sin()))
    right, _ = apply_rotary_pos_emb(q, q, cos[:, :-1], sin[:, :-1])
    wrong, _ = apply_rotary_pos_emb(q, q, cos[:, 1:], sin[:, 1:])
    assert alike(right, right.clone()) is None
    assert alike(wrong.to(BFLOAT16), right.to(BFLOAT16)) is not None


CHANGES = {
    "a missing softcap": lambda window, variant: (window, replace(variant, softcap=None)),
    "a scale by another head size": lambda window, variant: (
        window,
        replace(variant, scale=variant.scale * 2**-0.5),
    ),
    "sinks ignored": lambda window, variant: (window, replace(variant, sinks_H=None)),
    "a window one short": lambda window, variant: (window and window - 1, variant),
}


def wrong_attention(change):
    class Wrong(AttentionKernels):
        __slots__ = ()

        def attend(self, query_THA, layer, batch, window, variant):
            changed = change(window, variant)
            return AttentionKernels.attend(self, query_THA, layer, batch, *changed)

    right = _kernels()  # Says what the library's functions take, too.
    assert right is not None
    return Wrong(right.library)


@native
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_wrong_attention(change):
    wrong = wrong_attention(change)
    assert not _agrees(wrong)
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(8, heads, 64, generator=generator).bfloat16() * 3 for heads in (6, 2, 2)]
    variant = AttentionVariant(0.125, 5.0, torch.linspace(-1, 4, 6))
    layer = KvPool(BLOCK_TOKENS).layer_of(0, *rows[1:])
    kernels = kernels_for(rows[0], layer)
    assert kernels is not None, "the right kernels are proven"
    assert rows_trouble(kernels.attend, *rows, 512, variant) is None
    assert rows_trouble(wrong.attend, *rows, 512, variant) is not None


@pytest.mark.parametrize("seed", range(6))
def test_right_attention_in_fp32_holds_where_biases_make_scores_large(seed):
    """As in Qwen2.5, whose first layer adds hundreds to some channels of all keys."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(9, heads, 64, generator=generator) for heads in (14, 2, 2))
    is_large = torch.rand(1, 2, 64, generator=generator) < 0.1
    key += 300 * is_large * torch.randn(1, 2, 64, generator=generator)
    rows, variant = (query * 3, key, value), AttentionVariant(0.125)
    assert rows_trouble(_attended, *rows, None, variant) is None

    def shifted(query_THA, layer, batch, window, variant):
        return _attended(query_THA, layer, batch, window, replace(variant, scale=0.124))

    assert rows_trouble(shifted, *rows, None, variant) is not None
