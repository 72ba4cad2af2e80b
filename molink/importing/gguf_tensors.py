"""The tensors of a GGUF file as those of a safetensors checkpoint, blocks byte for byte.

Blocks that kernels read keep their bytes (`gguf_recoding` has the others): a packed weight becomes
U8 [rows, bytes of a row] under the plain name with the type at its end. What the file has in
another order (see `gguf_architectures`) is moved in whole rows, which blocks never cross. A tied
embedding in blocks is written once more as the head: the first stage looks up its rows, the last
multiplies by it, and on a ring these are different PCs.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from molink.checkpoint.gguf.header import GgufHeader, GgufTensor
from molink.checkpoint.safetensors_header import StoredTensor
from molink.errors import CheckpointError, UnsupportedModelError
from molink.importing.checkpoint_folder import NewTensors, one_tensor
from molink.importing.gguf_architectures import AROUND, Architecture
from molink.importing.gguf_recoding import pieces_of, whole
from molink.printable import printable_line

__all__ = ["GgufModel", "checkpoint_tensors"]

LAYER_TENSOR = re.compile(r"blk\.(\d{1,5})\.(\w+)\.(weight|bias)", re.ASCII)
OTHER_TENSOR = re.compile(r"(\w+)\.(weight|bias)", re.ASCII)

OF_THE_CONFIG = ("rope_freqs", "rope_factors_long", "rope_factors_short")
"""Parts that are settings, not weights."""

HALF_BYTES = 16
"""Of the codes in a block of MXFP4."""

NAME_CHARACTERS_MAX = 80


@dataclass(frozen=True, slots=True)
class GgufModel:
    """GGUF file whose architecture is known."""

    header: GgufHeader
    architecture: Architecture
    layers: int
    heads: int
    kv_heads: int

    @property
    def tied(self) -> bool:
        """Whether the head multiplies by the embeddings."""
        return all(tensor.name != "output.weight" for tensor in self.header.tensors)


def checkpoint_tensors(model: GgufModel) -> list[NewTensors]:
    """All tensors of the new checkpoint. Raises CheckpointError for a file that lacks some, and
    UnsupportedModelError for one with tensors that are not known."""
    _check_complete(model)
    by_name = {tensor.name: tensor for tensor in model.header.tensors}
    new: list[NewTensors] = []
    for tensor in model.header.tensors:
        new += _new_tensors(model, tensor, by_name)
        if tensor.name == "token_embd.weight" and model.tied and not tensor.is_plain:
            new.append(_copy(model, tensor, "lm_head.weight"))
    return new


def _new_tensors(
    model: GgufModel, tensor: GgufTensor, by_name: dict[str, GgufTensor]
) -> list[NewTensors]:
    architecture = model.architecture
    if match := LAYER_TENSOR.fullmatch(tensor.name):
        layer, part, leaf = int(match[1]), match[2], match[3]
        before = f"model.layers.{layer}"
        if layer < model.layers and part in architecture.experts:
            if architecture.interleaved_experts:
                return _interleaved(model, tensor, before, part, leaf, by_name)
            return _experts(model, tensor, f"{before}.{architecture.experts[part]}.{leaf}")
        if layer < model.layers and part in architecture.layer:
            name = f"{before}.{architecture.layer[part]}"
            name = name if part == "attn_sinks" else f"{name}.{leaf}"
            return [_one(model, tensor, part, name)]
    elif (match := OTHER_TENSOR.fullmatch(tensor.name)) and match[1] in AROUND:
        return [_one(model, tensor, match[1], f"{AROUND[match[1]]}.{match[2]}")]
    elif match and match[1] in OF_THE_CONFIG:
        return []
    raise UnsupportedModelError(
        f"{model.header.path} holds {printable_line(tensor.name)[:NAME_CHARACTERS_MAX]}, which is "
        f"no part of a {architecture.model_type} model as MoLink knows it: take another version"
    )


def _check_complete(model: GgufModel) -> None:
    names = {tensor.name for tensor in model.header.tensors}
    parts = [*model.architecture.layer, *model.architecture.experts]
    wanted = {f"blk.{layer}.{part}.weight" for layer in range(model.layers) for part in parts}
    wanted |= {"token_embd.weight", "output_norm.weight"}
    if missing := sorted(wanted - names):
        raise CheckpointError(
            f"{model.header.path} lacks {missing[0]} and {len(missing) - 1} other tensors of a "
            f"{model.architecture.model_type} model of {model.layers} layers: fetch it again"
        )


# -- one tensor -----------------------------------------------------------------------------------


def _one(model: GgufModel, tensor: GgufTensor, part: str, name: str) -> NewTensors:
    if model.architecture.rotary_rows and part in ("attn_q", "attn_k"):
        heads = model.heads if part == "attn_q" else model.kv_heads
        if tensor.shape[0] % (2 * heads):
            raise CheckpointError(
                f"{tensor.name} of {model.header.path} has {tensor.shape[0]} rows for {heads} "
                "heads: fetch it again"
            )
        return _copy(model, tensor, name, heads)
    if model.architecture.one_added and part.endswith("norm"):
        return _one_taken(model, tensor, name)
    return _copy(model, tensor, name)


def _copy(
    model: GgufModel, tensor: GgufTensor, name: str, rotary_heads: int | None = None
) -> NewTensors:
    path, size = model.header.path, tensor.stop - tensor.start
    if rotary_heads is None:
        pieces = partial(pieces_of, tensor, tensor.start, tensor.stop)
    else:
        pieces = partial(_unrotated, tensor, rotary_heads)
    if tensor.is_plain:
        return one_tensor(name, tensor.type.name, tensor.shape, size, pieces)
    if len(tensor.shape) != 2:
        raise CheckpointError(f"{tensor.name} of {path} is no matrix: fetch it again")
    shape = (tensor.shape[0], tensor.row_bytes)
    return one_tensor(f"{name}_{tensor.type.name}", "U8", shape, size, pieces)


def _unrotated(tensor: GgufTensor, heads: int) -> Iterator[bytes]:
    """Rows of q or k with the halves of each head one above the other, which the file has in
    turns."""
    raw = whole(tensor)
    rows = raw.reshape(heads, tensor.shape[0] // heads // 2, 2, -1)
    yield rows.transpose(0, 2, 1, 3).tobytes()


def _one_taken(model: GgufModel, tensor: GgufTensor, name: str) -> NewTensors:
    if tensor.type.name != "F32":
        raise UnsupportedModelError(
            f"{tensor.name} of {model.header.path} is {tensor.type.name}, where norms are F32: "
            "take another version of the model"
        )

    def pieces() -> Iterator[bytes]:
        yield (whole(tensor).view(np.float32) - 1).tobytes()

    return one_tensor(name, "F32", tensor.shape, tensor.stop - tensor.start, pieces)


# -- experts --------------------------------------------------------------------------------------


def _experts(model: GgufModel, tensor: GgufTensor, name: str) -> list[NewTensors]:
    """One matrix for each expert, as plain checkpoints have them."""
    count, *shape = _stack(model, tensor, 3)
    size = (tensor.stop - tensor.start) // count
    new = []
    for expert in range(count):
        start = tensor.start + expert * size
        part = replace(tensor, shape=tuple(shape), start=start, stop=start + size)
        new.append(_copy(model, part, name.format(expert)))
    return new


def _stack(model: GgufModel, tensor: GgufTensor, dimensions: int) -> tuple[int, ...]:
    if len(tensor.shape) != dimensions:
        raise CheckpointError(
            f"{tensor.name} of {model.header.path} has {len(tensor.shape)} dimensions: "
            "fetch it again"
        )
    return tensor.shape


def _interleaved(
    model: GgufModel,
    tensor: GgufTensor,
    before: str,
    part: str,
    leaf: str,
    by_name: dict[str, GgufTensor],
) -> list[NewTensors]:
    """Stacks with the rows of gate and up in turns, made where the gate is met."""
    if part == "ffn_up_exps":
        return []
    sources = [tensor]
    if part == "ffn_gate_exps":
        up = by_name.get(tensor.name.replace("ffn_gate_exps", "ffn_up_exps"))
        if up is None or (up.shape, up.type) != (tensor.shape, tensor.type):
            raise CheckpointError(
                f"{tensor.name} of {model.header.path} has no match in ffn_up_exps: fetch it again"
            )
        sources.append(up)
    name = f"{before}.{model.architecture.experts[part]}"
    if leaf == "bias":
        return [_joined_biases(model, sources, f"{name}_bias")]
    return [_codes_and_exponents(model, sources, name)]


def _joined_biases(model: GgufModel, sources: list[GgufTensor], name: str) -> NewTensors:
    experts, rows = _stack(model, sources[0], 2)
    kind = sources[0].type
    if not sources[0].is_plain:
        raise UnsupportedModelError(f"{sources[0].name} of {model.header.path} is in blocks.")

    def pieces() -> Iterator[bytes]:
        raw = [whole(one).reshape(experts, rows, -1) for one in sources]
        yield np.stack(raw, 2).tobytes()

    shape = (experts, rows * len(sources))
    return one_tensor(name, kind.name, shape, experts * shape[1] * kind.size, pieces)


def _codes_and_exponents(model: GgufModel, sources: list[GgufTensor], name: str) -> NewTensors:
    first = sources[0]
    if first.type.name != "mxfp4":
        raise UnsupportedModelError(
            f"{first.name} of {model.header.path} is {first.type.name}, where MoLink reads experts "
            f"of {model.architecture.model_type} in MXFP4 only: take the file in MXFP4"
        )
    experts, rows, inputs = _stack(model, first, 3)
    blocks = inputs // first.type.values
    shape = (experts, rows * len(sources), blocks)
    count = math.prod(shape)
    codes = StoredTensor(f"{name}_blocks", "U8", (*shape, HALF_BYTES), 0, HALF_BYTES * count)
    exponents = StoredTensor(f"{name}_scales", "U8", shape, codes.stop, codes.stop + count)

    def pieces() -> Iterator[bytes]:
        kept = []
        for expert in range(experts):
            mixed = _rows_in_turns(sources, expert, rows * blocks)
            kept.append(mixed[..., 0].tobytes())
            yield _neighbours(mixed[..., 1:]).tobytes()
        yield b"".join(kept)

    return NewTensors((codes, exponents), pieces)


def _rows_in_turns(sources: list[GgufTensor], expert: int, blocks: int) -> np.ndarray:
    """Blocks of one expert, [rows, sources, blocks of a row, bytes of a block]."""
    size = sources[0].type.size
    rows = sources[0].shape[1]
    parts = []
    for source in sources:
        start = source.start + expert * blocks * size
        raw = np.frombuffer(b"".join(pieces_of(source, start, start + blocks * size)), np.uint8)
        parts.append(raw.reshape(rows, blocks // rows, size))
    return np.stack(parts, 1)


def _neighbours(halves: np.ndarray) -> np.ndarray:
    """Bytes that hold codes 2j and 2j + 1, from bytes that hold j and j + 16."""
    codes = np.concatenate([halves & 15, halves >> 4], -1)
    return np.asarray(codes[..., 0::2] | codes[..., 1::2] << 4)
