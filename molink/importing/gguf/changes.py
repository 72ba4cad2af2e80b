"""Changes of a GGUF file's tensors into those that a class of the library loads.

Most keep their bytes. Rows, which blocks never cross, are moved whole: q and k in the order of
another rotary embedding, heads of values in turns, two matrices that the class holds as one. Small
vectors of plain numbers are computed back. Only what cannot be done to blocks (their columns moved,
two kinds of them in one matrix) is written anew, in Q8_0, which is finer than nearly all types.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from molink.checkpoint.gguf.block_types import block_type_named
from molink.checkpoint.gguf.header import GgufTensor
from molink.errors import UnsupportedModelError
from molink.importing.checkpoint_folder import NewTensors, one_tensor
from molink.importing.gguf.metadata import GgufModel
from molink.importing.gguf.recoding import blocks_of_8, numbers, pieces_of, whole

PIECE_BYTES = 16 * 2**20
"""Bytes written at a time."""

RECODED = "q8_0"
"""Blocks of what cannot stay as it is."""

Change = Callable[[GgufModel, GgufTensor, str], list[NewTensors]]
"""Function from a tensor, and the new name, to new tensors."""

Order = Callable[[GgufModel, GgufTensor], np.ndarray]
"""Number of the old row for each new one."""

Shape = tuple[int, ...]

Group = tuple[GgufTensor, ...]
"""Tensors whose rows stand one below the other."""

# -- rows -----------------------------------------------------------------------------------------


def moved(order: Order | None, shape: Callable[[Shape], Shape] = tuple) -> Change:
    """Whole rows in another order, and as a tensor of another shape."""

    def change(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
        rows = None if order is None else order(model, tensor)
        return [_rows(model, [(tensor,)], name, shape(tensor.shape), rows)]

    return change


copied = moved(None)
"""The tensor as it is."""

flat = moved(None, lambda shape: (math.prod(shape),))
"""The same numbers as a vector."""


def convolution(order: Order | None = None) -> Change:
    """Kernels of one input each, [channels, 1, length], whose middle dimension the file drops."""
    return moved(order, lambda shape: (shape[0], 1, shape[-1]))


def split_rows(names: Sequence[str], counts: Callable[[GgufModel], Sequence[int]]) -> Change:
    """Parts of the rows under names of their own; `{}` in the name stands for theirs."""

    def change(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
        sizes = counts(model)
        if sum(sizes) != tensor.shape[0]:
            raise model.misfit(tensor, f"{tensor.shape[0]} rows, not {sum(sizes)}")
        parts = zip(names, _cut(tensor, sizes), strict=True)
        return [new for one, part in parts for new in copied(model, part, name.format(one))]

    return change


def of_each(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
    """One tensor for each entry of a stack, as plain checkpoints have experts; `{}` in the name
    stands for its number."""
    if len(tensor.shape) < 2:
        raise model.misfit(tensor, "no stack")
    entries = enumerate(_cut(tensor, [1] * tensor.shape[0]))
    parts = ((number, replace(one, shape=one.shape[1:])) for number, one in entries)
    return [new for number, part in parts for new in copied(model, part, name.format(number))]


def _cut(tensor: GgufTensor, counts: Iterable[int]) -> Iterator[GgufTensor]:
    """Parts of a tensor with so many entries of its first dimension each."""
    size, start = (tensor.stop - tensor.start) // tensor.shape[0], tensor.start
    for count in counts:
        stop = start + count * size
        yield replace(tensor, shape=(count, *tensor.shape[1:]), start=start, stop=stop)
        start = stop


def fused_rows(other: str, order: Order | None = None) -> Change:
    """The rows of this part and, below them, those of another part as one matrix."""

    def change(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
        second = _sibling(model, tensor, other)
        shape = (tensor.shape[0] + second.shape[0], *tensor.shape[1:])
        rows = None if order is None else order(model, tensor)
        return [_rows(model, [(tensor, second)], name, shape, rows)]

    return change


def fused_experts(
    model: GgufModel, tensor: GgufTensor, name: str, *, in_turns: bool = False
) -> list[NewTensors]:
    """Stack of each expert's gate with its up projection below it, or with rows of both in turns;
    of biases, [experts, rows], the same with their numbers."""
    second = _sibling(model, tensor, "ffn_up_exps")
    if second.shape != tensor.shape or len(tensor.shape) not in (2, 3):
        raise model.misfit(tensor, f"the shape {tensor.shape}, ffn_up_exps {second.shape}")
    experts, rows, *inputs = tensor.shape
    ones = [1] * experts
    groups = list(zip(_cut(tensor, ones), _cut(second, ones), strict=True))
    order = np.arange(2 * rows).reshape(2, rows).T.ravel() if in_turns else None
    return [_rows(model, groups, name, (experts, 2 * rows, *inputs), order)]


experts_in_turns = partial(fused_experts, in_turns=True)
"""Gates and up projections as gpt-oss has them."""


def _sibling(model: GgufModel, tensor: GgufTensor, other: str) -> GgufTensor:
    found = model.tensors.get(tensor.name.replace(tensor.name.split(".")[2], other))
    if found is None or found.shape[1:] != tensor.shape[1:]:
        raise model.misfit(tensor, f"no match in {other}")
    return found


def _rows(
    model: GgufModel,
    groups: Sequence[Group],
    name: str,
    shape: Sequence[int],
    order: np.ndarray | None = None,
) -> NewTensors:
    """A tensor of the rows of all groups, in each of them in the order."""
    first = groups[0][0]
    of_numbers = len(first.shape) == 1 or first.name.endswith(".bias")
    row_bytes = first.type.size if of_numbers else first.row_bytes
    if len({one.type for one in groups[0]}) > 1:
        if of_numbers:
            raise model.misfit(first, "a match of another type")
        return _recoded(groups, name, shape, order)
    sizes = [sum(one.stop - one.start for one in group) for group in groups]
    if order is not None and len(order) != sizes[0] // row_bytes:
        raise model.misfit(first, f"{sizes[0] // row_bytes} rows, not {len(order)}")
    pieces = partial(_pieces, groups, order, row_bytes)
    if first.is_plain:
        return one_tensor(name, first.type.name, shape, sum(sizes), pieces)
    if len(shape) not in (2, 3):
        raise model.misfit(first, "blocks and is no matrix")
    new = (*shape[:-1], first.row_bytes)
    return one_tensor(f"{name}_{first.type.name}", "U8", new, sum(sizes), pieces)


def _pieces(groups: Iterable[Group], order: np.ndarray | None, row_bytes: int) -> Iterator[bytes]:
    for group in groups:
        if order is None:
            for one in group:
                yield from pieces_of(one, one.start, one.stop)
            continue
        raw = np.concatenate([whole(one) for one in group]).reshape(-1, row_bytes)
        for rows in np.array_split(order, -(-raw.nbytes // PIECE_BYTES)):
            yield raw[rows].tobytes()


# -- numbers --------------------------------------------------------------------------------------


def one_less(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
    """A norm's weights without the 1 that the file adds."""
    return [_computed(model, tensor, name, tensor.shape, lambda values: values - 1)]


def logarithms(order: Order | None = None) -> Change:
    """Logarithms of decays, of which the file has the negative."""

    def change(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
        shape = tensor.shape[:1] if tensor.shape[1:] == (1,) else tensor.shape
        rows = slice(None) if order is None else order(model, tensor)
        return [_computed(model, tensor, name, shape, lambda values: np.log(-values)[rows])]

    return change


def _computed(
    model: GgufModel,
    tensor: GgufTensor,
    name: str,
    shape: Shape,
    make: Callable[[np.ndarray], np.ndarray],
) -> NewTensors:
    if tensor.type.name != "F32":
        raise UnsupportedModelError(
            f"{tensor.name} of {model.header.path} is {tensor.type.name}, where norms and decays "
            "are F32: take another version of the model"
        )
    return _plain(name, "F32", shape, lambda: make(numbers(tensor).reshape(shape)))


def latent_expansion(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
    """The matrix by which latent attention expands keys and values. The file has both halves, that
    of keys transposed. Stages hold the matrix unpacked."""
    values = model.tensors.get(tensor.name.replace("attn_k_b", "attn_v_b"))
    if values is None or len(values.shape) != 3 or len(tensor.shape) != 3:
        raise model.misfit(tensor, "no match in attn_v_b")
    heads, rank, size = tensor.shape
    shape = (heads * (size + values.shape[1]), rank)

    def both() -> np.ndarray:
        return np.concatenate([numbers(tensor).swapaxes(1, 2), numbers(values)], 1)

    return [_plain(name, "F32" if tensor.type.name == "F32" else "F16", shape, both)]


def moved_columns(order: Order) -> Change:
    """Columns in another order; blocks that are cut by it are written anew."""

    def change(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
        columns = order(model, tensor)
        if np.array_equal(columns, np.arange(len(columns))):
            return copied(model, tensor, name)
        if not tensor.is_plain:
            return [_recoded([(tensor,)], name, tensor.shape, None, columns)]

        def pieces() -> Iterator[bytes]:
            raw = whole(tensor).reshape(-1, len(columns), tensor.type.size)
            yield raw[:, columns].tobytes()

        size = tensor.stop - tensor.start
        return [one_tensor(name, tensor.type.name, tensor.shape, size, pieces)]

    return change


def _plain(name: str, kind: str, shape: Shape, make: Callable[[], np.ndarray]) -> NewTensors:
    """Numbers that are made in one piece when they are written."""
    dtype = np.dtype({"F32": np.float32, "F16": np.float16}[kind])
    size = math.prod(shape) * dtype.itemsize
    return one_tensor(name, kind, shape, size, lambda: iter([make().astype(dtype).tobytes()]))


def _recoded(
    groups: Sequence[Group],
    name: str,
    shape: Sequence[int],
    order: np.ndarray | None,
    columns: np.ndarray | None = None,
) -> NewTensors:
    block = block_type_named(RECODED)
    new = (*shape[:-1], shape[-1] // block.values * block.size)

    def pieces() -> Iterator[bytes]:
        for group in groups:
            values = np.concatenate([numbers(one).reshape(-1, shape[-1]) for one in group])
            values = values if order is None else values[order]
            yield blocks_of_8(values if columns is None else values[:, columns])

    return one_tensor(f"{name}_{RECODED}", "U8", new, math.prod(new), pieces)
