"""Actions of a cell's ledger: messages to devices, each harmless if it comes late or twice."""

from dataclasses import dataclass
from enum import Enum

from molink_scheduler.units import gb_text


@dataclass(frozen=True, slots=True)
class LeaseOffer:
    """Lender that a debtor may ask, and for how much."""

    lease: int
    """Number of the lease if it comes about; never given to another one."""
    lender: str
    incarnation: int
    blocks: int


@dataclass(frozen=True, slots=True)
class AskLender:
    """Question that a debtor is to ask lenders in turn, until it has the blocks; none asks on."""

    debtor: str
    incarnation: int
    blocks: int
    offers: tuple[LeaseOffer, ...]
    """At most three, the best first, with rising numbers of leases."""


@dataclass(frozen=True, slots=True)
class Recall:
    """Order to a debtor to give a lease's blocks back until so many are left."""

    debtor: str
    lease: int
    blocks_left: int


@dataclass(frozen=True, slots=True)
class VoidLeases:
    """Word that blocks of leases are lost, to a debtor, or nobody's, to a lender."""

    device: str
    leases: tuple[tuple[int, int], ...]
    """Pairs (lease, blocks that are left of it)."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Recalls along a cycle of debts at once: each has room then for what comes home."""

    recalls: tuple[Recall, ...]


class Reason(Enum):
    """Sentence by which something is refused."""

    NOT_A_COUNT = "{figure:,} blocks cannot be lent to a stage: ask for 1 or more."
    MORE_THAN_THE_CELL = "All devices of the cell have {size} together: ask for less."
    NO_LENDER = "None of {figure:,} other devices that lend is near enough."
    TOO_SLOW = "A step may take {milliseconds:.3g} ms longer: every lender takes more."
    NO_ROOM = "The cell's lenders have {size} left within their quotas."
    BAD_LEASE = "A lease of {figure:,} blocks was not offered."


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refusal of what a device wants or tells; its ring goes on."""

    device: str
    reason: Reason
    figure: float

    @property
    def sentence(self) -> str:
        """Reason with its figure."""
        size, milliseconds = gb_text(self.figure, 2), self.figure * 1e3
        return self.reason.value.format(figure=self.figure, size=size, milliseconds=milliseconds)


Action = AskLender | Recall | VoidLeases | Swap | Refuse
