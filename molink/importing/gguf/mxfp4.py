"""Experts of gpt-oss: rows of gate and up in turns, and exponents apart from codes."""

import math
from collections.abc import Iterator

import numpy as np

from molink.checkpoint.gguf.header import GgufTensor
from molink.checkpoint.safetensors_header import StoredTensor
from molink.errors import CheckpointError, UnsupportedModelError
from molink.importing.checkpoint_folder import NewTensors, one_tensor
from molink.importing.gguf.metadata import GgufModel
from molink.importing.gguf.recoding import pieces_of, whole

__all__ = ["biases_in_turns", "codes", "codes_in_turns"]

HALF_BYTES = 16
"""Bytes of the codes in a block of MXFP4."""


def codes(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
    """A stack of experts as codes and exponents."""
    return [_codes_and_exponents(model, [tensor], name)]


def codes_in_turns(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
    """The same of gates, with rows of the up projections between theirs."""
    return [_codes_and_exponents(model, _with_up(model, tensor), name)]


def biases_in_turns(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
    """Biases of gates with those of the up projections between them."""
    sources = _with_up(model, tensor)
    experts, rows = _stack(model, tensor, 2)
    if not tensor.is_plain:
        raise UnsupportedModelError(f"{tensor.name} of {model.header.path} is in blocks.")

    def pieces() -> Iterator[bytes]:
        raw = [whole(one).reshape(experts, rows, -1) for one in sources]
        yield np.stack(raw, 2).tobytes()

    shape = (experts, rows * len(sources))
    return [one_tensor(name, tensor.type.name, shape, math.prod(shape) * tensor.type.size, pieces)]


def _with_up(model: GgufModel, tensor: GgufTensor) -> list[GgufTensor]:
    up = model.tensors.get(tensor.name.replace("ffn_gate_exps", "ffn_up_exps"))
    if up is None or (up.shape, up.type) != (tensor.shape, tensor.type):
        raise CheckpointError(
            f"{tensor.name} of {model.header.path} has no match in ffn_up_exps: fetch it again"
        )
    return [tensor, up]


def _stack(model: GgufModel, tensor: GgufTensor, dimensions: int) -> tuple[int, ...]:
    if len(tensor.shape) != dimensions:
        raise CheckpointError(
            f"{tensor.name} of {model.header.path} has {len(tensor.shape)} dimensions: "
            "fetch it again"
        )
    return tensor.shape


def _codes_and_exponents(model: GgufModel, sources: list[GgufTensor], name: str) -> NewTensors:
    first = sources[0]
    if first.type.name != "mxfp4":
        raise UnsupportedModelError(
            f"{first.name} of {model.header.path} is {first.type.name}, where MoLink reads experts "
            f"of {model.name} in MXFP4 only: take the file in MXFP4"
        )
    experts, rows, inputs = _stack(model, first, 3)
    blocks = inputs // first.type.values
    shape = (experts, rows * len(sources), blocks)
    count = math.prod(shape)
    stored = StoredTensor(f"{name}_blocks", "U8", (*shape, HALF_BYTES), 0, HALF_BYTES * count)
    exponents = StoredTensor(f"{name}_scales", "U8", shape, stored.stop, stored.stop + count)

    def pieces() -> Iterator[bytes]:
        kept = []
        for expert in range(experts):
            mixed = _rows_in_turns(sources, expert, rows * blocks)
            kept.append(mixed[..., 0].tobytes())
            yield _neighbours(mixed[..., 1:]).tobytes()
        yield b"".join(kept)

    return NewTensors((stored, exponents), pieces)


def _rows_in_turns(sources: list[GgufTensor], expert: int, blocks: int) -> np.ndarray:
    """Blocks of one expert, [rows, sources, blocks of a row, bytes of a block]."""
    size = sources[0].type.size
    rows = sources[0].shape[1]
    parts = []
    for source in sources:
        start = source.start + expert * blocks * size
        raw = b"".join(pieces_of(source, start, start + blocks * size))
        parts.append(np.frombuffer(raw, np.uint8).reshape(rows, blocks // rows, size))
    return np.stack(parts, 1)


def _neighbours(halves: np.ndarray) -> np.ndarray:
    """Bytes that hold codes 2j and 2j + 1, from bytes that hold j and j + 16."""
    nibbles = np.concatenate([halves & 15, halves >> 4], -1)
    return np.asarray(nibbles[..., 0::2] | nibbles[..., 1::2] << 4)
