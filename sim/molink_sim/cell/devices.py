"""Device of a simulated cell: holds to its quotas, asks lenders, gives back, tells the ledger."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from molink_scheduler.cell.actions import Action, AskLender, LeaseOffer, Recall, Swap, VoidLeases
from molink_scheduler.cell.events import (
    BlocksReturned,
    BlocksWanted,
    DeviceEvent,
    DeviceFacts,
    DeviceReported,
    LendAnswered,
    Origin,
)
from molink_scheduler.cell.leases import Lease
from molink_scheduler.cell.quotas import HighWaterMark, Quotas, quota_bytes


@dataclass(slots=True)
class CellDevice:
    """Device with room for KV, its stage's need, and the leases that it is a side of."""

    name: str
    facts: DeviceFacts
    quotas: Quotas = field(default_factory=Quotas)
    need_blocks: int = 0
    """Blocks that the requests of its stage take."""
    slower_s: float = inf
    """Seconds by which what it borrows may slow a step of its stage."""
    returns: Callable[[], bool] = lambda: True
    """Whether requests with blocks elsewhere have ended: then what is too much goes back."""
    incarnation: int = 1
    owed: dict[int, Lease] = field(default_factory=dict)
    lent: dict[int, Lease] = field(default_factory=dict)
    asked_up_to: int = 0
    _sent: int = 0
    _mark: HighWaterMark = field(init=False)

    def __post_init__(self) -> None:
        self._mark = HighWaterMark(self.quotas.mark_s)

    @property
    def lent_bytes(self) -> int:
        """Memory that others have."""
        return sum(lease.size_bytes for lease in self.lent.values())

    @property
    def owed_blocks(self) -> int:
        """Blocks of its stage that lie on others."""
        return sum(lease.blocks for lease in self.owed.values())

    @property
    def home_blocks(self) -> int:
        """Blocks of its stage that its own memory has room for."""
        block_bytes = self.facts.block_bytes
        return (self.facts.memory_bytes - self.lent_bytes) // block_bytes if block_bytes else 0

    @property
    def short_blocks(self) -> int:
        """Blocks that there is no room for."""
        return max(0, self.need_blocks - self.home_blocks - self.owed_blocks)

    @property
    def used_bytes(self) -> int:
        """Memory that its own stage uses: for what does not lie elsewhere."""
        at_home = max(0, self.need_blocks - self.owed_blocks)
        return min(at_home, self.home_blocks) * self.facts.block_bytes

    def quota_bytes(self, now: float) -> int:
        """Memory that others may have in all."""
        self._mark.used(self.used_bytes, now)
        facts = replace(self.facts, used_bytes=self.used_bytes)
        return quota_bytes(facts, self._mark.bytes_at(now), self.quotas)

    def beat(self, devices: "Devices", now: float) -> list[DeviceEvent]:
        """Messages of a heartbeat: what it gives back, all of itself, and what it wants."""
        told = self._give_back_surplus(devices)
        self._mark.used(self.used_bytes, now)
        leases = (*self.owed.values(), *self.lent.values())
        facts = replace(self.facts, used_bytes=self.used_bytes)
        told.append(DeviceReported(self._origin(), facts, self.asked_up_to, leases))
        if self.short_blocks:
            told.append(BlocksWanted(self._origin(), self.short_blocks, self.slower_s))
        return told

    def take(self, action: Action, devices: "Devices", now: float) -> list[DeviceEvent]:
        """Carry out what the ledger says, and what there is to tell of it."""
        match action:
            case AskLender():
                return self._ask(action, devices, now)
            case Recall(_, number, blocks_left):
                return self._give_back(number, blocks_left, devices)
            case VoidLeases(_, leases):
                for number, blocks_left in leases:
                    for side in (self.owed, self.lent):
                        _lower(side, number, blocks_left)
        return []

    def lend(self, lease: Lease, now: float) -> tuple[int, int]:
        """As a lender: blocks that it gives, and bytes of room that are left then."""
        if lease.lender_incarnation != self.incarnation:
            return 0, 0
        room = max(0, self.quota_bytes(now) - self.lent_bytes)
        blocks = min(lease.blocks, room // lease.block_bytes)
        if blocks:
            self.lent[lease.number] = lease.with_blocks(blocks)
        return blocks, room - blocks * lease.block_bytes

    def start_again(self) -> None:
        """A new process: nothing is left of the one before."""
        self.incarnation, self._sent, self.asked_up_to = self.incarnation + 1, 0, 0
        self.owed.clear()
        self.lent.clear()

    def _ask(self, action: AskLender, devices: "Devices", now: float) -> list[DeviceEvent]:
        """Ask lenders in turn until the need is met, whatever was needed when it was wanted."""
        told: list[DeviceEvent] = []
        if action.incarnation != self.incarnation or action.offers[0].lease <= self.asked_up_to:
            return told
        self.asked_up_to = action.offers[-1].lease
        for offer in action.offers:
            wanted = min(offer.blocks, self.short_blocks)
            lender = devices.reached(offer.lender)
            if wanted < 1 or lender is None:
                continue
            lease = self._lease(offer, wanted)
            blocks, room = lender.lend(lease, now)
            lease = lease.with_blocks(blocks)
            if blocks:
                self.owed[lease.number] = lease
            told.append(LendAnswered(self._origin(), lease, room))
        return told

    def _lease(self, offer: LeaseOffer, blocks: int) -> Lease:
        return Lease(
            offer.lease,
            self.name,
            self.incarnation,
            offer.lender,
            offer.incarnation,
            blocks,
            self.facts.block_bytes,
        )

    def _give_back(self, number: int, blocks_left: int, devices: "Devices") -> list[DeviceEvent]:
        lease = self.owed.get(number)
        if lease is None or lease.blocks <= blocks_left:
            return []
        _lower(self.owed, number, blocks_left)
        lender = devices.reached(lease.lender)
        if lender is not None and lender.incarnation == lease.lender_incarnation:
            _lower(lender.lent, number, blocks_left)
        return [BlocksReturned(self._origin(), number, blocks_left)]

    def _give_back_surplus(self, devices: "Devices") -> list[DeviceEvent]:
        told: list[DeviceEvent] = []
        for number in sorted(self.owed, reverse=True):
            surplus = self.home_blocks + self.owed_blocks - self.need_blocks
            if surplus > 0 and self.returns():
                blocks_left = max(0, self.owed[number].blocks - surplus)
                told += self._give_back(number, blocks_left, devices)
        return told

    def _origin(self) -> Origin:
        self._sent += 1
        return Origin(self.name, self.incarnation, self._sent)


def _lower(side: dict[int, Lease], number: int, blocks_left: int) -> None:
    if number in side and blocks_left < side[number].blocks:
        if blocks_left > 0:
            side[number] = side[number].with_blocks(blocks_left)
        else:
            del side[number]


@dataclass(slots=True)
class Devices:
    """Devices of a cell by name, and whether one hears another."""

    by_name: dict[str, CellDevice] = field(default_factory=dict)
    is_heard: Callable[[], bool] = lambda: True

    def reached(self, name: str) -> CellDevice | None:
        """The device; None: it is away, or a message was lost."""
        return self.by_name.get(name) if self.is_heard() else None


def recipients(action: Action) -> list[tuple[str, Action]]:
    """Messages that an action is: each device that it is for, and what it is told."""
    match action:
        case AskLender() | Recall():
            return [(action.debtor, action)]
        case Swap():
            return [(recall.debtor, recall) for recall in action.recalls]
    return [(action.device, action)]
