"""Choice of a stage's device and number format, and of how much KV it may hold.

On a CPU bfloat16 pays only where the instruction set multiplies it (AVX512-BF16 or AMX: prefill is
up to 8 times faster than fp32, decode reads half the bytes); elsewhere it is emulated and fp32
wins. fp16 is slow on every CPU and is chosen only by name. On CUDA the checkpoint's own 16-bit type
is kept, since converting between the two loses bits; cards before the RTX 30, which have no
bfloat16, take fp16, and what does not fit into its range is looked for (`number_range`).

A home PC's memory is not ours to fill: on a CPU a stage proposes a share of what is free now, and
pages are committed only as sequences grow into them (see `kv_pool`). What a card has room for is
measured (`step.card_room`).

The CUDA branches were tried with a stand-in for the card (`device.card`), not on one.
"""

import ctypes
import gc
import sys
from collections.abc import Callable, Mapping
from typing import Any

import psutil
import torch

from molink.checkpoint.stage_size import KV_TOKENS_MIN
from molink.engine.device.card import Card
from molink.errors import UserError
from molink.hardware.torch_builds import has_code, how_to_get_code
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.layer_class import CONVERSATION_TOKENS

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

HOST_KEPT_BYTES = 256 * 2**20
"""Bytes of a PC's memory that stay free: below it a system begins to end processes."""

KV_SHARE_OF_FREE = 0.25
"""A CPU's memory is shared with the person who works at the PC, and with other stages."""

KV_SHARE_OF_FREE_TOGETHER = 0.75
"""Share of free memory that all stages on one PC may take. They load side by side and commit pages
only later, so none sees in the free memory what the others have proposed."""

KV_TOKENS_MAX = 131_072
"""Most tokens of KV: over this the head's block bookkeeping costs more than a millisecond per new
sequence, and no home ring fills it."""

STATE_SLOTS_MAX = 256
"""Most slots for states: more requests at once than a home ring answers at a reading speed."""


def choose_device(wanted: str) -> torch.device:
    """The device for `auto`, `cpu`, `cuda` or `cuda:N`; a card becomes the one that this process
    computes on. Raises UserError when it is not there."""
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
        if checkpoint_dtype == "float16" or not Card(device).multiplies_bfloat16:
            return torch.float16
        return torch.bfloat16
    if wanted not in DTYPES:
        raise UserError(f"dtype {wanted!r} is not one of auto, {', '.join(DTYPES)}")
    is_card = device.type == "cuda"
    if wanted == "bfloat16" and is_card and not Card(device).multiplies_bfloat16:
        raise UserError(f"{device} has no bfloat16, only emulated: use --dtype auto, or float16")
    return DTYPES[wanted]


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16 products."""
    capabilities = cpu_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def cpu_capabilities() -> Mapping[str, Any]:
    """Instruction sets of the CPU that torch knows of; empty where it cannot tell."""
    ask: Callable[[], Mapping[str, Any]] = getattr(torch.cpu, "get_capabilities", dict)
    return ask()


def _check_cuda(device: torch.device) -> torch.device:
    card = Card(device)
    count = card.count
    if (device.index or 0) >= count:
        why = f" ({card.why_none})" if count == 0 and card.why_none else ""
        raise UserError(
            f"this machine has no device {device}: torch sees {count} GPUs{why}; "
            "use --device cpu or another number"
        )
    _check_code(card)
    card.select()
    return device


def _check_code(card: Card) -> None:
    """Raises UserError where torch lists the card, but cannot compute on it."""
    if not has_code(card.capability, card.architectures):
        major, minor = card.capability
        raise UserError(
            f"{card.device} ({card.name}, compute capability {major}.{minor}) cannot be used: this "
            f"torch has no code for it (only {', '.join(card.architectures) or 'none'}); "
            f"{how_to_get_code(card.capability, card.driver)}"
        )
    try:
        card.try_step()
    except RuntimeError as error:
        raise UserError(
            f"{card.device} ({card.name}) does not compute: {card.words(error)}; restart the PC, "
            "update the NVIDIA driver, or use --device cpu"
        ) from None


# -- memory ---------------------------------------------------------------------------------------


def free_memory_bytes() -> int:
    """Bytes of main memory that are free now."""
    return int(psutil.virtual_memory().available)


def host_is_short() -> bool:
    """Whether this PC has so little memory left that what can be done without is to go."""
    return free_memory_bytes() < HOST_KEPT_BYTES


def memory_budget_bytes(free_bytes: int, stages_here: int = 1) -> int:
    """Bytes of main memory that a stage may fill with KV and states, when `stages_here` stages
    share the PC."""
    together = KV_SHARE_OF_FREE_TOGETHER / stages_here
    return int(free_bytes * min(KV_SHARE_OF_FREE, together))


def pool_budget_bytes(kv_tokens: int | None, stages_here: int, lent_bytes: int | None) -> int:
    """Bytes of main memory for a stage's KV and states. `lent_bytes` are those that are left of
    what was lent beside its weights; None: nothing was said."""
    free_bytes = free_memory_bytes()
    budget_bytes = memory_budget_bytes(free_bytes, stages_here)
    if lent_bytes is None:
        return budget_bytes
    is_planned = kv_tokens is not None  # And then states were, in what is lent beside it.
    return min(free_bytes if is_planned else budget_bytes, lent_bytes)


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
        affordable = budget_bytes // (state_bytes + CONVERSATION_TOKENS * token_bytes)
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
