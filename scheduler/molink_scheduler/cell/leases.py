"""Leases of a cell, and the book that holds them: who owes how many blocks to whom.

A lease has a number that is never given again, and its blocks only become fewer, so a message about
it says how many are left and may come twice.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Lease:
    """Blocks of a debtor's stage that lie on another device."""

    number: int
    debtor: str
    debtor_incarnation: int
    lender: str
    lender_incarnation: int
    blocks: int
    block_bytes: int

    @property
    def size_bytes(self) -> int:
        """Memory that it takes at the lender."""
        return self.blocks * self.block_bytes

    def with_blocks(self, blocks: int) -> "Lease":
        """The same of so many blocks."""
        return replace(self, blocks=blocks)


@dataclass(slots=True)
class LeaseBook:
    """Leases by number, as their debtors tell of them; none of no blocks."""

    _leases: dict[int, Lease] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    def get(self, number: int) -> Lease | None:
        """The lease; None: there is none, or none any more."""
        return self._leases.get(number)

    def hold(self, lease: Lease) -> None:
        """Count a lease as it is now; one that is known never grows."""
        known = self._leases.pop(lease.number, lease)
        blocks = min(known.blocks, lease.blocks)
        if blocks > 0:
            self._leases[lease.number] = known.with_blocks(blocks)

    def owed_by(self, debtor: str) -> list[Lease]:
        """Leases that a device has, the newest first."""
        return _newest_first(lease for lease in self if lease.debtor == debtor)

    def lent_by(self, lender: str) -> list[Lease]:
        """Leases that a device has given, the newest first."""
        return _newest_first(lease for lease in self if lease.lender == lender)


def debts_of(leases: Iterable[Lease]) -> Counter[tuple[str, str]]:
    """Bytes by (debtor, lender)."""
    debts = Counter[tuple[str, str]]()
    for lease in leases:
        debts[lease.debtor, lease.lender] += lease.size_bytes
    return +debts


def _newest_first(leases: Iterable[Lease]) -> list[Lease]:
    return sorted(leases, key=lambda lease: -lease.number)
