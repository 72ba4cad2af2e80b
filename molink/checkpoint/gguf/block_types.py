"""How a GGUF file stores the numbers of a tensor: plain, or in blocks of so many values and bytes.

A row of a tensor is whole blocks. Types that are not in these tables (IQ, ternary, NVFP4) are not
read; their names are here so that a refusal can say them.
"""

from dataclasses import dataclass

__all__ = ["BLOCK_TYPES", "OTHER_TYPES", "PLAIN_TYPES", "BlockType", "block_type_named"]


@dataclass(frozen=True, slots=True)
class BlockType:
    """Way to store the numbers of a row: blocks of `values` numbers in `size` bytes."""

    name: str
    """As it ends the name of an imported tensor, such as "q4_k"; of plain numbers the type's name
    in safetensors."""
    values: int
    size: int
    bits: int
    """Of a code once it is unpacked for our kernels: 4 or 8; of a plain number all of it."""
    group: int
    """Values that share a scale."""
    has_zero: bool = False
    """Whether our packed form has an offset beside a scale."""


PLAIN_TYPES = {
    0: BlockType("F32", 1, 4, 32, 1),
    1: BlockType("F16", 1, 2, 16, 1),
    30: BlockType("BF16", 1, 2, 16, 1),
}
"""Types of single numbers, by their number in a file."""

BLOCK_TYPES = {
    2: BlockType("q4_0", 32, 18, 4, 32, has_zero=True),
    3: BlockType("q4_1", 32, 20, 4, 32, has_zero=True),
    6: BlockType("q5_0", 32, 22, 8, 32),
    7: BlockType("q5_1", 32, 24, 8, 32, has_zero=True),
    8: BlockType("q8_0", 32, 34, 8, 32),
    12: BlockType("q4_k", 256, 144, 4, 32, has_zero=True),
    13: BlockType("q5_k", 256, 176, 8, 32, has_zero=True),
    14: BlockType("q6_k", 256, 210, 8, 16),
    39: BlockType("mxfp4", 32, 17, 4, 32),
}
"""Types of quantized blocks, by their number in a file."""

OTHER_TYPES = {
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
}
"""Names of types that are not read."""

_BY_NAME = {block.name: block for block in BLOCK_TYPES.values()}


def block_type_named(name: str) -> BlockType:
    """The type of quantized blocks of this name. Raises KeyError for any other."""
    return _BY_NAME[name]
