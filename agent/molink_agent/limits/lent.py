"""Bytes of each device that a stage may use: the lower of the owner's cap and of what is free,
less a reserve; of a card also less what a stage's process takes beside its weights and KV.

What our own stage already holds counts as free: else the offer would shrink as soon as it is taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from molink.control.messages.base import ModelSize
from molink.hardware.card_memory import CONTEXT_BYTES, STEP_BYTES, kept_free_bytes
from molink.hardware.host import MainMemory
from molink.stage_protocol.cache_room import CacheRoom
from molink_agent.limits.limits import OwnerLimits
from molink_agent.probe.gpus import DriverGpu, GpuReport
from molink_agent.probe.machine import Machine
from molink_scheduler.units import GB, gb_text

FREE_MEMORY = "free memory"
"""Bound of a loan that no cap of the owner bounds."""

BESIDE_STAGE_BYTES = CONTEXT_BYTES + STEP_BYTES
"""Bytes of a card for a stage's process and its steps: what is lent is for weights and KV."""

FULL_SHARE = 0.1
"""Part of a card's memory that is lent less each time it was full although less was counted."""

TIMES_FULL_MAX = 5
"""Times that count: the loan shrinks by at most half of the memory, until the agent starts anew."""

DISK_RESERVE_BYTES = 2 * GB
"""Logs, updates, and the owner's next download."""

THREADS_SHARE = 0.5
"""Part of the processor's threads: one for each core where cores have two, and the owner's programs
stay quick. Decode is bound by memory, and more threads gain it little."""


@dataclass(frozen=True, slots=True)
class Lent:
    """Part of one device that is lent."""

    device: str
    """"cpu" or "cuda:N"; of stages that share the CPU the second is "cpu:1"."""
    name: str
    total_bytes: int
    lent_bytes: int
    bound_by: str
    """Bound of the loan: "vram_gb" or "memory_gb" where the owner's cap decides, FREE_MEMORY where
    the PC does."""
    threads: int = 1
    element_bytes: int = 2
    """Bytes of a number that it computes with by itself."""

    @property
    def computes_on(self) -> str:
        """The device as a stage knows it: however many share the CPU, there is one."""
        return "cpu" if self.device.startswith("cpu") else self.device


def lent_devices(
    limits: OwnerLimits,
    machine: Machine,
    gpus: GpuReport,
    own_bytes: Mapping[str, int] | None = None,
    times_full: Mapping[str, int] | None = None,
) -> tuple[Lent, ...]:
    """The lent devices that the PC has, in the order of `limits.device`.

    `own_bytes`: what our stages hold, by device, where they report it themselves; `times_full`: how
    often they found no memory there.
    """
    own, full = own_bytes or {}, times_full or {}
    names = {f"cuda:{gpu.index}": gpu for gpu in gpus.gpus}
    cards = {
        name: _gpu(limits, gpu, own.get(name, 0), full.get(name, 0)) for name, gpu in names.items()
    }
    wanted = limits.device_names
    if wanted == ("auto",):
        apart = lending_card(limits, gpus)
        wanted = tuple(name for name, gpu in names.items() if gpu != apart) or ("cpu",)
    parts = iter(_cpu_parts(limits, machine, own, wanted.count("cpu")))
    found = [next(parts, None) if name == "cpu" else cards.get(name) for name in wanted]
    return tuple(part for part in found if part is not None)


def lending_card(limits: OwnerLimits, gpus: GpuReport) -> DriverGpu | None:
    """The card that holds no stage, and whose memory is lent for KV: the last one that `device`
    does not name, of several with auto the last; None: there is none, or nothing of it is lent."""
    named = limits.device_names
    cards = gpus.gpus[1:] if named == ("auto",) else gpus.gpus
    free = [gpu for gpu in cards if f"cuda:{gpu.index}" not in named]
    return free[-1] if free and limits.lend_gpu_bytes else None


def lent_threads(limits: OwnerLimits, machine: Machine) -> int:
    """Compute threads of all stages on the CPU; never more than there are beside cores that attend
    to others' KV."""
    half = int(machine.cpu_threads * THREADS_SHARE)
    wanted = half if limits.threads is None else limits.threads
    beside = machine.cpu_threads - (limits.lend_cpu_cores if limits.lend_ram_bytes else 0)
    return max(1, min(wanted, beside))


def unused_memory_bytes(machine: Machine) -> int:
    """Memory of the PC that is free now, less what always stays free; below 0 where that is
    touched."""
    return MainMemory(machine.memory_bytes, machine.memory_available_bytes).idle_bytes


def lent_cache(limits: OwnerLimits, data_dir: Path, stages: int) -> CacheRoom | None:
    """The part of each of so many stages in what is lent for cached KV beside their devices'
    memory; None: nothing is. Who has said how much main memory stages on the CPU take gives no more
    of it unasked."""
    ram, disk = limits.cache_ram_bytes, limits.cache_disk_bytes or 0
    if ram is None and limits.memory_bytes is not None:
        ram = 0
    room = CacheRoom(ram, disk, str(data_dir / "kv-cache")).shared_by(stages)
    return None if room.is_empty else room


def lent_disk_bytes(limits: OwnerLimits, free_bytes: int, own_bytes: int) -> int:
    """Disk that all weights may take, of which `own_bytes` are there already."""
    usable = max(0, free_bytes + own_bytes - DISK_RESERVE_BYTES)
    return usable if limits.disk_bytes is None else min(usable, limits.disk_bytes)


def nothing_left(
    limits: OwnerLimits,
    lent: tuple[Lent, ...],
    disk_bytes: int,
    model: ModelSize,
    margin: float = 1.0,
) -> str | None:
    """A sentence when not one layer of `model` fits; None when a layer does. `margin` times a layer
    must fit: for a few bytes more an earlier sentence is not taken back.
    """
    if not lent:
        return (
            f"device = {limits.device!r} is not on this PC: set it to auto, "
            "or see `molink agent doctor` for what is."
        )
    best = max(lent, key=lambda part: part.lent_bytes / part.element_bytes)
    layer_bytes = model.held_bytes(best.element_bytes)
    if best.lent_bytes < margin * layer_bytes:
        return _too_small(best, layer_bytes, model.name)
    if disk_bytes < margin * model.layer_bytes:
        return (
            f"The disk that is lent ({gb_text(disk_bytes, 2)}) holds not one layer of {model.name} "
            f"({gb_text(model.layer_bytes, 2)}): raise disk_gb, or free some."
        )
    return None


def _too_small(best: Lent, layer_bytes: int, model: str) -> str:
    needs = f"but one layer of {model} needs {gb_text(layer_bytes, 2)}"
    if best.bound_by == FREE_MEMORY:
        return (
            f"{best.device} has {gb_text(best.lent_bytes, 2)} to lend, {needs}: "
            "close other programs, or lend another device."
        )
    return (
        f"{best.bound_by} leaves {gb_text(best.lent_bytes, 2)} on {best.device}, {needs}: raise it."
    )


def _gpu(limits: OwnerLimits, gpu: DriverGpu, own_bytes: int, times_full: int) -> Lent:
    total = gpu.memory_bytes
    free = gpu.free_bytes + max(own_bytes, gpu.own_bytes) - kept_free_bytes(total)
    free -= int(min(times_full, TIMES_FULL_MAX) * FULL_SHARE * total)
    size, bound_by = _least(limits.vram_bytes, "vram_gb", min(free, total))
    lent = max(0, size - BESIDE_STAGE_BYTES)
    return Lent(f"cuda:{gpu.index}", gpu.name, total, lent, bound_by)


def _cpu_parts(
    limits: OwnerLimits, machine: Machine, own: Mapping[str, int], wanted: int
) -> list[Lent]:
    """`wanted` equal parts of the memory and the threads, but no more than there are threads."""
    threads = lent_threads(limits, machine)
    element_bytes = 2 if machine.multiplies_bfloat16 else 4
    count = min(wanted, threads)
    left = unused_memory_bytes(machine)
    reserve = machine.memory_available_bytes - left
    held = sum(size for name, size in own.items() if name.startswith("cpu"))
    free = min(left + held, machine.memory_bytes - reserve)
    in_all = _least(limits.memory_bytes, "memory_gb", free)
    parts = []
    for part in range(count):
        name = f"cpu:{part}" if part else "cpu"
        size, bound_by = _part_bytes(in_all, count, left + own.get(name, 0))
        own_threads = threads // count + (part < threads % count)
        total = machine.memory_bytes // count
        cpu = machine.cpu_name
        parts.append(Lent(name, cpu, total, size, bound_by, own_threads, element_bytes))
    return parts


def _part_bytes(in_all: tuple[int, str], count: int, free_bytes: int) -> tuple[int, str]:
    """An even part, but nothing of what another part's stage holds."""
    size, bound_by = in_all[0] // count, in_all[1]
    return (size, bound_by) if size <= free_bytes else (max(0, free_bytes), FREE_MEMORY)


def _least(cap_bytes: int | None, key: str, free_bytes: int) -> tuple[int, str]:
    free_bytes = max(0, free_bytes)
    if cap_bytes is None or cap_bytes > free_bytes:
        return free_bytes, FREE_MEMORY
    return cap_bytes, key
