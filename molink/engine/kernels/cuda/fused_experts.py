"""Layers of experts on a card, for the few rows of a decode step: no sorting, nothing on the host.

The library sorts rows by their expert, which takes twenty operations, and hands them to torch's
grouped product, whose version for cards before sm_90 reads on the host how many rows each expert
has. Here every program of a product with an expert finds its rows in the list of all pairs. A gate
is tried like everything else: the library's classes have their own.

Shapes: T rows, k experts of a row, D hidden size, P = T k pairs of a row and an expert of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from molink.engine.kernels.cuda.fused_choice import FusedChoice
from molink.engine.kernels.cuda.fused_math import ExpertCall, FusedOperators, Gate, PlainFused
from molink.engine.proof import alike

PROBE_ROWS = 9
PROBE_EXPERTS = 2


@dataclass(frozen=True, slots=True)
class FusedExperts:
    """Experts of a layer by fused operators."""

    operators: FusedOperators
    gate: Gate

    def sums(
        self, module: Any, hidden_TD: torch.Tensor, index_Tk: torch.Tensor, share_Tk: torch.Tensor
    ) -> torch.Tensor:
        """Outputs of the chosen experts for each row, added up by their shares."""
        rows, chosen = index_Tk.shape
        pairs_P = index_Tk.reshape(-1)

        def product(name: str, x: torch.Tensor, pairs: int, share: torch.Tensor | None) -> Any:
            weight, bias = _weight(module, name), getattr(module, f"{name}_bias", None)
            call = ExpertCall(x, weight, bias, pairs_P, pairs, share)
            return self.operators.expert_product(call)

        x = product("gate_up_proj", hidden_TD, chosen, None)
        x = self.operators.gated(x, self.gate)
        x = product("down_proj", x, 1, share_Tk.reshape(-1))
        sums_TD: torch.Tensor = x.view(rows, chosen, -1).sum(1)
        return sums_TD


def fuse_experts(module: Any, choice: FusedChoice) -> None:
    """Let a module's experts be computed by fused operators, where they give what the library
    does."""
    stacks: list[Any] = [getattr(module, name, None) for name in ("gate_up_proj", "down_proj")]
    is_plain = all(isinstance(stack, nn.Parameter) for stack in stacks)
    if choice.operators is None or not is_plain or module.has_post_expert_norm:
        return
    gate = next((gate for gate in gates_of(module) if _gates_alike(module, gate)), None)
    if gate is None:
        return
    fused = FusedExperts(choice.operators, gate)
    kind = (type(module), gate, *(stack.shape for stack in stacks), stacks[0].dtype)
    if choice.trusts("the product with experts", kind, lambda: _sums_alike(module, fused)):
        module.__dict__["fused_experts"] = fused


def gates_of(module: Any) -> Iterator[Gate]:
    """Gates that a module may have."""
    yield Gate("silu")
    yield Gate("gelu_tanh")
    slope, limit = (getattr(module, name, None) for name in ("alpha", "limit"))
    if isinstance(slope, int | float) and isinstance(limit, int | float):
        yield Gate("silu", True, float(slope), float(limit))


def _weight(module: Any, name: str) -> torch.Tensor:
    stack: torch.Tensor = getattr(module, name)
    return stack if module.is_transposed else stack.transpose(1, 2)


def _gates_alike(module: Any, gate: Gate) -> bool:
    width = _weight(module, "gate_up_proj").shape[2]
    x = _random(module.down_proj, PROBE_ROWS, width) * 4  # As far as a limit, too.
    with torch.inference_mode():
        return alike(PlainFused().gated(x, gate), module._apply_gate(x)) is None


def _sums_alike(module: Any, fused: FusedExperts) -> bool:
    """Whether random rows come out as they did."""
    hidden_TD = _random(module.down_proj, PROBE_ROWS, _weight(module, "gate_up_proj").shape[1])
    scores = torch.rand(PROBE_ROWS, len(module.down_proj), generator=_generator())
    share_Tk, index_Tk = scores.topk(min(PROBE_EXPERTS, scores.shape[1]))
    share_Tk, index_Tk = share_Tk.to(hidden_TD), index_Tk.to(hidden_TD.device)
    got = fused.sums(module, hidden_TD, index_Tk, share_Tk)
    wanted = module(hidden_TD, index_Tk, share_Tk)  # The module is not fused yet.
    return alike(got, wanted) is None


def _random(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=_generator()).to(like.device, like.dtype)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
