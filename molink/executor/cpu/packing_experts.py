"""Packs the matrices of experts as other linear layers are, each on its own.

The library keeps the experts of a layer in one tensor; `experts` multiplies expert by expert, so
each can have the layout that is fastest here. A layout is proven on a layer's first expert; the
others have its shape and format.
"""

from collections.abc import Callable

from torch import nn

from molink.executor.cpu.packed_linear import pack_matrix
from molink.executor.cpu.quantized_linear import quantized_linear
from molink.executor.experts import STACK_NAMES, ExpertStack, is_experts
from molink.executor.quantized.linear import QuantizedLinear

__all__ = ["pack_experts"]


def pack_experts(
    model: nn.Module, progress: Callable[[float], None] = lambda fraction: None
) -> None:
    """Pack all experts of a model, in place."""
    layers = [module for module in model.modules() if is_experts(module)]
    for done, module in enumerate(layers):
        for name in STACK_NAMES:
            _pack_stack(module, name)
        progress((done + 1) / len(layers))


def _pack_stack(module: nn.Module, name: str) -> None:
    stack = getattr(module, name, None)
    if isinstance(stack, ExpertStack):
        _pack_quantized(stack)
    elif isinstance(stack, nn.Parameter):
        packed = _packed_plain(stack, transposed=bool(module.is_transposed))
        if packed is not None:
            del module._parameters[name]
            setattr(module, name, packed)


def _pack_quantized(stack: ExpertStack) -> None:
    for expert, linear in enumerate(stack.linears):
        assert isinstance(linear, QuantizedLinear)
        packed = quantized_linear(linear.quantized, None, linear.dtype)
        if packed is None:
            return  # The others have its shape and format.
        stack.linears[expert] = packed


def _packed_plain(stack: nn.Parameter, *, transposed: bool) -> ExpertStack | None:
    """The layers of all experts of [E, N, K], or of [E, K, N]; None where no layout suits."""
    weights = stack.detach().transpose(1, 2) if transposed else stack.detach()
    first = pack_matrix(weights[0].contiguous(), None)
    if first is None:
        return None
    layout = type(first)
    return ExpertStack([first, *(layout(weight.contiguous(), None) for weight in weights[1:])])
