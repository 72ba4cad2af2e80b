"""Room for KV of other PCs' stages that the owner of this one lends in its main memory.

Nothing unless both a size and cores are set: memory that nobody attends to holds no KV that is of
use. What the owner has set comes first, then what the PC has free: a game, the battery, a pause or
programs that need the memory take it back, and what is lent above it is ended, the newest first.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from molink.stage_protocol.cache_room import CacheRoom
from molink_agent.limits.lent import unused_memory_bytes
from molink_agent.limits.limits import OwnerLimits
from molink_agent.probe.machine import Machine
from molink_scheduler.units import gb_text

NOT_SET = "Nothing is lent to other PCs: lend_ram_gb and lend_cpu_cores are both to be set."


@dataclass(frozen=True, slots=True)
class LendRoom:
    """Room that is lent to stages on other PCs now."""

    size_bytes: int = 0
    """Bytes that all leases may have, a new one counted."""
    cores: int = 0
    why_less: str = NOT_SET
    """Why it is less than what the owner has set, in one sentence; empty: it is not."""
    kept_bytes: int = 0
    """Bytes that leases which are there may have: what the owner has set, unless the PC is not to
    be used. Free memory comes and goes; they end for that only where its reserve is touched."""
    idle_bytes: int = 0
    """Main memory that is free beside its reserve; below 0 where that is touched."""


def lend_mistake(limits: OwnerLimits, machine: Machine) -> str:
    """Sentence on what cannot be lent as this PC has less; empty: it can."""
    if limits.lend_ram_bytes > machine.memory_bytes:
        wanted, there = gb_text(limits.lend_ram_bytes, 2), gb_text(machine.memory_bytes, 2)
        return f"lend_ram_gb is {wanted}, and this PC has {there}: set less."
    if limits.lend_cpu_cores > machine.cpu_threads:
        return (
            f"lend_cpu_cores is {limits.lend_cpu_cores}, and this PC has {machine.cpu_threads}: "
            "set less."
        )
    return ""


def lend_room(
    limits: OwnerLimits, machine: Machine, held_bytes: int = 0, withheld: str = ""
) -> LendRoom:
    """The room now. `held_bytes`: of others' KV that lies here, and is no free memory any more;
    `withheld`: why the PC is not to be used now, empty if it is."""
    wanted = limits.lend_ram_bytes
    if not limits.lends_ram:
        return LendRoom()
    if trouble := withheld or lend_mistake(limits, machine):
        return LendRoom(why_less=trouble)
    idle = unused_memory_bytes(machine)
    free = max(0, idle + held_bytes)
    why = f"{gb_text(free, 2)} of main memory are free beside what always stays so."
    why_less = why if free < wanted else ""
    return LendRoom(min(free, wanted), limits.lend_cpu_cores, why_less, wanted, idle)


def own_room_bytes(room: CacheRoom | None, machine: Machine) -> int:
    """Main memory that each of the PC's own stages may have KV of requests in: what the owner lends
    for cached KV, where nobody has said how much half of what is idle."""
    if room is None:
        return 0
    idle = max(0, unused_memory_bytes(machine)) // room.stages
    return idle // 2 if room.ram_bytes is None else min(room.ram_bytes, idle)


def leases_to_end(allowed: Mapping[int, int], held: Mapping[int, int], room: LendRoom) -> set[int]:
    """Numbers of leases to end, the newest first, until the rest is within the room. `allowed` and
    `held`: bytes by number, that they may have and that lie here."""
    ended = _above(allowed, room.kept_bytes)
    return ended | _above(held, max(0, sum(held.values()) + min(0, room.idle_bytes)))


def due_bytes(held: Mapping[int, int], room: LendRoom) -> int:
    """Bytes that leases which are there may have; what is more is wanted back."""
    if room.idle_bytes >= 0:
        return room.kept_bytes
    return min(room.kept_bytes, max(0, sum(held.values()) + room.idle_bytes))


def _above(sizes: Mapping[int, int], room_bytes: int) -> set[int]:
    ended, left = set[int](), sum(sizes.values())
    for number in sorted(sizes, reverse=True):
        if left <= room_bytes:
            break
        ended.add(number)
        left -= sizes[number]
    return ended
