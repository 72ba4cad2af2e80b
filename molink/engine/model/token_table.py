"""Reads a stage's columns of the table that has some for every layer (`token_inputs`).

The table is most of such a model (of E2B in 16 bits 4.7 of 10 GB), and a stage of a third of the
layers needs a third of it. The library would read all of it, so it is given a class without the
table, which is filled here: some rows at a time, from the file, without a memory map.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from molink.checkpoint.safetensors_header import StoredTensor, check_whole, read_header
from molink.checkpoint.shard_plan import TOKEN_TABLE
from molink.engine.model.quantized.tensor_files import TensorFiles
from molink.errors import CheckpointError

READ_BYTES = 64 * 2**20
"""Bytes of rows read at a time: enough for a disk's full speed, and little beside the table."""


@dataclass(frozen=True, slots=True)
class StoredTable:
    """Table of a checkpoint, and the layers whose columns of it a stage holds."""

    tensor: StoredTensor
    path: Path
    layers: range
    layers_total: int

    @classmethod
    def find(
        cls,
        weight_map: Mapping[str, str],
        paths: Mapping[str, Path],
        layers: range,
        layers_total: int,
    ) -> "StoredTable | None":
        """The table among the plain tensors that a stage needs; None where there is none, or the
        stage needs all of it. Raises CheckpointError for a file that is shorter than its table
        says."""
        names = [name for name in weight_map if name.split(".")[-2:] == [TOKEN_TABLE, "weight"]]
        if not names or len(layers) == layers_total:
            return None
        path = paths[weight_map[names[0]]]
        table = read_header(path)
        check_whole(table, path)
        (tensor,) = (one for one in table.tensors if one.name == names[0])
        return cls(tensor, path, layers, layers_total)

    def target(self, model: nn.Module) -> tuple[str, str]:
        """Module and attribute of a model that it belongs in."""
        names = (name for name, _ in model.named_modules())
        return next(name for name in names if name.split(".")[-1] == TOKEN_TABLE), "weight"

    def fill(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Put the stage's columns where the model has none. Raises CheckpointError for a table that
        is not the model's."""
        module: Any = model.get_submodule(self.target(model)[0])
        shape = (module.num_embeddings, module.embedding_dim)
        if self.tensor.shape != shape:
            found, expected = (" x ".join(map(str, one)) for one in (self.tensor.shape, shape))
            raise CheckpointError(
                f"{self.tensor.name} is a table of {found}, where the model has one of {expected}: "
                "its config.json is that of another model"
            )
        width = shape[1] // self.layers_total
        own = slice(self.layers.start * width, self.layers.stop * width)
        del module._buffers["weight"]
        module.weight = nn.Parameter(self._columns(own, dtype), requires_grad=False)

    def _columns(self, own: slice, dtype: torch.dtype) -> torch.Tensor:
        files = TensorFiles({self.tensor.name: self.path})
        rows, _ = self.tensor.shape
        found = torch.empty(rows, own.stop - own.start, dtype=dtype)
        row_bytes = (self.tensor.stop - self.tensor.start) // rows
        step = max(1, READ_BYTES // row_bytes)
        for first in range(0, rows, step):
            last = min(rows, first + step)
            found[first:last] = files.rows(self.tensor, first, last)[:, own]
        return found
