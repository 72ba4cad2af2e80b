"""Size of a stage on its device, counted in the files that it is about to load.

A plan counts by what the coordinator knows of the model; who lends a PC counts again, here, because
the stage loads these files and no others. No torch: an agent asks before it starts anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from molink.checkpoint.checkpoint import INDEX, SINGLE, Checkpoint, open_checkpoint
from molink.checkpoint.description import read_declared
from molink.checkpoint.held_weights import held_weights
from molink.checkpoint.kv_format import KvDtype, kv_bytes
from molink.checkpoint.mixers import NO_STATE, StateSize
from molink.checkpoint.model_config import model_shape
from molink.checkpoint.model_shape import ModelShape
from molink.checkpoint.safetensors_header import read_header
from molink.checkpoint.shard_plan import (
    TOKEN_INPUTS,
    plan_shards,
    shape_of,
    stores_output_matrix,
)

PROBE_LAYERS_MAX = 2
"""Layers that a probe times together: what a step costs beside its layers stands out less."""

PROBE_KV_TOKENS = 4096

KV_TOKENS_MIN = 2_048
"""Least tokens of KV: below it a stage could not hold one ordinary conversation; better to ask for
it and let the machine say no.
"""


@dataclass(frozen=True, slots=True)
class StageSize:
    """Size of a stage in numbers, which take two or four bytes each in its device."""

    weights: int
    """Numbers of its weights, scales of quantized ones included."""
    code_bytes: int
    """Bytes of the codes of quantized weights."""
    kv_values: int
    """Numbers that one token takes in all of the stage's layers."""
    kv_vectors: int
    """Keys and values of heads that one token takes in all of the stage's layers."""
    state: StateSize = NO_STATE
    """Size of one request's states in all of the stage's layers."""

    def held_bytes(self, element_bytes: int, kv_tokens: int, kv_dtype: KvDtype = "auto") -> int:
        """Bytes of weights, KV and one request's states where a number takes `element_bytes`."""
        token_bytes = kv_bytes(kv_dtype, element_bytes, self.kv_values, self.kv_vectors)
        weights_bytes = self.code_bytes + element_bytes * self.weights
        return weights_bytes + token_bytes * kv_tokens + self.state.bytes_in(element_bytes)


def stage_size_of(
    checkpoint: Checkpoint, layers: tuple[int, int], drafts: bool = False
) -> StageSize | None:
    """The size of a stage of a checkpoint, which may hold other layers, too; None while its files
    are not here. `drafts`: with the checkpoint's drafting layer. Raises UserError as
    `stage_size`."""
    if not any((checkpoint.directory / name).is_file() for name in (INDEX, SINGLE)):
        return None
    weight_map, layout = checkpoint.weight_map(), shape_of(checkpoint.config())
    if stores_output_matrix(weight_map):
        layout = replace(layout, tied=False)
    needed = plan_shards(weight_map, layout, range(*layers), drafts).weight_map
    if not all((checkpoint.directory / name).is_file() for name in needed.values()):
        return None
    return _size(checkpoint, needed, layers, drafts)


def stage_size(directory: Path, layers: tuple[int, int], drafts: bool = False) -> StageSize:
    """The size of the stage with layers [start, end) whose files, and no others, `directory` holds;
    `drafts`: the drafting layer's as well.

    Raises UserError for a directory that holds no model, or one in a format that is not read.
    """
    checkpoint = open_checkpoint(str(directory))
    return _size(checkpoint, checkpoint.weight_map(), layers, drafts)


def _size(
    checkpoint: Checkpoint, needed: Mapping[str, str], layers: tuple[int, int], drafts: bool
) -> StageSize:
    """`needed`: file of each tensor."""
    files: dict[str, set[str]] = {}
    for tensor, file in needed.items():
        files.setdefault(file, set()).add(tensor)
    tensors = [
        tensor
        for file, names in files.items()
        for tensor in read_header(checkpoint.weight_file(file)).tensors
        if tensor.name in names
    ]
    shape = model_shape(checkpoint.directory)
    held = held_weights(checkpoint.name, tensors, read_declared(checkpoint))
    parts = [_held_part(weight.name, len(range(*layers)) / shape.layers) for weight in held]
    kv_values, kv_vectors = shape.kv_numbers(*layers)
    if drafts and layers[1] == shape.layers:  # As much as one of the model's layers that attend.
        kv_values, kv_vectors = kv_values + shape.kv_values, kv_vectors + shape.kv_vectors
    return StageSize(
        weights=sum(round(part * one.numbers) for part, one in zip(parts, held, strict=True)),
        code_bytes=sum(round(part * one.code_bytes) for part, one in zip(parts, held, strict=True)),
        kv_values=kv_values,
        kv_vectors=kv_vectors,
        state=shape.state_numbers(*layers),
    )


def _held_part(name: str, layers_share: float) -> float:
    """Part of a tensor that the stage holds: of tables for all layers, that of its own."""
    return layers_share if TOKEN_INPUTS & set(name.split(".")) else 1.0


def probe_size(shape: ModelShape, layers: int) -> StageSize:
    """The size of `layers` layers of random weights before they are quantized; of a model that has
    no more, with its tables of tokens."""
    tables = 2 * shape.embedding_parameters if layers >= shape.layers else 0
    weights = layers * shape.layer_parameters + tables
    kv_values, kv_vectors = shape.kv_values * layers, shape.kv_vectors * layers
    return StageSize(weights, code_bytes=0, kv_values=kv_values, kv_vectors=kv_vectors)
