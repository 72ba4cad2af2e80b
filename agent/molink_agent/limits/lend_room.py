"""Room for KV of other PCs' stages that the owner of this one lends in its main memory.

Nothing unless both a size and cores are set: memory that nobody attends to holds no KV that is of
use. What the owner has set comes first, then what the PC has free: a game, the battery, a pause or
programs that need the memory take it back, and what is lent above it is ended, the newest first.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from molink_agent.limits.lent import unused_memory_bytes
from molink_agent.limits.limits import OwnerLimits
from molink_agent.probe.machine import Machine
from molink_scheduler.units import gb_text

NOT_SET = "Nothing is lent to other PCs: lend_ram_gb and lend_cpu_cores are both to be set."


@dataclass(frozen=True, slots=True)
class LendRoom:
    """Room that is lent to stages on other PCs now."""

    size_bytes: int = 0
    """Bytes of KV, those that lie here counted."""
    cores: int = 0
    why_less: str = NOT_SET
    """Why it is less than what the owner has set, in one sentence; empty: it is not."""


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
    if not wanted or not limits.lend_cpu_cores:
        return LendRoom()
    if trouble := withheld or lend_mistake(limits, machine):
        return LendRoom(why_less=trouble)
    free = max(0, unused_memory_bytes(machine) + held_bytes)
    if free >= wanted:
        return LendRoom(wanted, limits.lend_cpu_cores, "")
    why = f"{gb_text(free, 2)} of main memory are free beside what always stays so."
    return LendRoom(free, limits.lend_cpu_cores, why)


def leases_to_end(held: Mapping[int, int], room_bytes: int) -> list[int]:
    """Numbers of leases to end, the newest first, until the rest takes no more than the room.
    `held`: bytes by number."""
    ended, left = list[int](), sum(held.values())
    for number in sorted(held, reverse=True):
        if left <= room_bytes:
            break
        ended.append(number)
        left -= held[number]
    return ended
