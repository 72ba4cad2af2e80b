"""Swaps modules of a loaded CPU stage for faster ones that compute the same.

Nothing here knows an architecture. A trial run shows which linears read the same tensor; every
replacement is compared with the original on random numbers when it is made, and the self-test then
compares a whole model that was rewritten the same way. On CUDA nothing is rewritten: the kernels
there need no packing.

Originals are freed one by one, so that the peak stays near one copy of the weights. What remains is
copied out of the files: otherwise one small tensor would keep a whole shard mapped, and its pages
count as the process's memory.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from molink.executor.architecture.pruning import Skip
from molink.executor.cpu.packed_linear import (
    PackedLinear,
    SharedInput,
    SharedPart,
    joined_bias,
    pack,
)
from molink.executor.cpu.packing_experts import pack_experts
from molink.executor.cpu.quantized_linear import quantized_linear
from molink.executor.experts import ExpertStack
from molink.executor.quantized.linear import QuantizedLinear
from molink.executor.quantized.packed import joined

__all__ = ["RootMeanSquareNorm", "replacement_for", "rewrite"]

LINEARS = 0.5
"""Where the progress is when all linear layers are packed; then experts are, where there are any.
"""

MIRROR_ROWS_MAX = 48
"""Up to here the doubled input costs less than the operations saved (measured at widths 64 and
768).
"""

PROBE_SCALES = (1e-3, 1.0, 30.0)
"""Sizes of probe inputs: small ones tell different epsilons apart."""

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Largest difference from the original, relative to the largest output: one rounding more or less.
"""


def rewrite(
    model: Any,
    trial: Callable[[], None],
    *,
    embeds: bool,
    progress: Callable[[float], None] = lambda fraction: None,
) -> None:
    """Rewrite `model` in place; `trial` runs it once on some input, `embeds` says whether it takes
    token ids.
    """
    if not embeds:
        _untie_embedding(model)
    groups = _linear_groups(model, trial)
    for done, names in enumerate(groups):
        _pack_group(model, names)
        progress(LINEARS * (done + 1) / len(groups))
    pack_experts(model, lambda done: progress(LINEARS + (1 - LINEARS) * done))
    progress(1.0)
    _replace_norms(model)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _untie_embedding(model: Any) -> None:
    """Drop tied embeddings that a tail needs only as its output head, which keeps the weights."""
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, Skip):
        name = next(name for name, module in model.named_modules() if module is embedding)
        _replace(model, name, Skip())


# -- linears --------------------------------------------------------------------------------------


def _linear_groups(model: Any, trial: Callable[[], None]) -> list[list[str]]:
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


def _pack_group(model: nn.Module, names: list[str]) -> None:
    linears: list[Any] = [model.get_submodule(name) for name in names]
    quantized = isinstance(linears[0], QuantizedLinear)
    packed = _pack_quantized(linears) if quantized else pack(linears)
    if packed is None:
        return
    if len(names) == 1:
        _replace(model, names[0], packed)
        return
    shared = SharedInput(packed, [linear.out_features for linear in linears])
    for index, name in enumerate(names):
        _replace(model, name, SharedPart(shared, index))


def _pack_quantized(linears: Sequence[QuantizedLinear]) -> PackedLinear | None:
    weight = joined([linear.quantized for linear in linears])
    bias = joined_bias(linears)
    dtype = linears[0].dtype
    packed = quantized_linear(weight, bias, dtype)
    if packed is None and len(linears) > 1:
        return QuantizedLinear(weight, bias, dtype)
    return packed


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


# -- norms ----------------------------------------------------------------------------------------


def _replace_norms(model: nn.Module) -> None:
    for name, module in list(model.named_modules()):
        if "norm" in type(module).__name__.lower() and not isinstance(module, Skip):
            replacement = replacement_for(module)
            if replacement is not None:
                _replace(model, name, replacement)


class RootMeanSquareNorm(nn.Module):
    """RMS normalisation, x / sqrt(mean(x^2) + epsilon) * weight, in two operations, not eight.

    torch has no fused RMSNorm kernel for the CPU, but it has one for LayerNorm, which also
    subtracts the mean. Beside its own negative a vector has mean zero, and its mean square is
    unchanged: LayerNorm of [x, -x] is RMSNorm of x. For few rows that takes a third of the time;
    for many the doubled work costs more than it saves, and torch's composite `rms_norm` is used.
    """

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone(), requires_grad=False)
        self._epsilon = epsilon
        self._shape = (len(weight),)
        self._mirror_shape = (2 * len(weight),)
        self._mirror_weight = torch.cat([weight, weight])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normalised input, in its own format."""
        size = self._shape[0]
        if x.numel() > MIRROR_ROWS_MAX * size:
            return torch.rms_norm(x, self._shape, self.weight, self._epsilon)
        mirrored = torch.cat((x, x.neg()), -1)
        normed = torch.layer_norm(
            mirrored, self._mirror_shape, self._mirror_weight, None, self._epsilon
        )
        return normed[..., :size]


def replacement_for(module: nn.Module) -> RootMeanSquareNorm | None:
    """Return a fast norm that computes what `module` computes, or None for something else.

    Architectures differ in the weight (gemma adds one) and in roundings, so a module is replaced
    only after it gave the same numbers as the original on random inputs of several sizes.
    """
    parameters = dict(module.named_parameters())
    weight = parameters.get("weight")
    epsilon = _epsilon(module)
    if len(parameters) != 1 or weight is None or weight.dim() != 1 or epsilon is None:
        return None
    if any(True for _ in module.children()) or weight.dtype not in TOLERANCE:
        return None
    if len(inspect.signature(module.forward).parameters) != 1:
        return None  # A second input, such as a gate, would be lost.
    for candidate_weight in (weight.detach(), 1 + weight.detach()):
        candidate = RootMeanSquareNorm(candidate_weight, epsilon)
        if _norms_agree(module, candidate):
            return candidate
    return None


def _epsilon(module: nn.Module) -> float | None:
    for name in ("variance_epsilon", "eps", "epsilon"):
        value: Any = getattr(module, name, None)
        if isinstance(value, float):
            return value
    return None


def _norms_agree(module: nn.Module, candidate: RootMeanSquareNorm) -> bool:
    weight = candidate.weight
    generator = torch.Generator().manual_seed(0)
    for rows in (2, MIRROR_ROWS_MAX + 1):
        for scale in PROBE_SCALES:
            x = torch.randn(1, rows, len(weight), generator=generator) * scale
            if not _close(module, candidate, x.to(weight.dtype)):
                return False
    return True


def _close(module: nn.Module, candidate: RootMeanSquareNorm, x: torch.Tensor) -> bool:
    with torch.inference_mode():
        try:
            wanted = module(x)
        except (RuntimeError, TypeError):
            return False
        got = candidate(x)
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        return False
    difference = (got.float() - wanted.float()).abs().max()
    return bool(difference <= TOLERANCE[x.dtype] * wanted.float().abs().max())
