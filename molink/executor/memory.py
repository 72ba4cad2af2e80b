"""How much KV may a stage hold?

A home PC's memory is not ours to fill: a stage proposes a share of what is free now, and pages are
committed only as sequences grow into them (see `kv_pool`).
"""

import ctypes
import gc
import sys

import psutil
import torch

from molink_scheduler.kv.blocks import BLOCK_TOKENS

__all__ = ["free_memory_bytes", "propose_kv_tokens", "return_freed_memory"]

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


def free_memory_bytes(device: torch.device) -> int:
    """Memory that nobody uses now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def propose_kv_tokens(
    token_bytes: int, free_bytes: int, device_type: str, stages_here: int = 1
) -> int:
    """Tokens of KV to offer, a whole number of blocks, when one token takes `token_bytes` in all
    layers, and `stages_here` stages share the PC.
    """
    together = KV_SHARE_OF_FREE_TOGETHER[device_type] / stages_here
    share = min(KV_SHARE_OF_FREE[device_type], together)
    affordable = int(free_bytes * share) // max(1, token_bytes)
    tokens = min(KV_TOKENS_MAX, max(KV_TOKENS_MIN, affordable))
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS


def return_freed_memory() -> None:
    """Give memory that loading used and freed back to the system; the C library would keep it."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
