"""Swaps modules of a loaded stage on a card for ones that launch less and compute the same.

A launch costs the host more than many of them cost the card, so norms become one operation each,
linears that read the same rows one product, gates and rotations and the layers of experts kernels
of ours. Nothing here knows an architecture: what a module computes is tried on random rows, on the
card and in its formats, and where a candidate gives other numbers the module stays. `self_test`
judges the whole: a miniature, rewritten the same way, has to compute what the library's model does.

Without Triton norms and linears are still rewritten, with operations of torch.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from molink.engine.kernels.cpu.norms import replacement_for
from molink.engine.kernels.cpu.packed_linear import joined_bias, shared_parts
from molink.engine.kernels.cuda.fused_choice import FusedChoice
from molink.engine.kernels.cuda.fused_experts import fuse_experts
from molink.engine.kernels.cuda.fused_math import FusedOperators, Gate, PlainFused
from molink.engine.kernels.cuda.rotations import put_off_rotations
from molink.engine.kernels.packed_weights import joined
from molink.engine.layers.experts import is_experts
from molink.engine.layers.quantized_linear import QuantizedLinear, use_cuda_kernels
from molink.engine.model.cpu_rewriting import linear_groups, replace_module
from molink.engine.model.pruning import Skip
from molink.engine.proof import PROBE_ROWS, alike, probe_rows, probe_weights, reference_of

GATED_LINEARS = (2, 3)
"""Linears of a gated MLP: one for gate and values or one for each, and the one back."""

GATES = (Gate("silu"), Gate("gelu_tanh"))


def rewrite_for_card(model: Any, trial: Callable[[], object], choice: FusedChoice) -> None:
    """Rewrite `model` in place; `trial` computes a few rows of one request."""
    if choice.operators is not None:
        _fuse_gates(model, choice)
        for module in filter(is_experts, list(model.modules())):
            fuse_experts(module, choice)
    for names in linear_groups(model, trial):
        if len(names) > 1:
            _join(model, names)
    use_cuda_kernels(model)
    _replace_norms(model, choice)
    put_off_rotations(model, trial, choice)


# -- linears --------------------------------------------------------------------------------------


class JoinedLinear(nn.Module):
    """Product with the matrices of several layers, one above the other."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__()
        matrix = torch.cat([linear.weight.detach() for linear in linears])
        bias = joined_bias(linears)
        self.matrix = nn.Parameter(matrix, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.weight = _format_of(matrix)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, for inputs [..., in_features]."""
        return F.linear(x, self.matrix, self.bias)


def _format_of(weight: torch.Tensor) -> torch.Tensor:
    """Empty tensor in the weight's format: architectures ask a layer's weight for it, and round
    rows to it."""
    return torch.empty(0, dtype=weight.dtype, device=weight.device)


def _join(model: nn.Module, names: Sequence[str]) -> None:
    linears = [model.get_submodule(name) for name in names]
    one = _joined(linears)
    if one is None:
        return
    for name, part in zip(names, shared_parts(one, linears), strict=True):
        replace_module(model, name, part)


def _joined(linears: Sequence[Any]) -> Any:
    """Layer for linears that read the same rows; None where their formats differ."""
    first = linears[0]
    if all(isinstance(linear, QuantizedLinear) for linear in linears):
        if any(linear.form != first.form for linear in linears):
            return None
        weight = joined([linear.quantized for linear in linears])
        return QuantizedLinear(weight, joined_bias(linears), first.dtype)
    if any(type(linear) is not nn.Linear for linear in linears):
        return None
    if any(linear.weight.dtype != first.weight.dtype for linear in linears):
        return None
    return JoinedLinear(linears)


# -- gates ----------------------------------------------------------------------------------------


class GatedMlp(nn.Module):
    """MLP whose gate is one launch."""

    def __init__(self, gate_up: nn.Module, down: nn.Module, gate: Gate, by: FusedOperators) -> None:
        super().__init__()
        self.gate_up, self.down = gate_up, down
        self._gate, self._operators = gate, by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Output of the MLP for rows [..., D]."""
        return self.down(self._operators.gated(self.gate_up(x), self._gate))  # type: ignore[no-any-return]


def _fuse_gates(model: nn.Module, choice: FusedChoice) -> None:
    for name, module in list(model.named_modules()):
        if not _may_be_gated(module):
            continue
        fused = _gated(module, choice)
        if fused is not None:
            replace_module(model, name, fused)


def _may_be_gated(module: nn.Module) -> bool:
    """Whether it is two or three linears and nothing else that has weights."""
    linears = [child for child in module.children() if _is_linear(child)]
    theirs = {id(weight) for linear in linears for weight in linear.parameters()}
    has_others = any(id(weight) not in theirs for weight in module.parameters())
    return len(linears) in GATED_LINEARS and not has_others


def _is_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear or isinstance(module, QuantizedLinear)


def _gated(module: nn.Module, choice: FusedChoice) -> GatedMlp | None:
    """MLP with a fused gate in place of this one; None for what is none, or where numbers
    differ."""
    linears: list[Any] = [child for child in module.children() if _is_linear(child)]
    for order, gate in product(_orders(linears), GATES):
        *into, down = order
        if not _agrees(module, into, down, gate, PlainFused()):
            continue
        gate_up, operators = into[0] if len(into) == 1 else _joined(into), choice.operators
        if gate_up is None or operators is None:
            return None
        kind = (gate, gate_up.weight.dtype, int(down.in_features))
        if choice.trusts("gates", kind, partial(_agrees, module, into, down, gate, operators)):
            return GatedMlp(gate_up, down, gate, operators)
        return None
    return None


def _orders(linears: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Orders in which a gate, what it is held against, and the way back may stand."""
    for order in permutations(linears):
        *into, down = order
        outputs = sum(linear.out_features for linear in into)
        same = len({(linear.in_features, linear.out_features) for linear in into}) == 1
        if same and outputs == 2 * down.in_features and down.out_features == into[0].in_features:
            yield order


def _agrees(
    module: nn.Module, into: Sequence[Any], down: Any, gate: Gate, by: FusedOperators
) -> bool:
    weight = next(module.parameters(), down.weight)
    x = probe_rows(PROBE_ROWS, down.out_features, down.weight.dtype).to(weight.device)[None]
    with torch.inference_mode():
        try:
            reference = reference_of(module, x)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return False
        got = down(by.gated(torch.cat([linear(x) for linear in into], -1), gate))
    return reference.trouble(got) is None


# -- norms ----------------------------------------------------------------------------------------


class FusedNorm(nn.Module):
    """RMS normalisation as one launch of ours, whatever the strides, with its weight in fp32."""

    def __init__(
        self, like: torch.Tensor, wide_N: torch.Tensor, epsilon: float, by: FusedOperators
    ) -> None:
        super().__init__()
        self.register_buffer("wide_N", wide_N, persistent=False)
        self.weight = _format_of(like)
        self._epsilon, self._operators = epsilon, by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normalised input, in its own format."""
        return self._operators.normed(x, self.wide_N, self._epsilon)  # type: ignore[arg-type]


class TorchNorm(nn.Module):
    """RMS normalisation by torch, which has a kernel for it on cards."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone(), requires_grad=False)
        self._epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normalised input, in its own format."""
        return torch.rms_norm(x, self.weight.shape, self.weight, self._epsilon)


def _replace_norms(model: nn.Module, choice: FusedChoice) -> None:
    for name, module in list(model.named_modules()):
        if "norm" in type(module).__name__.lower() and not isinstance(module, Skip):
            replacement = _norm(module, choice)
            if replacement is not None:
                replace_module(model, name, replacement)


def _norm(module: nn.Module, choice: FusedChoice) -> nn.Module | None:
    """A fast norm that computes what `module` computes: ours, torch's, or none."""
    weight = next(module.parameters(), None)
    if weight is None:
        return None
    operators = choice.operators
    kind = (weight.shape, weight.dtype)
    if operators is not None and choice.trusts(
        "norms", kind, lambda: _norms_alike(operators, weight)
    ):
        ours = replacement_for(
            module, lambda wide, epsilon: FusedNorm(weight, wide, epsilon, operators), torch.float32
        )
        if ours is not None:
            return ours
    return replacement_for(module, TorchNorm)


def _norms_alike(operators: FusedOperators, weight: torch.Tensor) -> bool:
    x = probe_rows(2 * PROBE_ROWS, len(weight), weight.dtype).to(weight.device)
    wide = probe_weights(len(weight), torch.float32).to(weight.device)
    got, wanted = (by.normed(x, wide, 1e-5) for by in (operators, PlainFused()))
    return alike(got, wanted) is None
