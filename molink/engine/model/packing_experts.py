"""Packs the matrices of experts as other linear layers are, each on its own.

The library keeps the experts of a layer in one tensor; `experts` multiplies expert by expert, so
each can have the layout that is fastest here. A layout is proven on a layer's first expert, at load
on the rows that it is given; the others have its shape and format.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from molink.engine.kernels.cpu.packed_linear import (
    PackedLinear,
    distrust,
    pack_matrix,
    product_trouble,
)
from molink.engine.kernels.cpu.quantized_linear import quantized_linear
from molink.engine.layers.experts import STACK_NAMES, ExpertStack, expert_inputs, is_experts
from molink.engine.layers.quantized_linear import QuantizedLinear
from molink.engine.proof import Swaps


def pack_experts(
    model: nn.Module,
    swaps: Swaps | None = None,
    progress: Callable[[float], None] = lambda fraction: None,
) -> None:
    """Pack all experts of a model, in place; `swaps` has the rows that some are tried with."""
    swaps = swaps or Swaps()
    layers = {name: module for name, module in model.named_modules() if is_experts(module)}
    for done, name in enumerate(swaps.tried_first(layers)):
        module, rows = layers[name], swaps.inputs.get(name)
        given = {} if rows is None else expert_inputs(module, 0, rows)
        for stack in STACK_NAMES:
            holds = partial(_holds, swaps, f"{name}.{stack}", given.get(stack))
            _pack_stack(module, stack, holds)
        progress((done + 1) / len(layers))


def _holds(
    swaps: Swaps, name: str, rows: torch.Tensor | None, packed: PackedLinear, weight: Any
) -> bool:
    """Whether the packed matrix of an expert holds on its rows; else none like it is taken."""
    given = packed, weight, None, packed.weight.dtype
    trouble = None if rows is None else product_trouble(*given, rows)
    if trouble is not None:
        distrust(*given)
    return swaps.note("the product", name, trouble)


def _pack_stack(module: nn.Module, name: str, holds: Callable[..., bool]) -> None:
    stack = getattr(module, name, None)
    if isinstance(stack, ExpertStack):
        _pack_quantized(stack, holds)
    elif isinstance(stack, nn.Parameter):
        packed = _packed_plain(stack, holds, transposed=bool(module.is_transposed))
        if packed is not None:
            del module._parameters[name]
            setattr(module, name, packed)


def _pack_quantized(stack: ExpertStack, holds: Callable[..., bool]) -> None:
    for expert, linear in enumerate(stack.linears):
        assert isinstance(linear, QuantizedLinear)
        packed = quantized_linear(linear.quantized, None, linear.dtype)
        if packed is None or (expert == 0 and not holds(packed, linear.quantized)):
            return  # The others have its shape and format.
        stack.linears[expert] = packed


def _packed_plain(
    stack: nn.Parameter, holds: Callable[..., bool], *, transposed: bool
) -> ExpertStack | None:
    """The layers of all experts of [E, N, K], or of [E, K, N]; None where no layout suits."""
    weights = stack.detach().transpose(1, 2) if transposed else stack.detach()
    first = pack_matrix(weights[0].contiguous(), None)
    if first is None or not holds(first, weights[0]):
        return None
    layout = type(first)
    return ExpertStack([first, *(layout(weight.contiguous(), None) for weight in weights[1:])])
