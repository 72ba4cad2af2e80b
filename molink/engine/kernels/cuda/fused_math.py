"""Operators of a card's fused kernels, written out in torch: their values, and their oracle.

A layer between its products is a dozen small operations: norms, the rotation of queries and keys,
the write into the KV pool, a gate. On a card each is a launch, which costs the host more than the
card. `fused` launches one kernel for each group of them; `PlainFused` computes the same with
torch, which is what kernels are compared with, and what a stage is rewritten with where the
rewriting itself is to be proven without a card.

Shapes: T rows, H query heads, K kv heads, A head size of keys, V of values, W width of the tables
of cosines and sines, E experts, P pairs of a row and an expert of it, I and O inputs and outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from molink.engine.memory.kv_pool import LayerKv

ACTIVATIONS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "silu": lambda x, slope: x * torch.sigmoid(x * slope),
    "gelu_tanh": lambda x, slope: torch.nn.functional.gelu(x, approximate="tanh"),
}
"""Activations of a gate's half; the slope is silu's."""


PAIRS_MAX = 512
"""Pairs of rows and experts of a call: 64 decode rows with eight experts each. Every program reads
the list of them, so beyond that sorting them pays."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotation of queries and keys by positions: pairs of numbers, by the angle of their
    frequency."""

    size: int
    """Numbers of a head that are turned, from its first one on; the others pass."""
    neighbours: bool
    """Whether pairs stand side by side; else one of each is in the other half."""
    step: int
    """Columns of the tables from one pair's angle to the next one's."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A rotation and the angles of a step's rows."""

    rotation: Rotation
    cos_TW: torch.Tensor
    sin_TW: torch.Tensor


@dataclass(frozen=True, slots=True)
class Gate:
    """Activation of one half of some rows, times the other half."""

    activation: str
    alternating: bool = False
    """Whether numbers of the two halves alternate; else the gate's stand before the others."""
    slope: float = 1.0
    limit: float | None = None
    """Both are held to it, the gate from above; and one is added to the other half."""


@dataclass(frozen=True, slots=True)
class ExpertCall:
    """Product of rows with the matrices of the experts that were chosen for them."""

    x: torch.Tensor
    """Rows: [P, I], one of each pair, or [P / pairs_per_row, I]."""
    weight_EIO: torch.Tensor
    """A view: which of its sizes is the inner one does not matter."""
    bias_EO: torch.Tensor | None
    expert_P: torch.Tensor
    pairs_per_row: int
    share_P: torch.Tensor | None
    """Factors of the results; None: none."""


class FusedOperators(Protocol):
    """Operators that a card computes in one launch each."""

    def normed(
        self, x: torch.Tensor, weight_N: torch.Tensor | None, epsilon: float
    ) -> torch.Tensor:
        """Rows [..., N] by the root of their mean square, times the weight (fp32)."""

    def gated(self, x: torch.Tensor, gate: Gate) -> torch.Tensor:
        """Rows [..., N] of [..., 2 N] rows through a gate."""

    def rotated(
        self, q_THA: torch.Tensor, k_TKA: torch.Tensor, turn: Turn
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys, turned."""

    def write(
        self,
        q_THA: torch.Tensor,
        k_TKA: torch.Tensor,
        v_TKV: torch.Tensor,
        turn: Turn | None,
        slots_T: torch.Tensor,
        layer: LayerKv,
    ) -> torch.Tensor:
        """Store keys, turned if there is a turn, and values; returns the queries as they are
        attended with."""

    def expert_product(self, call: ExpertCall) -> torch.Tensor:
        """Products of all pairs [P, O], in the rows' format."""


@dataclass(frozen=True, slots=True)
class PlainFused:
    """The operators written out in torch, in fp32 and rounded once."""

    def normed(
        self, x: torch.Tensor, weight_N: torch.Tensor | None, epsilon: float
    ) -> torch.Tensor:
        """Rows normed, as FusedOperators.normed."""
        return torch.rms_norm(x.float(), x.shape[-1:], weight_N, epsilon).to(x.dtype)

    def gated(self, x: torch.Tensor, gate: Gate) -> torch.Tensor:
        """Gate times up, as FusedOperators.gated."""
        wide = x.float()
        if gate.alternating:
            first, other = wide[..., ::2], wide[..., 1::2]
        else:
            first, other = wide.chunk(2, -1)
        if gate.limit is not None:
            first = first.clamp(max=gate.limit)
            other = other.clamp(-gate.limit, gate.limit) + 1
        return (ACTIVATIONS[gate.activation](first, gate.slope) * other).to(x.dtype)

    def rotated(
        self, q_THA: torch.Tensor, k_TKA: torch.Tensor, turn: Turn
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys rotated, as FusedOperators.rotated."""
        return _turned(q_THA, turn), _turned(k_TKA, turn)

    def write(
        self,
        q_THA: torch.Tensor,
        k_TKA: torch.Tensor,
        v_TKV: torch.Tensor,
        turn: Turn | None,
        slots_T: torch.Tensor,
        layer: LayerKv,
    ) -> torch.Tensor:
        """Keys and values written to the pool, as FusedOperators.write."""
        if turn is not None:
            q_THA, k_TKA = self.rotated(q_THA, k_TKA, turn)
        layer.keys.write(slots_T, k_TKA)
        layer.values.write(slots_T, v_TKV)
        return q_THA

    def expert_product(self, call: ExpertCall) -> torch.Tensor:
        """Products of experts, as FusedOperators.expert_product."""
        x_PI = call.x.repeat_interleave(call.pairs_per_row, 0).float()
        out_PO = (x_PI[:, None] @ call.weight_EIO[call.expert_P].float())[:, 0]
        if call.bias_EO is not None:
            out_PO = out_PO + call.bias_EO[call.expert_P].float()
        if call.share_P is not None:
            out_PO = out_PO * call.share_P[:, None].float()
        return out_PO.to(call.x.dtype)


def _turned(x_TNA: torch.Tensor, turn: Turn) -> torch.Tensor:
    size, pairs = turn.rotation.size, turn.rotation.size // 2
    columns = torch.arange(pairs, device=x_TNA.device) * turn.rotation.step
    cos, sin = (table[:, columns].float()[:, None] for table in (turn.cos_TW, turn.sin_TW))
    wide = x_TNA[..., :size].float()
    shape = (pairs, 2) if turn.rotation.neighbours else (2, pairs)
    pair_dim = -1 if turn.rotation.neighbours else -2
    one, other = wide.reshape(*wide.shape[:-1], *shape).unbind(pair_dim)
    pieces = (one * cos - other * sin, other * cos + one * sin)
    turned = torch.stack(pieces, pair_dim).flatten(-2)
    return torch.cat([turned.to(x_TNA.dtype), x_TNA[..., size:]], -1)
