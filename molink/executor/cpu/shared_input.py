"""Sibling layers that read the same tensor are computed in one product.

Queries, keys and values come from one input, gate and up projections from another. Stacked, they
are one product with one set-up instead of three. Which layers belong together is observed in a
trial run, not guessed from names: siblings in one module that were handed the very same tensor.

The module tree keeps its shape. The first sibling that is called computes everything and the others
pick up their part, recognising their input by identity; a call with any other tensor is computed
afresh, so the result is right whatever the architecture does with it.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from molink.executor.cpu.packed_linear import PackedLinear

__all__ = ["SharedInput", "SharedPart"]


@dataclass(slots=True)
class Pending:
    """The outputs of one input that have not all been picked up. Apart from the module, whose
    attributes are slow to set.
    """

    input: torch.Tensor | None = None
    outputs: tuple[torch.Tensor, ...] = ()
    waiting: int = 0


class SharedInput(nn.Module):
    """A packed product whose output columns belong to several layers."""

    def __init__(self, packed: PackedLinear, sizes: list[int]) -> None:
        super().__init__()
        self.packed = packed
        self._sizes = sizes
        self._pending = Pending()

    def part(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Output `index` for the input `x`."""
        pending = self._pending
        if x is not pending.input:
            pending.input, pending.waiting = x, len(self._sizes)
            pending.outputs = self.packed(x).split_with_sizes(self._sizes, -1)
        output = pending.outputs[index]
        pending.waiting -= 1
        if pending.waiting == 0:
            pending.input, pending.outputs = None, ()
        return output


class SharedPart(nn.Module):
    """Stands where one of the sharing layers stood."""

    def __init__(self, shared: SharedInput, index: int) -> None:
        super().__init__()
        self.shared = shared
        self._part = partial(shared.part, index)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This layer's columns of the shared product."""
        return self._part(x)
