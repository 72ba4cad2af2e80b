"""Times in which a device multiplies with weights of each format that stages hold.

Step times do not follow bytes: a kernel unpacks codes while it reads and multiplies, and where none
suits, the matrix is unpacked for each product. So a node measures two figures for each format, of
matrices that say nothing of a model: one row, which is reading, and each of many rows, which is
multiplying. With a model's shape they give its step times before it was ever run there.

A device that was not measured is counted by its bytes and its arithmetic, corrected by what each
format was found to take beyond them. A card's are argued from what the product reads and writes,
since no card was measured: torch's kernel for four bits is taken as it should be, and what has no
kernel is unpacked to memory and read again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from molink.checkpoint.model_shape import WeightBits, WeightFormat

BILLION = 1e9
"""Weights of which a format's times are told."""

UNPACKED_BYTES = 4
"""Bytes moved for a weight that is unpacked for a product: 16 bits are written, and read again."""


@dataclass(frozen=True, slots=True)
class FormatTimes:
    """Seconds of a product with a billion weights of one format."""

    read_s: float
    """Seconds of one row."""
    row_s: float
    """Seconds of each of many rows."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Cost of a format beyond its bytes and its arithmetic, as multiples of them."""

    read: float = 1.0
    row: float = 1.0
    unpacked_bytes: int = 0
    """Bytes of each weight to write and read beside it, at every product."""

    def times(self, bits: WeightBits, element_bytes: int, plain: FormatTimes) -> FormatTimes:
        """Times of weights that take `bits`, of a device whose plain ones take `plain`."""
        moved = self.read * bits.bytes_in(element_bytes) + self.unpacked_bytes
        return FormatTimes(plain.read_s * moved / element_bytes, plain.row_s * self.row)


NONE = Correction()

CPU_CORRECTIONS: Mapping[WeightFormat, Correction] = {
    "plain": NONE,
    "int4_g128": Correction(1.14, 1.09),
    "int4_g32": Correction(1.05, 1.29),
    "int8": Correction(1.15, 1.04),
    "int8_g32": Correction(1.15, 1.04),
    "int8_g16": Correction(1.15, 1.04),
    "mxfp4": Correction(1.09, 1.16),
    "fp8": Correction(1.09, 1.07),
}
"""Our kernels in bf16 at 1 and at 256 rows beside plain weights (docs/benchmarks/quantized.md, "One
linear layer"), over the ratio of their bytes. Smaller groups of eight bits were not in that table
and count as a scale per output."""

CARD_CORRECTIONS: Mapping[WeightFormat, Correction] = {
    "plain": NONE,
    "int4_g128": NONE,
    "int4_g32": NONE,
    **dict.fromkeys(
        ("int8", "int8_g32", "int8_g16", "mxfp4", "fp8"), Correction(unpacked_bytes=UNPACKED_BYTES)
    ),
}
"""Assumed, see above: a bound from below."""
