"""Layers of experts: one function for all of their families.

The library lets one registered function compute every class of experts. Its own functions read the
stacked weights of all experts; this one multiplies expert by expert, so that each matrix may be
packed as any other linear layer's is (2.3 times faster in bf16 on a CPU; see the benchmarks), or
held in few bits.

Rows are sorted by their expert once, so that each expert sees its rows as one piece.

Shapes: T rows, k experts of a row, D hidden size, P = T k pairs of a row and an expert of it.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

from molink.engine.kernels.cuda.fused_experts import FusedExperts
from molink.engine.kernels.cuda.fused_math import PAIRS_MAX

EXPERTS_NAME = "molink"
"""Name of the function in a config."""

STACK_NAMES = ("gate_up_proj", "up_proj", "down_proj")
"""Stacked weights that a class of experts may have."""


class ExpertStack(nn.Module):
    """Matrices of all experts of a layer: entry e multiplies by that of expert e."""

    def __init__(self, linears: Iterable[nn.Module]) -> None:
        super().__init__()
        self.linears = nn.ModuleList(linears)

    def __getitem__(self, expert: int) -> nn.Module:
        return self.linears[expert]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.linears)


def is_experts(module: nn.Module) -> bool:
    """Whether a module's product with its experts is computed by the registered function."""
    config = getattr(module, "config", None)
    under_interface = hasattr(module, "has_gate") and hasattr(module, "is_transposed")
    return under_interface and getattr(config, "_experts_implementation", None) == EXPERTS_NAME


def experts(
    self: Any, hidden_TD: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Sum of what the chosen experts [T, k] make of each row, by their weights [T, k]."""
    fused: FusedExperts | None = self.__dict__.get("fused_experts")
    if fused is not None and top_k_index.numel() <= PAIRS_MAX:
        return fused.sums(self, hidden_TD, top_k_index, top_k_weights)
    if hidden_TD.device.type != "cpu" and isinstance(self.down_proj, nn.Parameter):
        out: torch.Tensor = grouped_mm_experts_forward(self, hidden_TD, top_k_index, top_k_weights)
        return out
    rows, chosen = top_k_index.shape
    expert_P, order_P = torch.sort(top_k_index.reshape(-1), stable=True)
    sorted_PD = hidden_TD[order_P // chosen]
    numbers, counts = torch.unique_consecutive(expert_P, return_counts=True)
    parts = sorted_PD.split_with_sizes(counts.tolist())
    pairs = zip(numbers.tolist(), parts, strict=True)
    out_PD = torch.cat([_one_expert(self, expert, part) for expert, part in pairs])
    weighted_PD = out_PD.float() * top_k_weights.reshape(-1)[order_P, None].float()
    sums_TD = hidden_TD.new_zeros(rows, out_PD.shape[1], dtype=torch.float32)
    return sums_TD.index_add_(0, order_P // chosen, weighted_PD).to(hidden_TD.dtype)


def _one_expert(self: Any, expert: int, x: torch.Tensor) -> torch.Tensor:
    """Output of one expert for its rows."""
    x = _product(self, "down_proj", expert, _gated(self, expert, x))
    return self.post_expert_norm(x) if self.has_post_expert_norm else x


def _gated(self: Any, expert: int, x: torch.Tensor) -> torch.Tensor:
    if self.has_gate:
        gated: torch.Tensor = self._apply_gate(_product(self, "gate_up_proj", expert, x))
        return gated
    activated: torch.Tensor = self.act_fn(_product(self, "up_proj", expert, x))
    return activated


def expert_inputs(module: Any, expert: int, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The rows that each stack's matrix of an expert is given for rows of its layer."""
    with torch.inference_mode():
        return dict.fromkeys(STACK_NAMES, x) | {"down_proj": _gated(module, expert, x)}


def _product(self: Any, name: str, expert: int, x: torch.Tensor) -> torch.Tensor:
    stack = getattr(self, name)
    if isinstance(stack, ExpertStack):
        x = stack[expert](x)
    else:
        x = x @ stack[expert] if self.is_transposed else F.linear(x, stack[expert])
    return x + getattr(self, f"{name}_bias")[expert] if self.has_bias else x


ALL_EXPERTS_FUNCTIONS.register(EXPERTS_NAME, experts)
