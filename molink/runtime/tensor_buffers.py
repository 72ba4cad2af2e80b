"""The residual stream between torch and the wire: the same bytes, seen from both sides."""

import torch

from molink.errors import FrameError
from molink.wire.messages import TensorHeader

__all__ = ["dtype_name", "tensor_from_buffer", "tensor_to_buffer"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """The name of an element type on the wire."""
    return _NAMES[dtype]


def tensor_to_buffer(hidden_TD: torch.Tensor) -> tuple[TensorHeader, memoryview]:
    """Header and bytes of [T, D]; no copy when the tensor is contiguous on the CPU."""
    hidden_TD = hidden_TD.detach().to("cpu").contiguous()
    rows, width = hidden_TD.shape
    header = TensorHeader(_NAMES[hidden_TD.dtype], rows, width)
    return header, hidden_TD.view(torch.uint8).numpy().data.cast("B")


def tensor_from_buffer(header: TensorHeader, buffer: memoryview | bytes) -> torch.Tensor:
    """[T, D] on the CPU in the wire's element type, copied so that it outlives the frame.

    Raises FrameError when the buffer is not as long as its header says.
    """
    if len(buffer) != header.raw_bytes:
        raise FrameError(f"{len(buffer)} bytes for a tensor of {header.raw_bytes}")
    flat = torch.frombuffer(bytearray(buffer), dtype=_DTYPES[header.dtype])
    return flat.view(header.rows, header.width)
