"""The residual stream between torch and the wire: the same bytes, seen from both sides."""

import torch

from molink.wire.codecs import decode, encode
from molink.wire.messages import TensorHeader

__all__ = ["dtype_name", "tensor_from_buffer", "tensor_to_buffer"]

Buffer = bytes | memoryview

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """The name of an element type on the wire."""
    return _NAMES[dtype]


def tensor_to_buffer(hidden_TD: torch.Tensor, codec: str) -> tuple[TensorHeader, Buffer]:
    """Header and packed bytes of [T, D]; raw makes no copy of what is contiguous on the CPU."""
    hidden_TD = hidden_TD.detach().to("cpu").contiguous()
    rows, width = hidden_TD.shape
    header = TensorHeader(_NAMES[hidden_TD.dtype], rows, width, codec)
    return header, encode(codec, header, hidden_TD.view(torch.uint8).numpy().data.cast("B"))


def tensor_from_buffer(header: TensorHeader, buffer: memoryview | bytes) -> torch.Tensor:
    """[T, D] on the CPU in the wire's element type, copied so that it outlives the frame.

    Raises FrameError when the buffer is not what its header says.
    """
    raw = decode(header.codec, header, buffer)
    flat = torch.frombuffer(bytearray(raw), dtype=_DTYPES[header.dtype])
    return flat.view(header.rows, header.width)
