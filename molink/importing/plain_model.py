"""From a model with plain weights to a checkpoint of few bits, rounded once at the coordinator.

The library's own class says what is a linear layer: exactly those, and matrices of experts, are
what stages hold in few bits. All else is copied: embeddings, norms, biases, routers. The output
head is rounded to eight bits even beside layers of four, where four would cost as much quality as
all layers together; a tied one becomes a matrix of its own, for it is on another PC.

Rows are read, rounded and written a few at a time, so that a model of any size needs little memory.
"""

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers.core_model_loading import Concatenate, MergeModulelist

from molink.checkpoint.checkpoint import Checkpoint, open_checkpoint
from molink.checkpoint.description import describe, read_declared
from molink.checkpoint.quantized.recognised import quantized_weights
from molink.checkpoint.safetensors_header import StoredTensor, check_whole, read_header
from molink.engine.layers.experts import is_experts
from molink.engine.model.quantized.tensor_files import TensorFiles
from molink.engine.model.tensor_names import TensorNames
from molink.engine.model.weights import StagePart, build_stage_class, load_model_config, no_model
from molink.errors import CheckpointError, UserError
from molink.importing.checkpoint_folder import (
    NewTensors,
    Progress,
    files_identity,
    one_tensor,
    write_checkpoint,
)
from molink.importing.gguf.file import small_files_of
from molink.importing.rounding import WORD_CODES, packed_words, round_to_4_bits, round_to_8_bits
from molink.json_object import JsonObject

WeightBits = Literal["int4", "int8"]

GROUP_MIN = 16
"""Inputs that share a scale in memory, at least; rows whose last group is shorter are cut so."""

OUTPUTS_MIN = 16
"""Fewest outputs of a layer that is rounded; gates of shared experts have one output."""

BLOCK_NUMBERS = 2**17
"""Numbers that are rounded at a time: what is in between stays in the cache, which makes it four
times as fast as millions at a time."""

PIECE_BYTES = 16 * 2**20
"""Copied at a time."""

BLOCK_ROWS = 8
"""Rows are rounded in multiples of so many, whose zero points fill a word."""

FLOATS = ("F16", "BF16", "F32")
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class PlainSource:
    """The model that is rounded."""

    checkpoint: Checkpoint
    tensors: tuple[StoredTensor, ...]
    files: TensorFiles

    def rows(self, tensor: StoredTensor) -> Iterator[torch.Tensor]:
        """The rows of a matrix, some at a time."""
        outputs, inputs = tensor.shape
        count = max(1, BLOCK_NUMBERS // inputs // BLOCK_ROWS) * BLOCK_ROWS
        size = (tensor.stop - tensor.start) // outputs
        for first in range(0, outputs, count):
            last = min(first + count, outputs)
            start, stop = tensor.start + first * size, tensor.start + last * size
            shape = (last - first, inputs)
            yield self.files.read(StoredTensor(tensor.name, tensor.dtype, shape, start, stop))


def import_plain(
    source: Path, folder: Path, bits: WeightBits, group: int, progress: Progress
) -> int:
    """Write the checkpoint `folder` with the weights of a model's folder rounded. Returns the bytes
    of its weights.

    Raises UserError with one sentence for what cannot be rounded, before anything is written.
    """
    small = small_files_of(source)
    new, config = rounded_model(source, bits, group)
    small["config.json"] = json.dumps(config, indent=2).encode()
    identity = files_identity(sorted(source.glob("*.safetensors")))
    write_checkpoint(folder, new, small, progress, f"{bits} {group} {identity}")
    return sum(part.size for part in new)


def rounded_model(
    source: Path, bits: WeightBits, group: int
) -> tuple[list[NewTensors], JsonObject]:
    """The tensors of the rounded model, none of them read yet, and its config. Raises UserError as
    `import_plain`."""
    model = _opened(source)
    rounds = _rounded_names(model)
    config = model.checkpoint.config()
    tied = all(tensor.name != HEAD for tensor in model.tensors)
    new: list[NewTensors] = []
    for tensor in model.tensors:
        new += _new_tensors(model, tensor, rounds, bits, group)
        if tied and tensor.name.endswith("embed_tokens.weight") and config_ties(config):
            new.append(_bytes_of(model, tensor, HEAD))
            config["tie_word_embeddings"] = False
    config["quantization_config"] = _scheme(bits, group)
    return new, config


def config_ties(config: JsonObject) -> bool:
    """Whether a plain config lets the head multiply by the embeddings; one of several models is
    left as it is."""
    return config.get("tie_word_embeddings") is True and "text_config" not in config


def _opened(source: Path) -> PlainSource:
    checkpoint = open_checkpoint(str(source))
    if checkpoint.hub_id is not None:
        raise CheckpointError(f"There is no folder {source}.")
    declared = read_declared(checkpoint)
    already = UserError(f"{source} is quantized already: import the original model.")
    if declared.method is not None:
        raise already
    tensors: list[StoredTensor] = []
    files: dict[str, Path] = {}
    for name in sorted(set(checkpoint.weight_map().values())):
        path = checkpoint.weight_file(name)
        table = read_header(path)
        check_whole(table, path)
        tensors += table.tensors
        files |= {tensor.name: path for tensor in table.tensors}
    if quantized_weights(source.name, tensors, declared):
        raise already
    return PlainSource(checkpoint, tuple(tensors), TensorFiles(files))


# -- what is rounded ------------------------------------------------------------------------------


def _rounded_names(source: PlainSource) -> frozenset[str]:
    """Names of the stored matrices that stages can hold in few bits."""
    skeleton = _skeleton(source)
    names = TensorNames(skeleton)
    found = {one.name for one in source.tensors if _is_rounded(one, skeleton, names)}
    if not found:
        raise UserError(
            f"{source.checkpoint.name} has no linear layers that could be rounded: "
            "serve it as it is."
        )
    return frozenset(found)


def _skeleton(source: PlainSource) -> nn.Module:
    """The library's model without numbers. Raises CheckpointError for settings without a model, or
    with more layers than there are tensors."""
    checkpoint = source.checkpoint
    config, layers = load_model_config(checkpoint), describe(checkpoint).layers
    if layers > len(source.tensors):
        raise CheckpointError(
            f"config.json of {checkpoint.name} names {layers} layers, and its files hold "
            f"{len(source.tensors)} tensors: fetch it again"
        )
    pruned_class = build_stage_class(config, StagePart(range(layers), layers))
    try:
        with torch.device("meta"):
            skeleton: nn.Module = pruned_class(copy.deepcopy(config))
    except Exception as error:
        raise no_model(checkpoint, error) from error
    return skeleton


def _is_rounded(tensor: StoredTensor, skeleton: nn.Module, names: TensorNames) -> bool:
    if tensor.dtype not in FLOATS or len(tensor.shape) != 2 or tensor.shape[0] < OUTPUTS_MIN:
        return False
    renamed = names.renamed(tensor.name)
    if renamed not in names or not renamed:
        return False
    path, _, leaf = renamed.rpartition(".")
    module = skeleton.get_submodule(path)
    converter = names.converter(tensor.name)
    if converter is not None and not all(
        isinstance(step, MergeModulelist | Concatenate) for step in converter[0].operations
    ):
        return False
    return (type(module) is nn.Linear and leaf == "weight") or is_experts(module)


# -- new tensors ----------------------------------------------------------------------------------


def _new_tensors(
    source: PlainSource, tensor: StoredTensor, rounds: frozenset[str], bits: WeightBits, group: int
) -> list[NewTensors]:
    if tensor.name not in rounds:
        return [_copied(source, tensor)]
    inputs = tensor.shape[1]
    in_words = inputs % WORD_CODES == 0 and (inputs % group) % GROUP_MIN == 0
    if tensor.name != HEAD and bits == "int4" and in_words:
        return [_words_of(source, tensor, group)]
    return [_bytes_of(source, tensor, tensor.name)]


def _copied(source: PlainSource, tensor: StoredTensor) -> NewTensors:
    def pieces() -> Iterator[bytes]:
        for start in range(tensor.start, tensor.stop, PIECE_BYTES):
            stop = min(start + PIECE_BYTES, tensor.stop)
            piece = StoredTensor(tensor.name, "U8", (stop - start,), start, stop)
            yield source.files.read(piece).numpy().tobytes()

    size = tensor.stop - tensor.start
    return one_tensor(tensor.name, tensor.dtype, tensor.shape, size, pieces)


def _bytes_of(source: PlainSource, tensor: StoredTensor, name: str) -> NewTensors:
    """A matrix in eight bits with a scale for each row."""
    outputs, inputs = tensor.shape
    stem = name.removesuffix(".weight")
    entries = _entries(
        (name, "I8", (outputs, inputs)), (f"{stem}.weight_scale", "BF16", (outputs, 1))
    )

    def pieces() -> Iterator[bytes]:
        scales = []
        for rows in source.rows(tensor):
            rounded = round_to_8_bits(rows)
            scales.append(_raw(rounded.scale))
            yield _raw(rounded.codes)
        yield b"".join(scales)

    return NewTensors(entries, pieces)


def _words_of(source: PlainSource, tensor: StoredTensor, group: int) -> NewTensors:
    """A matrix in four bits with a scale and a zero point for each group."""
    outputs, inputs = tensor.shape
    stem, groups = tensor.name.removesuffix(".weight"), -(-inputs // group)
    words = -(-outputs // WORD_CODES)
    entries = _entries(
        (f"{stem}.weight_packed", "I32", (outputs, inputs // WORD_CODES)),
        (f"{stem}.weight_scale", "BF16", (outputs, groups)),
        (f"{stem}.weight_zero_point", "I32", (words, groups)),
        (f"{stem}.weight_shape", "I64", (2,)),
    )

    def pieces() -> Iterator[bytes]:
        scales, zeros = [], []
        for rows in source.rows(tensor):
            rounded = round_to_4_bits(rows, group)
            scales.append(_raw(rounded.scale))
            zeros.append(_raw(packed_words(rounded.zero.T).T))
            yield _raw(packed_words(rounded.codes))
        yield b"".join([*scales, *zeros, _raw(torch.tensor([outputs, inputs]))])

    return NewTensors(entries, pieces)


ITEM_BYTES = {"I8": 1, "BF16": 2, "I32": 4, "I64": 8}


def _entries(*wanted: tuple[str, str, tuple[int, ...]]) -> tuple[StoredTensor, ...]:
    """Tensors one behind the other."""
    entries, start = [], 0
    for name, dtype, shape in wanted:
        stop = start + ITEM_BYTES[dtype] * math.prod(shape)
        entries.append(StoredTensor(name, dtype, shape, start, stop))
        start = stop
    return tuple(entries)


def _raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


# -- config ---------------------------------------------------------------------------------------


def _scheme(bits: WeightBits, group: int) -> JsonObject:
    """Quantization config of the weights, in the words of compressed-tensors."""
    head = _group(["re:.*lm_head"], "int-quantized", num_bits=8, symmetric=True, strategy="channel")
    if bits == "int8":
        groups, form = {"group_0": head | {"targets": ["Linear"]}}, "int-quantized"
    else:
        four = {"num_bits": 4, "symmetric": False, "strategy": "group", "group_size": group}
        layers = _group(["Linear"], "pack-quantized", **four)
        groups, form = {"group_0": layers, "group_1": head}, "mixed-precision"
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": [],
    }


def _group(targets: list[str], form: str, **weights: Any) -> JsonObject:
    return {"targets": targets, "format": form, "weights": {"type": "int", **weights}}
