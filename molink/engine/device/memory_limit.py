"""A hard limit on the memory that a process of ours may take, behind what was counted before.

What an owner lends is checked before a stage starts; this holds when the count was wrong, or when
somebody has found a message that makes a stage grow. On a CPU it is the kernel's limit on a
process's own writable memory: RLIMIT_AS would count address space, of which torch reserves far more
than it uses, and a watch from outside would come too late. On a card it is the limit of torch's
allocator: of what a process holds there only the driver's own context (some 0.5 GB) is beyond it.
"""

import resource
from pathlib import Path

import torch

from molink.engine.device.devices import choose_device
from molink.hardware.card_memory import STEP_BYTES
from molink_scheduler.units import GIB

WORKSPACE_BYTES = GIB
"""Bytes of a stage on a CPU beside weights and KV: rows of a span, workspaces of kernels, stacks of
threads and messages."""

STATUS = Path("/proc/self/status")


def limit_memory(
    device: str, memory_bytes: int, mapped_bytes: int = 0, held_bytes: int = 0
) -> None:
    """Let this process take `memory_bytes` of the device, `held_bytes` of which it has taken; an
    allocation beyond that fails. `mapped_bytes`: of files that it will map to load from them,
    and of what else it may take on a CPU beside.

    Raises UserError when there is no such device.
    """
    chosen = choose_device(device)
    if chosen.type == "cuda":
        total = torch.cuda.get_device_properties(chosen).total_memory
        share = min(1.0, (memory_bytes + STEP_BYTES) / total)
        torch.cuda.set_per_process_memory_fraction(share, chosen)
        return
    taken = _data_bytes()
    if taken is not None:
        wanted = taken + memory_bytes - held_bytes + mapped_bytes + WORKSPACE_BYTES
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _data_bytes() -> int | None:
    """Bytes that the kernel counts of this process now; None where it does not say."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith("VmData:"))
    kilobytes = next(found, None)
    return None if kilobytes is None else int(kilobytes) * 1024
