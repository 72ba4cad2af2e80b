"""Sizes of a checkpoint's weights once a stage has loaded them.

A file and a stage's memory are not the same. A stage holds every plain number in one format of its
own, whatever the file stores, and of a quantized weight the codes, with scales in that format and
repeated where kernels want smaller groups. So each weight is counted as codes, whose bytes stand
fast, and as numbers, which take two or four bytes each.

No torch: the coordinator plans with it, and an agent asks before it starts anything.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from molink.checkpoint.quantized.declared import DeclaredQuantization
from molink.checkpoint.quantized.recognised import part_names, quantized_weights
from molink.checkpoint.quantized.shapes import FLOATS
from molink.checkpoint.quantized.stored_weight import StoredWeight
from molink.checkpoint.safetensors_header import StoredTensor

EMBEDDINGS = "embed_tokens.weight"
"""End of the name of the table that turns token ids into rows, in imported GGUF files."""

UNPACKED = (EMBEDDINGS, "embed_tokens_per_layer.weight", "kv_b_proj.weight")
"""Ends of the names of weights that are held unpacked: rows are looked up in tables, and of latent
attention's expansion queries are multiplied with parts."""


@dataclass(frozen=True, slots=True)
class HeldWeight:
    """One weight of a checkpoint: its size in a file and in a stage."""

    name: str
    """Name of the plain weight."""
    file_bytes: int
    code_bytes: int
    """Bytes of codes, which stay as they are stored."""
    numbers: int
    """Numbers in the stage's own format."""

    def held_bytes(self, element_bytes: int) -> int:
        """Bytes in the memory of a stage whose numbers take `element_bytes`."""
        return self.code_bytes + element_bytes * self.numbers


def held_weights(
    model: str, tensors: Iterable[StoredTensor], declared: DeclaredQuantization
) -> list[HeldWeight]:
    """All weights among the tensors of the checkpoint `model`.

    Raises UnsupportedModelError for a scheme of quantization that is not read, CheckpointError for
    parts that do not fit together.
    """
    tensors = list(tensors)
    quantized = quantized_weights(model, tensors, declared)
    parts = part_names(quantized)
    plain = [_plain(tensor) for tensor in tensors if tensor.name not in parts]
    return [*map(_quantized, quantized.values()), *plain]


def _quantized(weight: StoredWeight) -> HeldWeight:
    if weight.name.endswith(UNPACKED):
        numbers = weight.outputs * weight.inputs
        return HeldWeight(weight.name, weight.file_bytes, 0, numbers)
    return HeldWeight(weight.name, weight.file_bytes, weight.code_bytes, weight.scale_numbers)


def _plain(tensor: StoredTensor) -> HeldWeight:
    size = tensor.stop - tensor.start
    if tensor.dtype in FLOATS:
        return HeldWeight(tensor.name, size, 0, prod(tensor.shape))
    return HeldWeight(tensor.name, size, size, 0)
