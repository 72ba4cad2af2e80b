"""Sizes of a checkpoint's weights once a stage has loaded them.

A file and a stage's memory are not the same. A stage holds every plain number in one format of its
own, whatever the file stores, and of a quantized weight the codes, with scales in that format and
repeated where kernels want smaller groups. So each weight is counted as codes, whose bytes stand
fast, and as numbers, which take two or four bytes each.

No torch: the coordinator plans with it, and an agent asks before it starts anything.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd, prod

from molink.checkpoint.model_shape import PLAIN, WeightBits, WeightFormat
from molink.checkpoint.quantized.declared import DeclaredQuantization
from molink.checkpoint.quantized.recognised import part_names, quantized_weights
from molink.checkpoint.quantized.shapes import FLOATS
from molink.checkpoint.quantized.stored_weight import GROUPS_4BIT, MXFP4_GROUP, StoredWeight
from molink.checkpoint.safetensors_header import StoredTensor

EMBEDDINGS = "embed_tokens.weight"
"""End of the name of the table that turns token ids into rows, in imported GGUF files."""

UNPACKED = (EMBEDDINGS, "embed_tokens_per_layer.weight", "kv_b_proj.weight")
"""Ends of the names of weights that are held unpacked: rows are looked up in tables, and of latent
attention's expansion queries are multiplied with parts."""

GGUF_GROUP = 32
"""Numbers that share a scale in nearly all types of GGUF's blocks."""

LARGE_GROUP, SMALL_GROUP = 64, 32
"""Inputs that share a scale, from which products are timed as of 128, and as of 32."""

WHOLE_ROW_GROUP = GROUPS_4BIT[0]
"""Kernels for four bits know no longer group, so longer ones are held as several."""


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


def weight_bits(declared: DeclaredQuantization, inputs: int) -> WeightBits:
    """Bits that a stage holds of each weight, by the quantization that the checkpoint declares;
    `inputs` is a common divisor of the matrices' widths."""
    match declared.method:
        case None:
            return PLAIN
        case "mxfp4":
            return WeightBits(4, 1 / MXFP4_GROUP, "mxfp4")
        case "gguf":  # Names of tensors tell the types; this is the commonest, Q4_K.
            return WeightBits(4, 2 / GGUF_GROUP, "int4_g32")
        case "fp8":
            return WeightBits(8, 1 / declared.block[1], "fp8")
    bits = declared.bits or 4
    if declared.group is None:  # A scale for a whole row.
        numbers = 2 / WHOLE_ROW_GROUP if bits == 4 else 0.0
        return WeightBits(bits, numbers, "int4_g128" if bits == 4 else "int8")
    group = gcd(declared.group, inputs)
    return WeightBits(bits, 2 / group, _format(bits, group))


def _format(bits: int, group: int) -> WeightFormat:
    """Format of integer codes, by the nearest group that products are timed with."""
    if bits == 4:
        return "int4_g128" if group >= LARGE_GROUP else "int4_g32"
    return "int8" if group >= LARGE_GROUP else "int8_g32" if group >= SMALL_GROUP else "int8_g16"
