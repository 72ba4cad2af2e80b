"""Block types of GGUF files: numbers of a tensor, plain or in blocks of so many values and bytes.

A row of a tensor is whole blocks. What our kernels have stays as it is; an import writes types of
`RECODED_TYPES` anew. Types that are in none of the tables are not read.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockType:
    """Way to store the numbers of a row: blocks of `values` numbers in `size` bytes."""

    name: str
    """Name of the type, as it ends the name of an imported tensor, such as "q4_k"; of plain numbers
    the type's name in safetensors."""
    values: int
    size: int
    bits: int
    """Bits of a code once it is unpacked for our kernels: 4 or 8; of a plain number all of it."""
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

_OF_256 = {
    10: ("Q2_K", 84),
    11: ("Q3_K", 110),
    15: ("Q8_K", 292),
    16: ("IQ2_XXS", 66),
    17: ("IQ2_XS", 74),
    18: ("IQ3_XXS", 98),
    19: ("IQ1_S", 50),
    21: ("IQ3_S", 110),
    22: ("IQ2_S", 82),
    23: ("IQ4_XS", 136),
    29: ("IQ1_M", 56),
    34: ("TQ1_0", 54),
    35: ("TQ2_0", 66),
}
_OF_ONE = {24: ("I8", 1), 25: ("I16", 2), 26: ("I32", 4), 27: ("I64", 8), 28: ("F64", 8)}

RECODED_TYPES = {
    **{number: BlockType(name, 256, size, 8, 32) for number, (name, size) in _OF_256.items()},
    20: BlockType("IQ4_NL", 32, 18, 8, 32),
    40: BlockType("NVFP4", 64, 36, 8, 32),
    41: BlockType("Q1_0", 128, 18, 8, 32),
    42: BlockType("Q2_0", 64, 18, 8, 32),
    **{number: BlockType(name, 1, size, 32, 1) for number, (name, size) in _OF_ONE.items()},
}
"""Types that no kernel reads, by their number in a file."""

OTHER_TYPES = {9: "Q8_1", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8"}
"""Names of types that are not read."""


def recoded_type(stored: BlockType) -> BlockType:
    """Type that an import writes in place of a type in RECODED_TYPES."""
    return PLAIN_TYPES[0] if stored.values == 1 else BLOCK_TYPES[8]


_BY_NAME = {block.name: block for block in BLOCK_TYPES.values()}


def block_type_named(name: str) -> BlockType:
    """The type of quantized blocks of this name. Raises KeyError for any other."""
    return _BY_NAME[name]
