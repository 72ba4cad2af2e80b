"""Memory of a stage's layers side by side, so that blocks of some have room in that of others.

When a prompt is cut (`prompt_cut`), its first blocks hold nothing any more that most layers read:
the few that keep all of it have rows there alone. Those would hold whole blocks for a small part of
each. So the layers' tensors are one piece of memory, layer behind layer, and those that keep all
come first: the tensor of such a layer can go on over the memory of the layers behind it. Where
block b of that layer is number b, number b + W n is the same block of the layer that stands W
places further on, and so on, which nobody else reads once the block is given to this alone. All W
layers have the same numbers then, so they read one table, and no kernel knows of it.

A pool of its own for these layers was rejected: how much of the memory it should take nobody knows
before requests say what they keep, and where none does it would lie idle.

Shapes: n blocks of a layer, W layers that keep all.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from molink.engine.memory.kv_rows import KvRows

FOLDS_MAX = 512
"""Blocks that lie in one where no layer keeps all: as many as any model has layers."""


@dataclass(frozen=True, slots=True)
class LayerKv:
    """KV tensors of one layer."""

    keys: KvRows
    values: KvRows

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in this layer."""
        return self.keys.token_bytes + self.values.token_bytes

    def is_like(self, other: "LayerKv") -> bool:
        """Whether slots of both are of one shape and format."""
        return self.keys.is_like(other.keys) and self.values.is_like(other.values)

    def emptied(self, slots: int) -> "LayerKv":
        """Another layer of the same kind, for so many slots."""
        return LayerKv(self.keys.emptied(slots), self.values.emptied(slots))

    def between(self, start: int, stop: int) -> "LayerKv":
        """A view of neighbouring slots."""
        return LayerKv(self.keys.between(start, stop), self.values.between(start, stop))


@dataclass(frozen=True, slots=True)
class FoldingLayers:
    """Empty layers that lie side by side."""

    layers: dict[int, LayerKv]
    long: dict[int, LayerKv]
    """Those that keep all of a prompt, whose tensors go on over the memory of all behind them."""
    folds: int
    """Blocks of these for which one block has room."""

    @classmethod
    def of(
        cls, layers: Mapping[int, LayerKv], whole: Collection[int], slots: int
    ) -> "FoldingLayers | None":
        """Layers like these, with so many slots each; None: they are not alike, or most of them
        keep all, or none does."""
        if not whole or len(layers) < 2 * len(whole):
            return None
        order = [*sorted(whole), *sorted(layers.keys() - set(whole))]
        first = layers[order[0]]
        if not all(first.is_like(layer) for layer in layers.values()):
            return None
        memory, end = first.emptied(len(order) * slots), len(order) * slots
        placed = {one: memory.between(at * slots, (at + 1) * slots) for at, one in enumerate(order)}
        long = {one: memory.between(at * slots, end) for at, one in enumerate(order[: len(whole)])}
        return cls(placed, long, len(order) // len(whole))
