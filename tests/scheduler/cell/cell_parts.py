"""Parts of a cell's ledger for tests: devices that report, and what they say."""

from dataclasses import dataclass, field, replace

from molink_scheduler.cell.actions import AskLender
from molink_scheduler.cell.events import (
    BlocksReturned,
    BlocksWanted,
    CellLink,
    DeviceFacts,
    DeviceReported,
    LendAnswered,
    Origin,
)
from molink_scheduler.cell.leases import Lease
from molink_scheduler.cell.ledger import CellLedger
from molink_scheduler.cell.quotas import Quotas

ALL_FREE = Quotas(memory_share=1.0, mark_s=0.0)
NEAR = CellLink(100e-6, 1e9)


def facts(*others: str, memory: int = 100, block: int = 1, **changes) -> DeviceFacts:
    """A device that is near to others, with a stage whose blocks take `block` bytes."""
    usual = {"layers": 1, "row_bytes": 1000, "attend_bytes_per_s": 1e6}
    usual["links"] = dict.fromkeys(others, NEAR)
    return DeviceFacts(memory, block_bytes=block, **{**usual, **changes})


@dataclass
class Cell:
    """A ledger, and devices that number what they tell it."""

    ledger: CellLedger = field(default_factory=lambda: CellLedger(quotas=ALL_FREE))
    now: float = 0.0
    facts: dict[str, DeviceFacts] = field(default_factory=dict)
    incarnation: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)

    def origin(self, name: str) -> Origin:
        self.sent[name] = self.sent.get(name, 0) + 1
        return Origin(name, self.incarnation.get(name, 1), self.sent[name])

    def tell(self, event):
        return self.ledger.handle(event, self.now)

    def report(self, name: str, *leases: Lease, asked_up_to: int = 0, **changes):
        self.facts[name] = replace(self.facts[name], **changes)
        return self.tell(DeviceReported(self.origin(name), self.facts[name], asked_up_to, leases))

    def want(self, name: str, blocks: int, slower_s: float = 1e9):
        return self.tell(BlocksWanted(self.origin(name), blocks, slower_s))

    def answer(self, name: str, lease: Lease, room: int = 0):
        return self.tell(LendAnswered(self.origin(name), lease, room))

    def give_back(self, name: str, lease: int, blocks_left: int):
        return self.tell(BlocksReturned(self.origin(name), lease, blocks_left))

    def lease(self, ask: AskLender, number: int = 0, blocks: int | None = None) -> Lease:
        """The lease of an offer as the lender gives it."""
        offer = ask.offers[number]
        given = offer.blocks if blocks is None else blocks
        block_bytes = self.facts[ask.debtor].block_bytes
        sides = ask.debtor, ask.incarnation, offer.lender, offer.incarnation
        return Lease(offer.lease, *sides, given, block_bytes)

    def lend(self, debtor: str, lender: str, blocks: int) -> Lease:
        """A lease between two, by question and answer."""
        [ask] = [one for one in self.want(debtor, blocks) if isinstance(one, AskLender)]
        number = [offer.lender for offer in ask.offers].index(lender)
        lease = self.lease(ask, number, blocks)
        assert not self.answer(debtor, lease, room=10**9)
        self.report(debtor, lease, asked_up_to=ask.offers[-1].lease)
        return lease


def cell_of(**devices: DeviceFacts) -> Cell:
    """A cell whose devices have reported."""
    cell = Cell(facts=dict(devices))
    for name in devices:
        assert not cell.report(name)
    return cell


def trio(**changes) -> Cell:
    """Three devices that are near to each other."""
    names = ("a", "b", "c")
    return cell_of(
        **{name: facts(*(set(names) - {name}), **changes) for name in names},
    )
