"""One quantized weight as a checkpoint stores it: its format, its parts, and what they take.

The shapes of the parts tell outputs, inputs, bits and group; they are compared with each other, so
that a damaged or foreign checkpoint is refused with a sentence before anything large is read.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from molink.checkpoint.gguf.block_types import block_type_named
from molink.checkpoint.safetensors_header import StoredTensor

GROUPS_4BIT = (256, 128, 64, 32)
"""Groups of four-bit codes that kernels know, the largest first."""

MXFP4_GROUP = 32


class WeightFormat(StrEnum):
    """Format of a stored weight."""

    PACK_QUANTIZED = "pack-quantized"
    """Integers of compressed-tensors: codes [N, K/8], scales [N, K/g]."""
    AWQ = "awq"
    """Codes [K, N/8] with the columns of a word in an order of their own, scales [K/g, N]."""
    GPTQ = "gptq"
    """Codes [K/8, N], scales [K/g, N]."""
    MXFP4 = "mxfp4"
    """Codes [E, N, K/32, 16], exponents [E, N, K/32]."""
    INT8 = "int8"
    """Signed bytes [N, K] with a scale for each row."""
    FP8 = "fp8"
    """Numbers of eight bits [N, K] with a scale per tensor, row or block."""
    GGUF = "gguf"
    """Blocks of a GGUF file [N, bytes of a row], or [E, N, bytes of a row], of the type that the
    name of the tensor says."""


class StoredPart(StrEnum):
    """Role of a stored tensor in a quantized weight."""

    CODES = "codes"
    SCALE = "scale"
    ZERO = "zero"
    SHAPE = "shape"
    """Outputs and inputs, where padding may hide them."""
    ORDER = "order"
    """The group of each input (g_idx), of which only the natural order is served."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """Quantized matrix, or stack of matrices of experts, in the files of a checkpoint."""

    name: str
    """Name of the plain weight that it stands for, such as "model.layers.3.mlp.up_proj.weight"."""
    format: WeightFormat
    parts: Mapping[StoredPart, StoredTensor]
    outputs: int
    inputs: int
    bits: int
    """Bits of a code: 4 or 8."""
    group: int
    """Inputs that share a scale, as stored; the last group of a row may be shorter."""
    experts: int | None = None
    """Matrices in the stack; None: it is one matrix."""
    zero_offset: int = 0
    """Number to add to each stored zero point."""
    scale_rows: int = 1
    """Outputs that share a scale."""
    block: str = ""
    """Name of the type of its blocks, where they are those of a GGUF file."""

    @property
    def file_bytes(self) -> int:
        """Bytes of its parts in the files."""
        return sum(part.stop - part.start for part in self.parts.values())

    @property
    def packed_group(self) -> int:
        """Inputs that share a scale in memory: it divides the row and every stored group."""
        whole = self.inputs % self.group == 0
        shared = self.group if whole else math.gcd(self.group, self.inputs)
        if self.bits == 8:
            return shared
        return next((group for group in GROUPS_4BIT if shared % group == 0), shared)

    @property
    def code_bytes(self) -> int:
        """Bytes of its codes in memory."""
        return (self.experts or 1) * self.outputs * self.inputs * self.bits // 8

    @property
    def scale_numbers(self) -> int:
        """Scales, and zeros where its form has them, that stand beside the codes in memory. Kernels
        hold each as a number in the stage's own format, exponents of MXFP4 too."""
        groups = (self.experts or 1) * self.outputs * self.inputs // self.packed_group
        return groups * (2 if self._has_zeros else 1)

    def held_bytes(self, element_bytes: int) -> int:
        """Bytes that it takes in the memory of a stage whose numbers take `element_bytes`."""
        return self.code_bytes + element_bytes * self.scale_numbers

    @property
    def _has_zeros(self) -> bool:
        if self.format is WeightFormat.GGUF:
            return block_type_named(self.block).has_zero
        integers = (WeightFormat.PACK_QUANTIZED, WeightFormat.AWQ, WeightFormat.GPTQ)
        return self.format in integers and (self.bits == 4 or StoredPart.ZERO in self.parts)
