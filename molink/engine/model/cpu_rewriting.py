"""Swaps modules of a loaded CPU stage for faster ones that compute the same.

Nothing here knows an architecture. A trial run shows which linears read the same tensor; every
replacement is compared with the original on random numbers when it is made, and the self-test then
compares a whole model that was rewritten the same way. A card has a rewriting of its own
(`cuda_rewriting`), which finds linears and norms as this one does.

Originals are freed one by one, so that the peak stays near one copy of the weights. What remains is
copied out of the files: otherwise one small tensor would keep a whole shard mapped, and its pages
count as the process's memory.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from molink.engine.kernels.cpu.native_attention import refuse_kernels
from molink.engine.kernels.cpu.norms import RootMeanSquareNorm, norm_trouble, replacement_for
from molink.engine.kernels.cpu.packed_linear import (
    distrust,
    joined_bias,
    joined_weight,
    pack_matrix,
    product_trouble,
    shared_parts,
)
from molink.engine.kernels.cpu.proving_attention import rows_trouble
from molink.engine.kernels.cpu.quantized_linear import quantized_linear
from molink.engine.kernels.packed_weights import joined
from molink.engine.layers.attention_function import observed_attention
from molink.engine.layers.experts import ExpertStack
from molink.engine.layers.layer_rows import LayerRows
from molink.engine.layers.quantized_linear import QuantizedLinear
from molink.engine.memory.kv_pool import KvPool, LayerKv
from molink.engine.memory.ragged_batch import RaggedBatch
from molink.engine.model.finding_plain_layers import use_plain_layers
from molink.engine.model.layer_trial import call_of
from molink.engine.model.packing_experts import pack_experts
from molink.engine.model.pruning import Skip
from molink.engine.proof import Swaps, recorded_inputs
from molink_scheduler.kv.blocks import BLOCK_TOKENS

LINEARS = 0.5
"""Progress when all linear layers are packed; then experts are, where there are any."""


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
    by_first = {names[0]: names for names in groups}
    for done, first in enumerate(swaps.tried_first(by_first)):
        _pack_group(model, by_first[first], swaps)
        progress(LINEARS * (done + 1) / len(groups))
    pack_experts(model, swaps, lambda done: progress(LINEARS + (1 - LINEARS) * done))
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
    for name in filter(swaps.tries, calls):
        (*_, window, variant), rows = calls[name]
        query, key, value = (one[0].transpose(0, 1).contiguous() for one in rows[:3])
        trouble = rows_trouble(_attended, query, key, value, window, variant)
        if not swaps.note("attention", name, trouble):
            refuse_kernels()
    return swaps


def _attended(
    query_THA: torch.Tensor, layer: LayerKv, batch: RaggedBatch, *call: Any
) -> torch.Tensor:
    """Attention by the kernels that a stage has for these rows."""
    return LayerRows(batch, KvPool(BLOCK_TOKENS), layer, query_THA, *call).attend()


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
    with recorded_inputs(model, names) as inputs, recorded_inputs(model, parents) as ran:
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


def _pack_group(model: nn.Module, names: list[str], swaps: Swaps) -> None:
    linears: list[Any] = [model.get_submodule(name) for name in names]
    bias, dtype = joined_bias(linears), linears[0].weight.dtype
    weight: Any
    if isinstance(linears[0], QuantizedLinear):
        weight = joined([linear.quantized for linear in linears])
        packed = quantized_linear(weight, bias, dtype)
    else:
        weight = joined_weight(linears)
        packed = None if weight is None else pack_matrix(weight, bias)
    is_fast = packed is not None
    if packed is None and len(linears) > 1 and isinstance(linears[0], QuantizedLinear):
        packed = QuantizedLinear(weight, bias, dtype)
    if packed is None:
        return
    parts = shared_parts(packed, linears)
    if is_fast and not all(map(partial(_part_holds, swaps), names, parts, linears)):
        distrust(packed, weight, bias, dtype)
        return
    for name, part in zip(names, parts, strict=True):
        replace_module(model, name, part)


def _part_holds(swaps: Swaps, name: str, part: nn.Module, linear: Any) -> bool:
    """Whether what stands for a linear holds on its rows, with its weights."""
    is_coded = isinstance(linear, QuantizedLinear)
    weight = linear.quantized if is_coded else linear.weight.detach()
    trouble_of = partial(product_trouble, part, weight, linear.bias, linear.weight.dtype)
    return swaps.holds("the product", name, trouble_of)


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
    norms: dict[str, nn.Module] = {
        name: module
        for name, module in model.named_modules()
        if "norm" in type(module).__name__.lower() and not isinstance(module, Skip)
    }
    off: set[type] = set()
    for name in swaps.tried_first(norms):
        fast = None if type(norms[name]) in off else _fast_norm(norms[name])
        if fast is None:
            continue
        if swaps.holds("the norm", name, partial(norm_trouble, norms[name], fast)):
            replace_module(model, name, fast)
        else:
            off.add(type(norms[name]))
