"""The tensors behind the KV blocks: for each layer one row of keys and one of values per token
slot.

Which slot belongs to whom is the bookkeeping of `KvBlocks`; here is only memory. A layer's shape is
taken from the first keys and values that it writes, since heads and head sizes may differ between
layers and between K and V.

A layer of latent attention has one row for each token instead, from which its keys and values are
made. In int8 it is cut into vectors of one size, none of them both latent and rotated, each with
its scale.

Memory comes as zero pages that the operating system hands out when they are first written, so a
large pool costs nothing until it is used. Zeros matter: a kernel may read whole blocks, of which
slots that were never written are masked, and masked infinities would still spoil a sum.

Layers lie side by side, so that blocks of some have room in the memory of others. When a prompt is
cut (`prompt_cut`), its first blocks hold nothing any more that most layers read: the few that keep
all of it have rows there alone. Those would hold whole blocks for a small part of each. So the
layers' tensors are one piece of memory, layer behind layer, and those that keep all come first: the
tensor of such a layer can go on over the memory of the layers behind it. Where block b of that
layer is number b, number b + W n is the same block of the layer that stands W places further on,
and so on, which nobody else reads once the block is given to this alone. All W layers have the same
numbers then, so they read one table, and no kernel knows of it.

A pool of its own for these layers was rejected: how much of the memory it should take nobody knows
before requests say what they keep, and where none does it would lie idle.

Shapes: n blocks of a layer, W layers that keep all of a prompt, T rows of a batch, N tokens of a
sequence, K kv heads, A head size of keys, V of values, L numbers of a latent row.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

import torch

from molink.checkpoint.kv_format import KvDtype
from molink.engine.memory.kv_rows import KvRows
from molink.engine.memory.ragged_batch import SeenKeys
from molink_scheduler.kv.blocks import BLOCK_TOKENS, folded_numbers

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


@dataclass(slots=True)
class KvPool:
    """KV tensors of all layers of one stage, by token slot."""

    slots: int
    kv_dtype: KvDtype = "auto"
    layers: dict[int, LayerKv] = field(default_factory=dict)
    latents: dict[int, KvRows] = field(default_factory=dict)
    """Rows of the layers that keep latent rows, [S, vectors, L / vectors]."""
    folds: int = 1
    """Blocks of layers that keep all of a cut prompt for which one block has room."""
    long: dict[int, LayerKv] = field(default_factory=dict)
    """These layers, whose tensors go on over the memory of those behind them."""
    _gathered: dict[tuple[torch.dtype, int, int], torch.Tensor] = field(default_factory=dict)
    """Scratch that gathers reuse on a CPU: fresh memory costs six times the copy, in page faults.
    On a card steps of two streams, or a recorded one and others, would write it at once."""

    _unfolded: "KvPool | None" = None

    def __post_init__(self) -> None:
        if self.slots < BLOCK_TOKENS or self.slots % BLOCK_TOKENS:
            raise ValueError(f"a KV pool holds whole blocks, one at least, got {self.slots} slots")

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers seen so far."""
        latent_bytes = sum(rows.token_bytes for rows in self.latents.values())
        return latent_bytes + sum(layer.token_bytes for layer in self.layers.values())

    @property
    def fold_step(self) -> int:
        """From one number of a block to its next, in the layers that read folded ones."""
        return len(self.long) * self.slots // BLOCK_TOKENS

    @property
    def unfolded(self) -> "KvPool":
        """The same memory as layers see it that keep all of a prompt that was folded."""
        if self._unfolded is None:
            self._unfolded = KvPool(self.slots, self.kv_dtype, self.long, _gathered=self._gathered)
        return self._unfolded if self.long else self

    def fold(self, blocks: Sequence[int], hosts: Sequence[int]) -> None:
        """Have some blocks lie in fewer ones, of which no other layers read anything any more."""
        if not self.long:
            return
        numbers = folded_numbers(hosts, len(blocks), self.fold_step)
        device = next(iter(self.long.values())).keys.rows_SKA.device
        from_B, to_B = (torch.tensor(one, device=device).long() for one in (blocks, numbers))
        with torch.inference_mode():
            for layer in self.long.values():
                layer.keys.copy_blocks(from_B, to_B)
                layer.values.copy_blocks(from_B, to_B)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # Whoever reads them may do so in another stream.

    def write(
        self,
        layer_index: int,
        slots_T: torch.Tensor,
        keys_TKA: torch.Tensor,
        values_TKV: torch.Tensor,
    ) -> LayerKv:
        """Store a step's keys and values, and return the layer that now holds them."""
        layer = self.layer_of(layer_index, keys_TKA, values_TKV)
        layer.keys.write(slots_T, keys_TKA)
        layer.values.write(slots_T, values_TKV)
        return layer

    def layer_of(
        self, layer_index: int, keys_TKA: torch.Tensor, values_TKV: torch.Tensor
    ) -> LayerKv:
        """A layer's tensors; they are made for keys and values like these if there are none."""
        layer = self.layers.get(layer_index)
        if layer is None:
            layer = self.layers[layer_index] = LayerKv(
                KvRows.zeros(self.slots, keys_TKA, self.kv_dtype),
                KvRows.zeros(self.slots, values_TKV, self.kv_dtype),
            )
        return layer

    def write_latents(
        self, layer_index: int, slots_T: torch.Tensor, rows_TL: torch.Tensor, rank: int
    ) -> KvRows:
        """Store a step's latent rows, the first `rank` numbers of each latent and the others
        rotated; returns those of all slots."""
        size = gcd(rank, rows_TL.shape[1])
        vectors = rows_TL.view(len(rows_TL), -1, size)
        rows = self.latents.get(layer_index)
        if rows is None:
            rows = KvRows.zeros(self.slots, vectors, self.kv_dtype)
            self.latents[layer_index] = rows
        rows.write(slots_T, vectors)
        return rows

    def read(self, source: KvRows, seen: SeenKeys, which: int = 0) -> KvRows:
        """Rows that a span sees: a view, or a gathered copy."""
        whole = source if seen.blocks_B is None else self.gather(source, seen.blocks_B, which)
        return whole.between(seen.slots.start, seen.slots.stop)

    def gather(self, source: KvRows, blocks_B: torch.Tensor, which: int = 0) -> KvRows:
        """Copy scattered blocks together; valid until the next gather of the same kind (`which`: 0
        keys, 1 values), on a card for good.
        """
        rows = self._copied(source.rows_SKA, blocks_B, which)
        if source.scales_SK is None:
            return KvRows(rows)
        return KvRows(rows, self._copied(source.scales_SK, blocks_B, which))

    def _copied(self, source: torch.Tensor, blocks_B: torch.Tensor, which: int) -> torch.Tensor:
        count, width = len(blocks_B), BLOCK_TOKENS * source[0].numel()
        rows = source.view(-1, width)
        if source.device.type != "cpu":
            return torch.index_select(rows, 0, blocks_B).view(-1, *source.shape[1:])
        key = (source.dtype, width, which)
        scratch = self._gathered.get(key)
        if scratch is None or len(scratch) < count:
            blocks = max(count, min(2 * count, self.slots // BLOCK_TOKENS))
            scratch = self._gathered[key] = source.new_empty(blocks, width)
        out = scratch[:count]
        torch.index_select(rows, 0, blocks_B, out=out)
        return out.view(-1, *source.shape[1:])

    def clear(self) -> None:
        """Hold zeros in the same place."""
        for one in self._all_rows():
            one.rows_SKA.zero_()
            if one.scales_SK is not None:
                one.scales_SK.zero_()

    def wipe(self, blocks: Sequence[int]) -> None:
        """Hold zeros in these blocks."""
        with torch.inference_mode():
            for rows_BX in self.block_rows():
                rows_BX[list(blocks)] = 0

    def block_rows(self) -> list[torch.Tensor]:
        """All memory of the blocks as bytes: tensors [blocks, bytes of one block in it]."""
        return [one for tensors in self.block_rows_by_layer().values() for one in tensors]

    def block_rows_by_layer(self) -> dict[int, list[torch.Tensor]]:
        """The same of each layer, in the order in which layers are computed."""
        return {index: self._blocks_of(rows) for index, rows in sorted(self._rows().items())}

    def _blocks_of(self, layer: list[KvRows]) -> list[torch.Tensor]:
        tensors = [one for rows in layer for one in (rows.rows_SKA, rows.scales_SK)]
        blocks = self.slots // BLOCK_TOKENS
        return [one.view(blocks, -1).view(torch.uint8) for one in tensors if one is not None]

    def _rows(self) -> dict[int, list[KvRows]]:
        rows = {index: [layer.keys, layer.values] for index, layer in self.layers.items()}
        return rows | {index: [one] for index, one in self.latents.items()}

    def _all_rows(self) -> list[KvRows]:
        return [one for layer in self._rows().values() for one in layer]

    def give_back(self, runs: Iterable[tuple[int, int]]) -> None:
        """Let the system have the memory of blocks that belong to nobody, given as runs (first
        block, how many); whole pages are zeros again."""
        for first, count in runs:
            for one in self._all_rows():
                one.give_back(first * BLOCK_TOKENS, (first + count) * BLOCK_TOKENS)

    def resized(self, slots: int, whole: Collection[int] = ()) -> "KvPool":
        """An empty pool of another size with the same layers, of which these keep all of a prompt
        that is cut."""
        folding = FoldingLayers.of(self.layers, whole, slots)
        if folding is not None and not self.latents:
            return KvPool(
                slots, self.kv_dtype, folding.layers, folds=folding.folds, long=folding.long
            )
        layers = {
            index: LayerKv(layer.keys.emptied(slots), layer.values.emptied(slots))
            for index, layer in self.layers.items()
        }
        latents = {index: rows.emptied(slots) for index, rows in self.latents.items()}
        folds = 1 if whole or latents else FOLDS_MAX
        return KvPool(slots, self.kv_dtype, layers, latents, folds)
