"""Puts random weights of few bits into a model, to time what a quantized checkpoint will take.

A layer takes as long with random codes as with real ones. Which modules are quantized is guessed as
published checkpoints have it: all linear layers and experts, but routers and gates of one output;
in MXFP4 experts alone. Types of an imported GGUF file stand in the names of its tensors, which a
probe has not: it takes Q4_K, four bits in groups of 32.
"""

from math import gcd

import torch
from torch import nn

from molink.checkpoint.held_weights import GGUF_GROUP
from molink.checkpoint.quantized.declared import DeclaredQuantization
from molink.checkpoint.quantized.stored_weight import GROUPS_4BIT
from molink.engine.kernels.packed_weights import (
    EXPONENT_BIAS,
    MXFP4_GROUP,
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    Mxfp4Weight,
    QuantizedWeight,
)
from molink.engine.layers.experts import STACK_NAMES, ExpertStack, is_experts
from molink.engine.layers.quantized_linear import QuantizedLinear

PLAIN_MODULES = ("gate", "router", "shared_expert_gate", "lm_head", "embed_out")
"""Names of linear layers that checkpoints leave as they are."""

SIZE = 1 / 64
"""Size of a weight, about: activations neither vanish nor overflow in two layers."""


def quantize_at_random(
    model: nn.Module, declared: DeclaredQuantization, dtype: torch.dtype
) -> None:
    """Replace the linear layers of a model by random ones in the format that a config declares, in
    place; nothing where it declares none. `dtype` is that of the rows."""
    if declared.method is None:
        return
    if declared.method != "mxfp4":
        linears = [one for one in model.named_modules() if type(one[1]) is nn.Linear]
        for name, linear in linears:
            if name.rpartition(".")[2] not in PLAIN_MODULES:
                _replace_linear(model, name, linear, declared, dtype)
    for module in [module for module in model.modules() if is_experts(module)]:
        for name in STACK_NAMES:
            _replace_stack(module, name, declared, dtype)


def _replace_linear(
    model: nn.Module,
    name: str,
    linear: nn.Module,
    declared: DeclaredQuantization,
    dtype: torch.dtype,
) -> None:
    assert isinstance(linear, nn.Linear)
    weight = random_weight(linear.out_features, linear.in_features, declared, dtype)
    if weight is not None:
        model.set_submodule(name, QuantizedLinear(weight, linear.bias, dtype))


def _replace_stack(
    module: nn.Module, name: str, declared: DeclaredQuantization, dtype: torch.dtype
) -> None:
    stack = module._parameters.get(name)
    if stack is None:
        return
    experts, *shape = stack.shape
    outputs, inputs = reversed(shape) if module.is_transposed else shape
    weights = [random_weight(outputs, inputs, declared, dtype) for _ in range(experts)]
    if all(weight is not None for weight in weights):
        del module._parameters[name]
        layers = [QuantizedLinear(one, None, dtype) for one in weights if one is not None]
        setattr(module, name, ExpertStack(layers))


def random_weight(
    outputs: int, inputs: int, declared: DeclaredQuantization, dtype: torch.dtype
) -> QuantizedWeight | None:
    """A matrix of random codes in the format that a config declares; None for one whose rows have
    no groups of the declared size."""
    wanted = GGUF_GROUP if declared.method == "gguf" else declared.group
    shared = gcd(wanted or inputs, inputs)
    group = next((size for size in GROUPS_4BIT if shared % size == 0), None)
    if declared.method == "mxfp4":
        return _mxfp4(outputs, inputs) if inputs % MXFP4_GROUP == 0 else None
    if declared.method == "fp8":
        block = gcd(declared.block[1], inputs)
        codes = torch.randn(outputs, inputs, dtype=torch.float32).to(torch.float8_e4m3fn)
        return Fp8Weight(codes, _scales(outputs, inputs // block, SIZE, torch.float32))
    if declared.bits == 8:
        codes = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
        return Int8Weight(codes, _scales(outputs, inputs // shared, SIZE / 64, dtype))
    if group is None or inputs % 2:
        return None
    scale = _scales(outputs, inputs // group, SIZE / 4, dtype)
    return Int4Weight(_nibbles(outputs, inputs), scale, torch.zeros_like(scale))


def _mxfp4(outputs: int, inputs: int) -> Mxfp4Weight:
    exponents = torch.full((outputs, inputs // MXFP4_GROUP), EXPONENT_BIAS - 7, dtype=torch.uint8)
    return Mxfp4Weight(_nibbles(outputs, inputs), exponents)


def _nibbles(outputs: int, inputs: int) -> torch.Tensor:
    return torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8)


def _scales(outputs: int, groups: int, size: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((outputs, groups), size, dtype=dtype)
