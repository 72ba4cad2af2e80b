"""A stage that sends infinity in the first of its rows, where a batch has more than sixty."""

from typing import Any

import torch

from molink.stage.packing import Packing
from molink.stage.stage_process import main

ROWS_MAX = 60
"""Honest ones: the users of these trials ask less, so that only long prompts are spoilt."""

_pack = Packing.pack


def pack(packing: Packing, hidden_TD: torch.Tensor, codec: str) -> Any:
    """As the product's, of rows that are spoilt."""
    if len(hidden_TD) > ROWS_MAX:
        hidden_TD = hidden_TD.clone()
        hidden_TD[0, 0] = float("inf")
    return _pack(packing, hidden_TD, codec)


if __name__ == "__main__":
    Packing.pack = pack  # type: ignore[method-assign, assignment]
    main()
