"""Events of a cell's ledger. A cell is the devices of a PC or LAN that may lend each other memory.

What a device tells is numbered, and a report tells all: the newest message of a device is the truth
that there is, an older one or a doubled one is nothing, and a lost one is made good by the next
report. Messages that tell of one change only hasten what a report would bring.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from molink_scheduler.cell.leases import Lease


@dataclass(frozen=True, slots=True)
class CellLink:
    """Measured link between two devices of a cell."""

    round_trip_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Origin:
    """Sender of a message, and the message's place among all that it has sent."""

    device: str
    incarnation: int
    """Number that rises each time that the device's process starts."""
    number: int


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Memory, rates and links of a device, as it tells them."""

    memory_bytes: int
    """Room for KV that its owner lends: its own KV, what it lends on, and what is free."""
    used_bytes: int = 0
    """KV of its own stage that lies in it."""
    headroom_bytes: int = 0
    """Room that its own admission of requests keeps free."""
    block_bytes: int = 0
    """Bytes of a block of its stage; 0: it has no stage, and borrows nothing."""
    layers: int = 0
    row_bytes: int = 0
    """Bytes of a decode row's queries and answers in one layer of its stage, both ways."""
    attend_bytes_per_s: float = 0.0
    """Rate at which it attends to KV; 0: it lends nothing."""
    step_s: float = 0.0
    """Seconds of a step of its own stage; 0: it computes nothing else."""
    links: Mapping[str, CellLink] = field(default_factory=dict)
    """Links to other devices of the cell, by their names."""


@dataclass(frozen=True, slots=True)
class DeviceReported:
    """A device has told all of itself, as it does by each heartbeat."""

    origin: Origin
    facts: DeviceFacts
    asked_up_to: int
    """Highest lease that it has asked a lender for: of those up to it, it has what it lists."""
    leases: tuple[Lease, ...]
    """Leases that it has, as debtor or as lender."""


@dataclass(frozen=True, slots=True)
class BlocksWanted:
    """A device's stage has no room for so many blocks more."""

    origin: Origin
    blocks: int
    slower_s: float = inf
    """Seconds by which all that it borrows may slow a decode step of it."""


@dataclass(frozen=True, slots=True)
class LendAnswered:
    """A lender has answered a device that asked it, and the device tells."""

    origin: Origin
    lease: Lease
    """Lease as it is now, with the incarnation that answered; of no blocks: it was refused."""
    room_bytes: int
    """Room that the lender has left."""


@dataclass(frozen=True, slots=True)
class BlocksReturned:
    """A debtor has given blocks of a lease back to their lender."""

    origin: Origin
    lease: int
    blocks_left: int


@dataclass(frozen=True, slots=True)
class DeviceGone:
    """A device has left the cell, was lost, or its links have become too slow."""

    device: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: twice a second or so."""


DeviceEvent = DeviceReported | BlocksWanted | LendAnswered | BlocksReturned
"""Events that a device tells."""

Event = DeviceEvent | DeviceGone | Tick
