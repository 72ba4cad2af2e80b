"""Swaps modules of a loaded CPU stage for faster ones that compute the same.

Nothing here knows an architecture. A trial run shows which linears read the same tensor; every
replacement is compared with the original on random numbers when it is made, and the self-test then
compares a whole model that was rewritten the same way. A card has a rewriting of its own
(`cuda.rewriting`), which finds linears and norms as this one does.

Originals are freed one by one, so that the peak stays near one copy of the weights. What remains is
copied out of the files: otherwise one small tensor would keep a whole shard mapped, and its pages
count as the process's memory.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from molink.executor.architecture.pruning import Skip
from molink.executor.attention.function import observed_attention
from molink.executor.cpu.finding_plain_layers import call_of, use_plain_layers
from molink.executor.cpu.native_attention import refuse_kernels, rows_trouble
from molink.executor.cpu.norms import RootMeanSquareNorm, norm_trouble, replacement_for
from molink.executor.cpu.packed_linear import (
    PackedLinear,
    SharedInput,
    SharedPart,
    distrust,
    joined_bias,
    joined_weight,
    pack_matrix,
    product_trouble,
)
from molink.executor.cpu.packing_experts import pack_experts
from molink.executor.cpu.quantized_linear import quantized_linear
from molink.executor.experts import ExpertStack
from molink.executor.proof import Swaps
from molink.executor.quantized.linear import QuantizedLinear
from molink.executor.quantized.packed import joined

__all__ = ["linear_groups", "replace_module", "rewrite"]

LINEARS = 0.5
"""Where the progress is when all linear layers are packed; then experts are, where there are any.
"""


def rewrite(
    model: Any,
    trial: Callable[[], object],
    tokens: Callable[[], object] | None = None,
    *,
    embeds: bool,
    progress: Callable[[float], None] = lambda fraction: None,
) -> Swaps:
    """Rewrite `model` in place; `trial` runs it once on some input, `embeds` says whether it takes
    token ids. What is swapped is tried once more with the rows that `tokens`, or `trial`, gives it.
    """
    if not embeds:
        _untie_embedding(model)
    tried: list[Swaps] = []
    groups = linear_groups(model, lambda: tried.append(_tried(model, tokens or trial)))
    swaps = tried[0]
    for done, names in enumerate(groups):
        _pack_group(model, names, swaps)
        progress(LINEARS * (done + 1) / len(groups))
    pack_experts(model, lambda done: progress(LINEARS + (1 - LINEARS) * done))
    progress(1.0)
    _replace_norms(model, swaps)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    use_plain_layers(model, trial, swaps)
    return swaps


def _tried(model: nn.Module, tokens: Callable[[], object]) -> Swaps:
    """The rows that modules are given; attention is tried with its own at once."""
    names = {module: name for name, module in model.named_modules()}
    calls: dict[str, Any] = {}

    def note(module: nn.Module, *rows: torch.Tensor, **settings: Any) -> None:
        calls[names[module]] = call_of(module, *rows, **settings), rows

    with observed_attention(note):
        swaps = Swaps.seen(model, tokens)
    for name, ((*_, window, variant), rows) in calls.items():
        query, key, value = (one[0].transpose(0, 1).contiguous() for one in rows[:3])
        if not swaps.note(name, rows_trouble(query, key, value, window, variant)):
            refuse_kernels()
    return swaps


def _untie_embedding(model: Any) -> None:
    """Drop tied embeddings that a tail needs only as its output head, which keeps the weights."""
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, Skip):
        name = next(name for name, module in model.named_modules() if module is embedding)
        replace_module(model, name, Skip())


# -- linears --------------------------------------------------------------------------------------


def linear_groups(model: Any, trial: Callable[[], object]) -> list[list[str]]:
    """Names of linears, those that read the same tensor and have the same parent together.

    Without those that their parent does not call although it runs: it works with their weight. And
    without experts, which are packed for themselves.
    """
    experts = {one for stack in model.modules() if isinstance(stack, ExpertStack) for one in stack}
    names = [
        name
        for name, module in model.named_modules()
        if _is_linear(module) and module not in experts and not _is_embedding_too(model, module)
    ]
    parents = sorted({name.rpartition(".")[0] for name in names})
    with _recorded_inputs(model, names) as inputs, _recorded_inputs(model, parents) as ran:
        trial()
    groups: dict[object, list[str]] = {}
    for name in names:
        parent = name.rpartition(".")[0]
        seen = inputs.get(name, [])
        if parent in ran and not seen:
            continue
        form = getattr(model.get_submodule(name), "form", None)
        key = (parent, id(seen[0]), form) if len(seen) == 1 else name
        groups.setdefault(key, []).append(name)
    return list(groups.values())


def _is_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear or isinstance(module, QuantizedLinear)


def _is_embedding_too(model: Any, linear: nn.Module) -> bool:
    """Whether the weight is also looked up as embedding: a packed copy would be a second one."""
    return isinstance(linear, nn.Linear) and linear.weight is getattr(
        model.get_input_embeddings(), "weight", None
    )


@contextmanager
def _recorded_inputs(model: nn.Module, names: list[str]) -> Iterator[dict[str, list[Any]]]:
    """The inputs that the named modules receive inside the block, kept alive so that ids stay
    unique.
    """
    inputs: dict[str, list[Any]] = {}
    handles = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, args, name=name: inputs.setdefault(name, []).append(args[0] if args else None)
        )
        for name in names
    ]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


def _pack_group(model: nn.Module, names: list[str], swaps: Swaps) -> None:
    linears: list[Any] = [model.get_submodule(name) for name in names]
    bias, dtype = joined_bias(linears), linears[0].weight.dtype
    packed: PackedLinear | None
    if isinstance(linears[0], QuantizedLinear):
        weight: Any = joined([linear.quantized for linear in linears])
        packed = quantized_linear(weight, bias, dtype)
    else:
        weight = joined_weight(linears)
        packed = None if weight is None else pack_matrix(weight, bias)
    if packed is not None:
        trouble_of = partial(product_trouble, packed, weight, bias, dtype)
        if not swaps.holds(names[0], trouble_of):
            distrust(packed, weight, bias, dtype)
            packed = None
    if packed is None and len(linears) > 1 and isinstance(linears[0], QuantizedLinear):
        packed = QuantizedLinear(weight, bias, dtype)
    if packed is None:
        return
    if len(names) == 1:
        replace_module(model, names[0], packed)
        return
    shared = SharedInput(packed, [linear.out_features for linear in linears])
    for index, name in enumerate(names):
        replace_module(model, name, SharedPart(shared, index))


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of a named one."""
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


# -- norms ----------------------------------------------------------------------------------------


def _fast_norm(module: nn.Module) -> nn.Module | None:
    """Fast norm with weights in fp32, so that 1 + w is not rounded; None where none is right."""
    weight = next(module.parameters(), None)
    if weight is None:
        return None

    def made(wide: torch.Tensor, epsilon: float) -> nn.Module:
        return RootMeanSquareNorm(wide, epsilon, weight.dtype)

    return replacement_for(module, made, torch.float32)


def _replace_norms(model: nn.Module, swaps: Swaps) -> None:
    for name, module in list(model.named_modules()):
        if "norm" in type(module).__name__.lower() and not isinstance(module, Skip):
            fast = _fast_norm(module)
            if fast is not None and swaps.holds(name, partial(norm_trouble, module, fast)):
                replace_module(model, name, fast)
