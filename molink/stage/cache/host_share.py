"""How much of a PC's main memory one stage takes for cached KV, and how much of that it has now.

Where nobody has said how much, it is a part of what is idle once the stage has loaded: not what
somebody may want at once (`MainMemory.reserve_bytes`), divided by the stages of the PC, which load
beside each other and see the same memory free. Later others may want it after all. Then the stage
has as much less as is missing of the reserve, and has it back when that is there again.

The head counts with what was taken at load, and is told of nothing else: a block that had to go
shows when it is fetched, like any that is lost. To have the head count less meanwhile was rejected:
a game lasts longer than what is cached, and a change would be agreed on by the whole ring.

Pure.
"""

from dataclasses import dataclass

from molink.hardware.host import MainMemory
from molink.stage_protocol.cache_room import CacheRoom
from molink_scheduler.units import gb_text

IDLE_SHARE = 0.5
"""Part of the idle memory that is taken where nobody has said how much; the rest is for files that
the system keeps at hand, and for the next program."""

IDLE_SHARE_PINNED = 0.25
"""The same beside a card: what is copied there is pinned, so the system can neither swap it out nor
move it."""


@dataclass(frozen=True, slots=True)
class HostShare:
    """Main memory that a stage takes when it has loaded."""

    taken_bytes: int = 0
    why_less: str = ""
    """Why this is less than it may take; empty: it is not."""


def host_share(
    room: CacheRoom, memory: MainMemory, promised_bytes: int, *, is_pinned: bool
) -> HostShare:
    """What one stage takes of its part of what is lent, and of what is idle. `promised_bytes`: what
    the stage has counted as its own and not touched yet, such as its KV."""
    idle = max(0, memory.idle_bytes - promised_bytes) // room.stages
    if room.ram_bytes is None:
        return HostShare(int(idle * (IDLE_SHARE_PINNED if is_pinned else IDLE_SHARE)))
    if room.ram_bytes <= idle:
        return HostShare(room.ram_bytes)
    beside = f" beside {gb_text(promised_bytes)} for KV" if promised_bytes else ""
    here = "" if room.stages == 1 else f", for {room.stages} stages"
    return HostShare(
        idle,
        f"{gb_text(idle)} of {gb_text(room.ram_bytes)} are taken: the PC has "
        f"{gb_text(memory.total_bytes)} of memory, of which {gb_text(memory.available_bytes)} "
        f"are free and {gb_text(memory.reserve_bytes)} stay so{beside}{here}",
    )


@dataclass(frozen=True, slots=True)
class HostRoom:
    """Main memory that a stage has for cached KV at a moment."""

    size_bytes: int = 0
    why_less: str = ""
    """Why this is less than was taken; empty: it is not."""


def host_room(
    share: HostShare, lent_bytes: int | None, held_bytes: int, memory: MainMemory
) -> HostRoom:
    """The room of a stage that holds so much. `lent_bytes`: what its owner lends it now, at most;
    None: what was taken."""
    most = share.taken_bytes if lent_bytes is None else min(lent_bytes, share.taken_bytes)
    size = max(0, min(most, held_bytes + memory.idle_bytes))
    if size < most:
        free, reserve = gb_text(memory.available_bytes), gb_text(memory.reserve_bytes)
        return HostRoom(size, f"others need the memory: {free} are free, {reserve} stay so")
    return HostRoom(size, "its owner lends less now" if most < share.taken_bytes else "")
