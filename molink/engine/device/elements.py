"""Rows between torch and numpy: the same memory, seen in another way.

numpy has no bfloat16; its numbers are integers of 16 bits there (`molink.wire.elements`).
"""

import numpy as np
import torch

from molink.wire.elements import Elements

_BITS = {torch.bfloat16: (torch.int16, np.uint16)}
"""Formats that numpy does not know: what torch hands over, and what it is called."""


def dtype_name(dtype: torch.dtype) -> str:
    """The name of an element type on the wire."""
    return str(dtype).removeprefix("torch.")


def elements_of(rows_TD: torch.Tensor) -> Elements:
    """Rows [T, D] on the host as numpy's, not copied unless they lie apart."""
    rows_TD = rows_TD.detach().contiguous()
    if rows_TD.dtype not in _BITS:
        return rows_TD.numpy()
    bits, name = _BITS[rows_TD.dtype]
    return rows_TD.view(bits).numpy().view(name)


def tensor_of(rows_TD: Elements) -> torch.Tensor:
    """Rows [T, D] of numpy's as torch's, not copied."""
    if rows_TD.dtype == np.uint16:
        return torch.from_numpy(rows_TD.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(rows_TD)
