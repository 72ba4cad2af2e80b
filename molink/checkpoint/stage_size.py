"""What a stage will take of its device, counted in the files that it is about to load.

A plan counts by what the coordinator knows of the model; who lends a PC counts again, here, because
the stage loads these files and no others. No torch: an agent asks before it starts anything.
"""

from dataclasses import dataclass
from pathlib import Path

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import read_declared
from molink.checkpoint.held_weights import held_weights
from molink.checkpoint.model_config import model_shape
from molink.checkpoint.model_shape import KvDtype, ModelShape, kv_bytes
from molink.checkpoint.safetensors_header import read_header

__all__ = ["PROBE_KV_TOKENS", "PROBE_LAYERS_MAX", "StageSize", "probe_size", "stage_size"]

PROBE_LAYERS_MAX = 2
"""Layers that a probe times together: what a step costs beside its layers stands out less."""

PROBE_KV_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class StageSize:
    """Size of a stage in numbers, which take two or four bytes each in its device."""

    weights: int
    """Numbers of its weights, scales of quantized ones included."""
    code_bytes: int
    """Of codes of quantized weights."""
    kv_values: int
    """Numbers that one token takes in all of its layers..."""
    kv_vectors: int
    """...and in how many keys and values of heads."""

    def held_bytes(self, element_bytes: int, kv_tokens: int, kv_dtype: KvDtype = "auto") -> int:
        """Bytes of weights and KV where a number takes `element_bytes`."""
        token_bytes = kv_bytes(kv_dtype, element_bytes, self.kv_values, self.kv_vectors)
        return self.code_bytes + element_bytes * self.weights + token_bytes * kv_tokens


def stage_size(directory: Path, layers: int) -> StageSize:
    """The size of the stage of `layers` layers whose files, and no others, `directory` holds.

    Raises UserError for a directory that holds no model, or one in a format that is not read.
    """
    checkpoint = open_checkpoint(str(directory))
    files: dict[str, set[str]] = {}
    for tensor, file in checkpoint.weight_map().items():
        files.setdefault(file, set()).add(tensor)
    tensors = [
        tensor
        for file, names in files.items()
        for tensor in read_header(checkpoint.weight_file(file)).tensors
        if tensor.name in names
    ]
    shape = model_shape(directory)
    held = held_weights(checkpoint.name, tensors, read_declared(checkpoint))
    return StageSize(
        weights=sum(weight.numbers for weight in held),
        code_bytes=sum(weight.code_bytes for weight in held),
        kv_values=shape.kv_values * layers,
        kv_vectors=shape.kv_vectors * layers,
    )


def probe_size(shape: ModelShape, layers: int) -> StageSize:
    """The size of `layers` layers of random weights before they are quantized; of a model that has
    no more, with its tables of tokens."""
    tables = 2 * shape.embedding_parameters if layers >= shape.layers else 0
    weights = layers * shape.layer_parameters + tables
    kv_values, kv_vectors = shape.kv_values * layers, shape.kv_vectors * layers
    return StageSize(weights, code_bytes=0, kv_values=kv_values, kv_vectors=kv_vectors)
