"""Ledger of who lends memory for KV to whom in a cell: events in, what devices are to do out.

It decides by what devices last told, and devices decide what is so: a debtor asks its candidates
itself, a lender gives what it really has. What a device has lent is called back before it borrows;
nobody passes a question on; a lease begins with the lender's answer and ends with the debtor's word
(DistKV-LLM's gManager, Lin et al., arXiv 2401.02669, 4.3 to 4.5).

Pure, and rebuilt from reports: a ledger that starts anew knows all after a heartbeat of each.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from molink_scheduler.cell.actions import (
    Action,
    AskLender,
    LeaseOffer,
    Reason,
    Recall,
    Refuse,
    Swap,
    VoidLeases,
)
from molink_scheduler.cell.candidates import candidates
from molink_scheduler.cell.cycles import swaps
from molink_scheduler.cell.events import (
    BlocksReturned,
    BlocksWanted,
    DeviceFacts,
    DeviceGone,
    DeviceReported,
    Event,
    LendAnswered,
    Origin,
    Tick,
)
from molink_scheduler.cell.leases import Lease, LeaseBook, debts_of
from molink_scheduler.cell.quotas import HighWaterMark, Quotas, link_s, quota_bytes

ANSWER_S = 10.0
"""Seconds after which what nobody answered counts as lost: 20 heartbeats."""

STEADY_S = 120.0
"""Seconds for which a device that was lost lends nothing when it is back: each loss of a lender is
an epoch of its debtors' rings, and one that comes and goes each minute would cause as many."""


@dataclass(slots=True)
class _Device:
    """Device as it last told, and what it was asked."""

    facts: DeviceFacts
    incarnation: int
    lends_from: float
    mark: HighWaterMark
    number: int = -1
    asked_up_to: int = 0
    lent: dict[int, Lease] = field(default_factory=dict)
    room_bytes_reported: float = inf
    """Room by its last answer to a question, until it reports."""
    offers: dict[int, LeaseOffer] = field(default_factory=dict)
    """Offers of its open question."""
    asked_at: float = -inf


@dataclass(slots=True)
class CellLedger:
    """Debt ledger of one cell."""

    next_lease: int = 1
    """Above all numbers that a ledger before it has given."""
    quotas: Quotas = field(default_factory=Quotas)
    book: LeaseBook = field(default_factory=LeaseBook)
    _devices: dict[str, _Device] = field(default_factory=dict)
    _void_below: dict[str, int] = field(default_factory=dict)
    """For each device that was lost once: leases with lower numbers than this are void."""
    _recalls: dict[int, tuple[Recall, float]] = field(default_factory=dict)
    """By lease: what was called back, and when."""

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take an event; `now` in seconds of a clock that does not go back."""
        match event:
            case Tick():
                return [*self._again(now), *self._above_quota(now), *self._swapped(now)]
            case DeviceGone():
                return self._gone(event.device)
            case DeviceReported():
                return self._reported(event, now)
            case BlocksWanted() if self._is_news(event.origin):
                return self._wanted(event, now)
            case LendAnswered() if self._is_news(event.origin):
                return self._answered(event)
            case BlocksReturned() if self._is_news(event.origin):
                if event.lease in {
                    lease.number for lease in self.book.owed_by(event.origin.device)
                }:
                    self._lower(event.lease, event.blocks_left)
        return []

    def capacity_blocks(self, device: str) -> int:
        """Blocks that its stage can hold: its own memory but for what it has lent, and leases."""
        facts = self._devices[device].facts
        own_bytes = max(0, facts.memory_bytes - self.lent_bytes(device))
        leased = sum(lease.blocks for lease in self.book.owed_by(device))
        return own_bytes // facts.block_bytes + leased if facts.block_bytes else 0

    def lent_bytes(self, device: str) -> int:
        """Bytes that a lender has lent by its own word or by a debtor's, whichever says more."""
        lent = {number: lease.size_bytes for number, lease in self._devices[device].lent.items()}
        for lease in self.book.lent_by(device):
            lent[lease.number] = max(lease.size_bytes, lent.get(lease.number, 0))
        return sum(lent.values())

    def quota_bytes(self, device: str, now: float) -> int:
        """Bytes that a device may have lent in all."""
        known = self._devices[device]
        return quota_bytes(known.facts, known.mark.bytes_at(now), self.quotas)

    def _is_news(self, origin: Origin) -> bool:
        """Whether a message is of a device's present process and newer than all before it."""
        known = self._devices.get(origin.device)
        if (
            known is None
            or origin.incarnation != known.incarnation
            or origin.number <= known.number
        ):
            return False
        known.number = origin.number
        return True

    def _reported(self, event: DeviceReported, now: float) -> list[Action]:
        name, incarnation = event.origin.device, event.origin.incarnation
        actions: list[Action] = []
        if name in self._devices and incarnation > self._devices[name].incarnation:
            actions += self._gone(name)
        if name not in self._devices:
            lends_from = now + STEADY_S if name in self._void_below else now
            mark = HighWaterMark(self.quotas.mark_s)
            self._devices[name] = _Device(event.facts, incarnation, lends_from, mark)
        if not self._is_news(event.origin):
            return actions
        device = self._devices[name]
        device.facts, device.asked_up_to, device.room_bytes_reported = (
            event.facts,
            event.asked_up_to,
            inf,
        )
        device.mark.used(event.facts.used_bytes, now)
        self.next_lease = max(self.next_lease, *(one.number + 1 for one in event.leases), 0)
        return [*actions, *self._owes(name, event), *self._lends(name, event.leases)]

    def _owes(self, name: str, event: DeviceReported) -> list[Action]:
        """Count what a debtor has by its report, and nothing else of what it has asked for."""
        owed = [lease for lease in event.leases if lease.debtor == name]
        void = {lease.number for lease in owed if self._is_void(lease)}
        left = {lease.number: lease.blocks for lease in owed if lease.number not in void}
        for lease in self.book.owed_by(name):
            if lease.number <= event.asked_up_to:
                self._lower(lease.number, left.get(lease.number, 0))
        for lease in owed:
            if lease.number not in void:
                self.book.hold(lease)
        device = self._devices[name]
        if max(device.offers, default=0) <= event.asked_up_to:
            device.offers = {}
        return _voided(name, dict.fromkeys(void, 0))

    def _lends(self, name: str, leases: Iterable[Lease]) -> list[Action]:
        """Remember what a lender has lent by its report, and name what its debtors have not."""
        lent = {lease.number: lease for lease in leases if lease.lender == name}
        self._devices[name].lent = lent
        kept = {number: self._kept(lease) for number, lease in lent.items()}
        return _voided(name, {one: left for one, left in kept.items() if left < lent[one].blocks})

    def _kept(self, lease: Lease) -> int:
        """Blocks of a lender's lease that its debtor has, or may yet say to have."""
        if known := self.book.get(lease.number):
            return known.blocks
        debtor = self._devices.get(lease.debtor)
        may_say = debtor is None or debtor.asked_up_to < lease.number
        return lease.blocks if may_say and not self._is_void(lease) else 0

    def _is_void(self, lease: Lease) -> bool:
        """Whether a lease is of a process that is gone, or of no blocks."""
        sides = (lease.debtor, lease.debtor_incarnation), (lease.lender, lease.lender_incarnation)
        return lease.blocks < 1 or any(
            lease.number < self._void_below.get(name, 0)
            or (name in self._devices and self._devices[name].incarnation != incarnation)
            for name, incarnation in sides
        )

    def _gone(self, name: str) -> list[Action]:
        """All that it has lent is lost, and all that it owes is free."""
        self._void_below[name] = self.next_lease
        self._devices.pop(name, None)
        actions: list[Action] = []
        for lease in [*self.book.lent_by(name), *self.book.owed_by(name)]:
            other = lease.debtor if lease.lender == name else lease.lender
            actions += _voided(other, {lease.number: 0})
            self._lower(lease.number, 0)
        return actions

    def _lower(self, number: int, blocks_left: int) -> None:
        """Count no more than so many blocks of a lease, and end a recall that is done."""
        if lease := self.book.get(number):
            self.book.hold(lease.with_blocks(blocks_left))
        if number in self._recalls and blocks_left <= self._recalls[number][0].blocks_left:
            del self._recalls[number]

    def _wanted(self, event: BlocksWanted, now: float) -> list[Action]:
        """Recalls first; a question to lenders for what they do not bring home."""
        name = event.origin.device
        device = self._devices[name]
        memory = sum(one.facts.memory_bytes for one in self._devices.values())
        wanted_bytes, block_bytes = (
            event.blocks * device.facts.block_bytes,
            device.facts.block_bytes,
        )
        if wanted_bytes < 1:
            return [Refuse(name, Reason.NOT_A_COUNT, event.blocks)]
        if wanted_bytes > memory:
            return [Refuse(name, Reason.MORE_THAN_THE_CELL, memory)]
        if device.offers and now < device.asked_at + ANSWER_S:
            return []
        recalls, coming_bytes = self._recalled(name, wanted_bytes, now)
        blocks = -((coming_bytes - wanted_bytes) // block_bytes)
        return [*recalls, self._asked(event, blocks, now)] if blocks > 0 else [*recalls]

    def _recalled(self, name: str, wanted_bytes: int, now: float) -> tuple[list[Recall], int]:
        """Recalls of what a device has lent, the newest first, and bytes that come home by them and
        by those under way."""
        lent = self.book.lent_by(name)
        coming = sum(lease.size_bytes - self._due(lease).size_bytes for lease in lent)
        recalls = list[Recall]()
        for lease in map(self._due, lent):
            blocks = min(lease.blocks, -((coming - wanted_bytes) // lease.block_bytes))
            if blocks > 0:
                coming += blocks * lease.block_bytes
                recalls.append(self._recall(lease, blocks, now))
        return recalls, coming

    def _recall(self, lease: Lease, blocks: int, now: float) -> Recall:
        recall = Recall(lease.debtor, lease.number, lease.blocks - blocks)
        self._recalls[lease.number] = recall, now
        return recall

    def _due(self, lease: Lease) -> Lease:
        """The lease as it is once what was called back is home."""
        recall = self._recalls.get(lease.number)
        return lease.with_blocks(min(lease.blocks, recall[0].blocks_left)) if recall else lease

    def _asked(self, event: BlocksWanted, blocks: int, now: float) -> Action:
        name, device = event.origin.device, self._devices[event.origin.device]
        left_s = event.slower_s - self._slower_s(name)
        lenders = {
            one: (other.facts, self._room_bytes(one, now))
            for one, other in self._devices.items()
            if one != name and now >= other.lends_from
        }
        match candidates(device.facts, lenders, blocks, left_s):
            case Reason.NO_LENDER as reason:
                return Refuse(name, reason, len(lenders))
            case Reason.TOO_SLOW as reason:
                return Refuse(name, reason, max(0.0, left_s))
            case Reason() as reason:
                return Refuse(name, reason, sum(room for _, room in lenders.values()))
            case found:
                offers = tuple(self._offer(one, count) for one, count in found)
        device.offers, device.asked_at = {offer.lease: offer for offer in offers}, now
        return AskLender(name, device.incarnation, blocks, offers)

    def _offer(self, lender: str, blocks: int) -> LeaseOffer:
        self.next_lease += 1
        return LeaseOffer(self.next_lease - 1, lender, self._devices[lender].incarnation, blocks)

    def _room_bytes(self, name: str, now: float) -> int:
        left = self.quota_bytes(name, now) - self.lent_bytes(name)
        return max(0, int(min(left, self._devices[name].room_bytes_reported)))

    def _slower_s(self, name: str) -> float:
        """Seconds by which what a device owes slows its step already."""
        total_s, facts = 0.0, self._devices[name].facts
        for (_, lender), size in debts_of(self.book.owed_by(name)).items():
            device, link = self._devices.get(lender), facts.links.get(lender)
            if device and link and device.facts.attend_bytes_per_s > 0:
                total_s += link_s(facts, link) + size / device.facts.attend_bytes_per_s
        return total_s

    def _answered(self, event: LendAnswered) -> list[Action]:
        """Count a lease as the lender has given it, if it was offered and by that process."""
        lease, name = event.lease, event.origin.device
        offer = self._devices[name].offers.get(lease.number)
        lender = self._devices.get(lease.lender)
        if offer is None or lender is None:
            return []  # The next report tells what became of it.
        is_offered = (lease.lender, lease.lender_incarnation) == (offer.lender, offer.incarnation)
        if (
            not is_offered
            or not 0 <= lease.blocks <= offer.blocks
            or self._is_void(lease.with_blocks(1))
        ):
            refused = Refuse(name, Reason.BAD_LEASE, lease.blocks)
            return [*_voided(name, {lease.number: 0}), refused]
        lender.room_bytes_reported = min(lender.room_bytes_reported, event.room_bytes)
        self.book.hold(lease)
        return []

    def _again(self, now: float) -> list[Action]:
        """Recalls that nobody has answered."""
        due = [recall for recall, at in self._recalls.values() if now >= at + ANSWER_S]
        self._recalls |= {recall.lease: (recall, now) for recall in due}
        return [*due]

    def _above_quota(self, now: float) -> Iterator[Action]:
        """Recalls of what lenders have lent above quotas that have become smaller."""
        for name in self._devices:
            lent = sum(lease.size_bytes for lease in self.book.lent_by(name))
            yield from self._recalled(name, lent - self.quota_bytes(name, now), now)[0]

    def _swapped(self, now: float) -> Iterator[Action]:
        """Swaps for all cycles of what is owed once what was called back is home."""
        due = [self._due(lease) for lease in self.book]
        block_bytes = {lease.debtor: lease.block_bytes for lease in due}
        for cycle in swaps(debts_of(due), block_bytes):
            yield Swap(tuple(self._cut(cycle, now)))

    def _cut(self, cycle: dict[tuple[str, str], int], now: float) -> Iterator[Recall]:
        for (debtor, lender), blocks in cycle.items():
            for lease in map(self._due, self.book.owed_by(debtor)):
                taken = min(blocks, lease.blocks) if lease.lender == lender else 0
                if taken > 0:
                    yield self._recall(lease, taken, now)
                    blocks -= taken


def _voided(device: str, leases: dict[int, int]) -> list[Action]:
    return [VoidLeases(device, tuple(leases.items()))] if leases else []
