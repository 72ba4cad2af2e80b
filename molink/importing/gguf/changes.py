"""How tensors of a GGUF file become those that a class of the library loads.

Most keep their bytes. Rows, which blocks never cross, are moved whole: q and k in the order of
another rotary embedding, heads of values in turns, two matrices that the class holds as one. Small
vectors of plain numbers are computed back. Only what cannot be done to blocks (their columns moved,
two kinds of them in one matrix) is written anew, in Q8_0, which is finer than nearly all types.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from molink.checkpoint.gguf.block_types import block_type_named
from molink.checkpoint.gguf.header import GgufTensor
from molink.errors import CheckpointError, UnsupportedModelError
from molink.importing.checkpoint_folder import NewTensors, one_tensor
from molink.importing.gguf.metadata import GgufModel
from molink.importing.gguf.recoding import blocks_of_8, numbers, pieces_of, whole

__all__ = [
    "Change",
    "convolution",
    "copied",
    "flat",
    "fused_experts",
    "fused_rows",
    "latent_expansion",
    "logarithms",
    "moved",
    "moved_columns",
    "of_each",
    "one_less",
    "split_rows",
]

PIECE_BYTES = 16 * 2**20
"""Written at a time."""

RECODED = "q8_0"
"""Blocks of what cannot stay as it is."""

Change = Callable[[GgufModel, GgufTensor, str], list[NewTensors]]
"""Function from a tensor, and the new name, to new tensors."""

Order = Callable[[GgufModel, GgufTensor], np.ndarray]
"""Number of the old row for each new one."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of some tensors of one type, one below the other."""

    sources: tuple[GgufTensor, ...]

    @property
    def size(self) -> int:
        """Bytes of a row; a vector has rows of one number."""
        first = self.sources[0]
        return first.type.size if len(first.shape) == 1 else first.row_bytes

    @property
    def count(self) -> int:
        """Rows of all of them."""
        return sum(one.stop - one.start for one in self.sources) // self.size

    def pieces(self, order: np.ndarray | None) -> Iterator[bytes]:
        """Their bytes, rows in the order."""
        if order is None:
            for one in self.sources:
                yield from pieces_of(one, one.start, one.stop)
            return
        raw = np.concatenate([whole(one) for one in self.sources]).reshape(-1, self.size)
        step = max(1, PIECE_BYTES // self.size)
        for start in range(0, len(order), step):
            yield raw[order[start : start + step]].tobytes()


# -- rows -----------------------------------------------------------------------------------------


def copied(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
    """The tensor as it is."""
    return [_rows(model, (tensor,), name, tensor.shape)]


def flat(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
    """The same numbers as a vector."""
    return [_rows(model, (tensor,), name, (math.prod(tensor.shape),))]


def convolution(order: Order | None = None) -> Change:
    """Kernels of one input each, [channels, 1, length], whose middle dimension the file drops."""

    def change(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
        shape = (tensor.shape[0], 1, tensor.shape[-1])
        rows = None if order is None else order(model, tensor)
        return [_rows(model, (tensor,), name, shape, rows)]

    return change


def moved(order: Order) -> Change:
    """Whole rows in another order."""

    def change(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
        return [_rows(model, (tensor,), name, tensor.shape, order(model, tensor))]

    return change


def split_rows(names: Sequence[str], counts: Callable[[GgufModel], Sequence[int]]) -> Change:
    """Parts of the rows under names of their own; `{}` in the name stands for theirs."""

    def change(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
        new, start = [], 0
        size = Rows((tensor,)).size
        for one, count in zip(names, counts(model), strict=True):
            first, stop = tensor.start + start * size, tensor.start + (start + count) * size
            part = replace(tensor, shape=(count, *tensor.shape[1:]), start=first, stop=stop)
            new += copied(model, part, name.format(one))
            start += count
        if start != tensor.shape[0]:
            raise _misfit(model, tensor, f"{tensor.shape[0]} rows, not {start}")
        return new

    return change


def of_each(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
    """One tensor for each entry of a stack, as plain checkpoints have experts; `{}` in the name
    stands for its number."""
    if len(tensor.shape) < 2:
        raise _misfit(model, tensor, "no stack")
    count, *shape = tensor.shape
    size = (tensor.stop - tensor.start) // count
    new = []
    for number in range(count):
        start = tensor.start + number * size
        part = replace(tensor, shape=tuple(shape), start=start, stop=start + size)
        new += copied(model, part, name.format(number))
    return new


def fused_rows(other: str, order: Order | None = None) -> Change:
    """The rows of this part and, below them, those of another one as one matrix."""

    def change(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
        second = _beside(model, tensor, other)
        shape = (tensor.shape[0] + second.shape[0], *tensor.shape[1:])
        rows = None if order is None else order(model, tensor)
        return [_rows(model, (tensor, second), name, shape, rows)]

    return change


def fused_experts(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
    """Stack of each expert's gate with its up projection below it."""
    second = _beside(model, tensor, "ffn_up_exps")
    if second.shape != tensor.shape or len(tensor.shape) != 3:
        raise _misfit(model, tensor, f"the shape {tensor.shape}, ffn_up_exps {second.shape}")
    experts, rows, inputs = tensor.shape
    order = np.arange(2 * experts * rows).reshape(2, experts, rows).swapaxes(0, 1).ravel()
    return [_rows(model, (tensor, second), name, (experts, 2 * rows, inputs), order)]


def _beside(model: GgufModel, tensor: GgufTensor, other: str) -> GgufTensor:
    found = model.tensors.get(tensor.name.replace(tensor.name.split(".")[2], other))
    if found is None or found.shape[-1] != tensor.shape[-1]:
        raise CheckpointError(
            f"{tensor.name} of {model.header.path} has no match in {other}: fetch it again"
        )
    return found


def _rows(
    model: GgufModel,
    sources: tuple[GgufTensor, ...],
    name: str,
    shape: Sequence[int],
    order: np.ndarray | None = None,
) -> NewTensors:
    first = sources[0]
    if len({one.type for one in sources}) > 1:
        return _recoded(sources, name, shape, order)
    rows = Rows(sources)
    if order is not None and len(order) != rows.count:
        raise _misfit(model, first, f"{rows.count} rows, not {len(order)}")
    pieces, size = partial(rows.pieces, order), rows.count * rows.size
    if first.is_plain:
        return one_tensor(name, first.type.name, shape, size, pieces)
    if len(shape) not in (2, 3):
        raise _misfit(model, first, "blocks and is no matrix")
    new = (*shape[:-1], first.row_bytes)
    return one_tensor(f"{name}_{first.type.name}", "U8", new, size, pieces)


def _misfit(model: GgufModel, tensor: GgufTensor, what: str) -> CheckpointError:
    return CheckpointError(f"{tensor.name} of {model.header.path} has {what}: fetch it again")


# -- numbers --------------------------------------------------------------------------------------


def one_less(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
    """A norm's weights without the one that the file adds."""
    return [_computed(model, tensor, name, tensor.shape, lambda values: values - 1)]


def logarithms(order: Order | None = None) -> Change:
    """Logarithms of decays, of which the file has the negative."""

    def change(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
        shape = tensor.shape[:1] if tensor.shape[1:] == (1,) else tensor.shape
        rows = slice(None) if order is None else order(model, tensor)
        return [
            _computed(
                model, tensor, name, shape, lambda values: np.log(-values.reshape(shape))[rows]
            )
        ]

    return change


def _computed(
    model: GgufModel,
    tensor: GgufTensor,
    name: str,
    shape: Sequence[int],
    make: Callable[[np.ndarray], np.ndarray],
) -> NewTensors:
    if tensor.type.name != "F32":
        raise UnsupportedModelError(
            f"{tensor.name} of {model.header.path} is {tensor.type.name}, where norms and decays "
            "are F32: take another version of the model"
        )

    def pieces() -> Iterator[bytes]:
        values = whole(tensor).view(np.float32).reshape(tensor.shape)
        yield make(values).astype(np.float32).tobytes()

    return one_tensor(name, "F32", shape, tensor.stop - tensor.start, pieces)


def latent_expansion(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
    """The matrix by which latent attention expands keys and values, of which the file has both
    halves, that of keys transposed. Stages hold it unpacked."""
    values = model.tensors.get(tensor.name.replace("attn_k_b", "attn_v_b"))
    if values is None or len(values.shape) != 3 or len(tensor.shape) != 3:
        raise _misfit(model, tensor, "no match in attn_v_b")
    heads, rank, size = tensor.shape
    shape = (heads * (size + values.shape[1]), rank)
    kind = np.float32 if tensor.type.name == "F32" else np.float16

    def pieces() -> Iterator[bytes]:
        keys_HNR = numbers(tensor).swapaxes(1, 2)
        yield np.concatenate([keys_HNR, numbers(values)], 1).astype(kind).tobytes()

    bytes_count = math.prod(shape) * np.dtype(kind).itemsize
    return [one_tensor(name, "F32" if kind == np.float32 else "F16", shape, bytes_count, pieces)]


def moved_columns(order: Order) -> Change:
    """Columns in another order; blocks that are cut by it are written anew."""

    def change(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
        columns = order(model, tensor)
        if np.array_equal(columns, np.arange(len(columns))):
            return copied(model, tensor, name)
        if not tensor.is_plain:
            return [_recoded((tensor,), name, tensor.shape, None, columns)]

        def pieces() -> Iterator[bytes]:
            raw = whole(tensor).reshape(-1, len(columns), tensor.type.size)
            yield raw[:, columns].tobytes()

        size = tensor.stop - tensor.start
        return [one_tensor(name, tensor.type.name, tensor.shape, size, pieces)]

    return change


def _recoded(
    sources: tuple[GgufTensor, ...],
    name: str,
    shape: Sequence[int],
    order: np.ndarray | None,
    columns: np.ndarray | None = None,
) -> NewTensors:
    block = block_type_named(RECODED)
    new = (*shape[:-1], shape[-1] // block.values * block.size)

    def pieces() -> Iterator[bytes]:
        values = np.concatenate([numbers(one).reshape(-1, shape[-1]) for one in sources])
        values = values if order is None else values[order]
        yield blocks_of_8(values if columns is None else values[:, columns])

    return one_tensor(f"{name}_{RECODED}", "U8", new, math.prod(new), pieces)
