"""On which device, and in which number format, does a stage compute, and how much KV may it hold?

On a CPU bfloat16 pays only where the instruction set multiplies it (AVX512-BF16 or AMX: prefill is
up to 8 times faster than fp32, decode reads half the bytes); elsewhere it is emulated and fp32
wins. fp16 is slow on every CPU and is chosen only by name. On CUDA the checkpoint's own 16-bit type
is kept, since converting between the two loses bits.

A home PC's memory is not ours to fill: a stage proposes a share of what is free now, and pages are
committed only as sequences grow into them (see `kv_pool`).

The CUDA branches share the CPU's code path; they were not run on a GPU.
"""

import ctypes
import gc
import sys
from collections.abc import Callable, Mapping
from typing import Any

import psutil
import torch

from molink.errors import UserError
from molink_scheduler.kv.blocks import BLOCK_TOKENS

__all__ = [
    "DTYPES",
    "choose_device",
    "choose_dtype",
    "free_memory_bytes",
    "memory_budget_bytes",
    "propose_kv_tokens",
    "propose_state_slots",
    "return_freed_memory",
]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

KV_SHARE_OF_FREE = {"cpu": 0.25, "cuda": 0.85}
"""A CPU's memory is shared with the person who works at the PC, and with other stages; a GPU's
rarely is, but activations of long prefill spans need the rest.
"""

KV_SHARE_OF_FREE_TOGETHER = {"cpu": 0.75, "cuda": 0.85}
"""What all stages on one PC may take of it. They load side by side and commit pages only later, so
none sees in the free memory what the others have proposed.
"""

KV_TOKENS_MAX = 131_072
"""Over this the head's block bookkeeping costs more than a millisecond per new sequence, and no
home ring fills it.
"""

KV_TOKENS_MIN = 2_048
"""Under this a stage could not hold one ordinary conversation; better to ask for it and let the
machine say no.
"""


STATE_SLOTS_MAX = 256
"""More requests at once than a home ring answers at a speed that anybody reads along with."""

STATE_CONTEXT_TOKENS = 4_096
"""KV that memory is kept free for with every state slot: an ordinary conversation."""


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


# -- memory ---------------------------------------------------------------------------------------


def free_memory_bytes(device: torch.device) -> int:
    """Bytes of memory that are free now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def memory_budget_bytes(free_bytes: int, device_type: str, stages_here: int = 1) -> int:
    """Bytes that a stage may fill with KV and states, when `stages_here` stages share the PC."""
    together = KV_SHARE_OF_FREE_TOGETHER[device_type] / stages_here
    return int(free_bytes * min(KV_SHARE_OF_FREE[device_type], together))


def propose_kv_tokens(token_bytes: int, budget_bytes: int) -> int:
    """Tokens of KV to offer, a whole number of blocks, when one token takes `token_bytes` in all
    layers; none at all in a stage whose layers keep states only.
    """
    affordable = max(0, budget_bytes) // max(1, token_bytes)
    tokens = min(KV_TOKENS_MAX, max(KV_TOKENS_MIN, affordable))
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS


def propose_state_slots(
    state_bytes: int, token_bytes: int, kv_tokens: int | None, budget_bytes: int
) -> int | None:
    """State slots to offer, at least one, beside `kv_tokens` tokens of KV; where those are not
    decided, beside an ordinary conversation's KV for each slot. None: requests have no states here.
    """
    if state_bytes == 0:
        return None
    if kv_tokens is None:
        affordable = budget_bytes // (state_bytes + STATE_CONTEXT_TOKENS * token_bytes)
    else:
        affordable = (budget_bytes - kv_tokens * token_bytes) // state_bytes
    return max(1, min(STATE_SLOTS_MAX, affordable))


def return_freed_memory() -> None:
    """Give memory that loading used and freed back to the system; the C library would keep it."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
