"""What a stage will take of its device, counted in the files that it is about to load.

A plan counts by what the coordinator knows of the model; who lends a PC counts again, here, because
the stage loads these files and no others. No torch: an agent asks before it starts anything.
"""

from dataclasses import dataclass
from pathlib import Path

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.model_config import model_shape
from molink.checkpoint.model_shape import ModelShape
from molink.checkpoint.safetensors_header import StoredTensor, read_header

__all__ = ["PROBE_KV_TOKENS", "PROBE_LAYERS_MAX", "StageSize", "probe_size", "stage_size"]

PROBE_LAYERS_MAX = 2
"""Layers that a probe times together: what a step costs beside its layers stands out less."""

PROBE_KV_TOKENS = 4096

FLOAT_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
"""Of a number by its name in a safetensors table. A stage holds all of them in one format of its
own; any other kind (quantized weights) it holds as it is stored."""


@dataclass(frozen=True, slots=True)
class StageSize:
    """Size of a stage in numbers, which take two or four bytes each in its device."""

    weights: int
    """Numbers of its weights."""
    packed_bytes: int
    """Of weights that stay as they are stored."""
    kv_values: int
    """Numbers that one token takes in all of its layers."""

    def held_bytes(self, element_bytes: int, kv_tokens: int) -> int:
        """Bytes of weights and KV where a number takes `element_bytes`."""
        return self.packed_bytes + element_bytes * (self.weights + self.kv_values * kv_tokens)


def stage_size(directory: Path, layers: int) -> StageSize:
    """The size of the stage of `layers` layers whose files, and no others, `directory` holds.

    Raises UserError for a directory that holds no model.
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
    return StageSize(
        weights=sum(map(_floats, tensors)),
        packed_bytes=sum(_bytes(one) for one in tensors if one.dtype not in FLOAT_BYTES),
        kv_values=model_shape(directory).kv_values * layers,
    )


def probe_size(shape: ModelShape, layers: int) -> StageSize:
    """The size of `layers` layers of random weights; of a model that has no more, with its tables
    of tokens."""
    tables = 2 * shape.embedding_parameters if layers >= shape.layers else 0
    weights = layers * shape.layer_parameters + tables
    return StageSize(weights, packed_bytes=0, kv_values=shape.kv_values * layers)


def _floats(tensor: StoredTensor) -> int:
    return _bytes(tensor) // FLOAT_BYTES[tensor.dtype] if tensor.dtype in FLOAT_BYTES else 0


def _bytes(tensor: StoredTensor) -> int:
    return tensor.stop - tensor.start
