"""Reads single tensors of safetensors files by their place.

No memory map: pages of a map count as the process's memory until the system takes them back, and a
stage whose packed weights are made from the stored ones would hold both. A matrix is read, turned
into its packed form and forgotten before the next one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from molink.checkpoint.safetensors_header import StoredTensor
from molink.errors import CheckpointError

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
}
"""Types by their names in a safetensors table: those of quantized weights."""


@dataclass(frozen=True, slots=True)
class TensorFiles:
    """Reader of the tensors of a checkpoint's files."""

    files: Mapping[str, Path]
    """File of each tensor, by its name."""

    def read(self, tensor: StoredTensor, index: int | None = None) -> torch.Tensor:
        """A tensor, or one entry of its first dimension. Raises CheckpointError when its file does
        not hold it."""
        start, stop, shape = tensor.start, tensor.stop, tensor.shape
        if index is not None:
            size = (stop - start) // shape[0]
            start, stop, shape = start + index * size, start + (index + 1) * size, shape[1:]
        return self._tensor(tensor, start, stop, shape)

    def rows(self, tensor: StoredTensor, first: int, last: int) -> torch.Tensor:
        """Rows [first, last) of a matrix. Raises CheckpointError as `read`."""
        row_bytes = (tensor.stop - tensor.start) // tensor.shape[0]
        start, stop = (tensor.start + row * row_bytes for row in (first, last))
        return self._tensor(tensor, start, stop, (last - first, *tensor.shape[1:]))

    def _tensor(
        self, tensor: StoredTensor, start: int, stop: int, shape: tuple[int, ...]
    ) -> torch.Tensor:
        data = _bytes(self.files[tensor.name], start, stop)
        dtype = TYPES.get(tensor.dtype)
        if dtype is None or len(data) != math.prod(shape) * dtype.itemsize:
            raise CheckpointError(f"{self.files[tensor.name]} is damaged: fetch it again")
        return data.view(dtype).view(shape)


def _bytes(path: Path, start: int, stop: int) -> torch.Tensor:
    data = torch.empty(stop - start, dtype=torch.uint8)
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            filled, view = 0, data.numpy().data
            while filled < len(data) and (count := file.readinto(view[filled:])):
                filled += count
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
    if filled < len(data):
        raise CheckpointError(f"{path} is shorter than its table says: fetch it again")
    return data
