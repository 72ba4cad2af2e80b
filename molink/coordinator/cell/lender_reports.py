"""PCs of a cell, and cards of them, as a ledger hears of them: what each lends by heartbeats, or
that it is lost. Pure."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from molink.coordinator.cell.echo_links import EchoLink, EchoLinks
from molink.coordinator.cell.values import (
    DEBTOR_INCARNATION,
    LAN_BYTES_PER_S,
    LENDS,
    Grant,
    PcSeen,
)
from molink_scheduler.cell.events import (
    CellLink,
    DeviceFacts,
    DeviceGone,
    DeviceReported,
    Origin,
)

LOST_AFTER_S = 10.0
"""Silence after which a lender is lost. Its links may stand while only its agent is not heard."""


@dataclass(slots=True)
class LenderReports:
    """What the PCs of all cells have told, and how near they are to each other."""

    echoes: EchoLinks
    seen: Mapping[str, PcSeen] = field(default_factory=dict)
    _seen_at: dict[str, float] = field(default_factory=dict)
    """When lenders were seen last, by their PCs."""
    _number: int = 0

    def lenders(
        self, cell: frozenset[str], grants: Mapping[int, Grant], now: float
    ) -> Iterator[DeviceReported | DeviceGone]:
        """Events of the lenders of a cell; `grants`: leases that stages have, by number."""
        for pc in sorted(cell):
            seen = self.seen.get(pc)
            if seen is not None and (seen.facts.memory_bytes or pc in self._seen_at):
                self._seen_at[pc] = now
                yield self._of_lender(pc, grants)
            elif now - self._seen_at.get(pc, now) >= LOST_AFTER_S:
                self._seen_at.pop(pc)
                yield DeviceGone(f"{pc}{LENDS}")

    def links(self, debtor: str) -> dict[str, CellLink]:
        """Links from a PC to the lenders that are near it, by their names in the ledger."""
        near = {to: link for to, link in self.echoes.lenders(debtor).items() if link.is_in}
        return {f"{to}{LENDS}": self._link(debtor, to, link) for to, link in near.items()}

    def origin(self, device: str, incarnation: int = DEBTOR_INCARNATION) -> Origin:
        """Origin of the next event."""
        self._number += 1
        return Origin(device, incarnation, self._number)

    def _of_lender(self, pc: str, grants: Mapping[int, Grant]) -> DeviceReported:
        seen, name = self.seen[pc], f"{pc}{LENDS}"
        facts = seen.facts
        held = {one.lease for one in facts.leases}
        leases = tuple(one.lease for number, one in grants.items() if number in held)
        rate = seen.attend_bytes_per_s if facts.port else 0.0
        device_facts = DeviceFacts(memory_bytes=facts.memory_bytes, attend_bytes_per_s=rate)
        origin = self.origin(name, facts.started)
        lent = tuple(one for one in leases if one.lender == name)
        return DeviceReported(origin, device_facts, 0, lent)

    def _link(self, debtor: str, lender: str, link: EchoLink) -> CellLink:
        seen = self.seen.get(debtor)
        rates = seen.bytes_per_s if seen is not None else {}
        return CellLink(link.near_s or math.inf, rates.get(lender, LAN_BYTES_PER_S))
