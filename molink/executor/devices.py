"""On which device, and in which number format, does a stage compute?

On a CPU bfloat16 pays only where the instruction set multiplies it (AVX512-BF16 or AMX: prefill is
up to 8 times faster than fp32, decode reads half the bytes); elsewhere it is emulated and fp32
wins. fp16 is slow on every CPU and is chosen only by name. On CUDA the checkpoint's own 16-bit type
is kept, since converting between the two loses bits.

The CUDA branches share the CPU's code path; they were not run on a GPU.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from molink.errors import UserError

__all__ = ["DTYPES", "choose_device", "choose_dtype"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(wanted: str) -> torch.device:
    """The device for `auto`, `cpu`, `cuda` or `cuda:N`. Raises UserError when it is not there."""
    if wanted == "auto":
        wanted = "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except (RuntimeError, ValueError):
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {wanted!r} is not one of auto, cpu, cuda:N")
    if device.type == "cuda":
        return _check_cuda(torch.device("cuda", device.index or 0))
    return device


def choose_dtype(wanted: str, device: torch.device, checkpoint_dtype: str) -> torch.dtype:
    """The number format for `auto` or a format's name. Raises UserError for another name."""
    if wanted == "auto":
        if device.type == "cpu":
            return torch.bfloat16 if cpu_multiplies_bfloat16() else torch.float32
        return torch.float16 if checkpoint_dtype == "float16" else torch.bfloat16
    if wanted not in DTYPES:
        raise UserError(f"dtype {wanted!r} is not one of auto, {', '.join(DTYPES)}")
    return DTYPES[wanted]


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16 products."""
    capabilities = cpu_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def cpu_capabilities() -> Mapping[str, Any]:
    """What torch knows of the CPU's instruction sets; empty where it cannot tell."""
    ask: Callable[[], Mapping[str, Any]] = getattr(torch.cpu, "get_capabilities", dict)
    return ask()


def _check_cuda(device: torch.device) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise UserError(
            f"this machine has no device {device}: torch sees {count} GPUs; "
            "use --device cpu or another number"
        )
    return device
