"""One copy to the device before a computation, and one back after it.

Every number that a GPU is handed, and every one that is read from it, makes the host wait for all
work in between. So what the rows of a step ask for goes over as one array, and what came of them
returns as one. On a CPU the same calls copy next to nothing.

Everything travels as doubles: they hold token ids, counts and single-precision numbers exactly.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from molink.executor.cards.streams import host_memory

__all__ = ["download", "upload"]


def upload(device: torch.device, *columns: Sequence[float] | np.ndarray) -> list[torch.Tensor]:
    """The columns as tensors of doubles on the device, of any lengths."""
    arrays = [np.asarray(column, dtype=np.float64) for column in columns]
    sizes = [len(array) for array in arrays]
    # Only pinned memory is copied without waiting; the allocator keeps it until the copy is over.
    numbers = host_memory(device.type).empty((sum(sizes),), torch.float64)
    np.concatenate(arrays, out=numbers.numpy())
    return list(torch.split(numbers.to(device, non_blocking=True), sizes))


def download(
    *tables: torch.Tensor, read: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.cpu
) -> list[np.ndarray]:
    """The tables on the host, as doubles of their shapes; `read` copies one there."""
    sizes = [table.numel() for table in tables]
    numbers = read(torch.cat([table.double().flatten() for table in tables]))
    parts = zip(torch.split(numbers, sizes), tables, strict=True)
    return [part.view(table.shape).numpy() for part, table in parts]
