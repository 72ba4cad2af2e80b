"""Rows that a stage neither takes nor sends: with numbers that are none, or beyond its format.

Sizes of numbers are compared as integers, whose order is that of the numbers without their signs,
with infinity and NaN above all others.

Shapes: T rows, D hidden size.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from molink.wire.elements import Elements, element_name

Marks = npt.NDArray[np.bool_]


class Unfit(NamedTuple):
    """Rows that do not fit, each marked."""

    lost_T: Marks
    """Rows with a number that is not finite."""
    beyond_T: Marks
    """Rows that are finite, and go beyond the number format."""


class _Format(NamedTuple):
    """Numbers of one format as integers."""

    signed: type[np.signedinteger[Any]]
    unsigned: type[np.unsignedinteger[Any]]
    sign: int
    """The bit of a number's sign."""
    infinity: int
    """Infinity; NaN is above, all numbers are below."""


_NARROW = (np.int16, np.uint16, 0x8000)
_FORMATS: dict[str, _Format] = {
    "float32": _Format(np.int32, np.uint32, 0x8000_0000, 0x7F80_0000),
    "bfloat16": _Format(*_NARROW, 0x7F80),
    "float16": _Format(*_NARROW, 0x7C00),
}

_LARGEST = {
    ("float32", "float32"): 0x7F7F_FFFF,
    ("float32", "bfloat16"): 0x7F7F_0000,
    ("float32", "float16"): 0x477F_E000,
    ("bfloat16", "float32"): 0x7F7F,
    ("bfloat16", "bfloat16"): 0x7F7F,
    ("bfloat16", "float16"): 0x477F,
    ("float16", "float32"): 0x7BFF,
    ("float16", "bfloat16"): 0x7BFF,
    ("float16", "float16"): 0x7BFF,
}
"""Largest number of the second format that the first has, as an integer of the first."""


def unfit_rows(rows_TD: Elements, dtype: str) -> Unfit | None:
    """Rows [T, D] that do not fit into a number format, by its name on the wire; None: all do."""
    held = element_name(rows_TD)
    format_, largest = _FORMATS[held], _LARGEST[held, dtype]
    numbers = rows_TD.reshape(-1)
    # As signed integers positive numbers come last, as unsigned ones negative numbers do.
    most = int(np.maximum.reduce(numbers.view(format_.signed)))
    least = int(np.maximum.reduce(numbers.view(format_.unsigned)))
    if most <= largest and least <= format_.sign | largest:
        return None
    sizes_TD = rows_TD.view(format_.unsigned) & format_.unsigned(format_.sign - 1)
    sizes_T = sizes_TD.max(-1)
    lost_T = sizes_T >= format_.infinity
    return Unfit(lost_T, ~lost_T & (sizes_T > largest))
