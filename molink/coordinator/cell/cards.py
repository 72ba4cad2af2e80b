"""Cards of PCs that lend, beside these PCs' main memory: lenders of their own, by names like
"PC/cuda:1". Pure.

Whoever may borrow of a PC's memory may borrow of its card, and so may the PC's own stages, for
which nobody has to confirm anything: what they compute their owner has already. A card borrows
nothing. To echoes, leases and the ledger it is one more PC: only here both are told apart.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from molink.control.messages.cell import CellOrder, LenderOrder
from molink.coordinator.cell.pairs import MARK, Pair, is_card, pair_of, pc_of
from molink.coordinator.cell.values import PcSeen

NOTHING = CellOrder()


@dataclass(slots=True)
class LendingCards:
    """Cards of all PCs. Those of a PC that is not seen count as they were told last: it may be back
    before it is lost."""

    of_pc: dict[str, str] = field(default_factory=dict)
    """Names of cards as lenders, by PC."""

    def seen(self, pcs: Mapping[str, PcSeen]) -> dict[str, PcSeen]:
        """PCs and cards as they are seen, each where the others reach it."""
        for pc, seen in pcs.items():
            self.of_pc.pop(pc, None)
            if (card := seen.of_pc.card) is not None:
                self.of_pc[pc] = f"{pc}{MARK}{card.device}"
        found = {pc: self._reaching(pc, seen) for pc, seen in pcs.items()}
        for pc, seen in pcs.items():
            if (card := seen.of_pc.card) is not None:
                found[self.of_pc[pc]] = PcSeen(card)
        return found

    def pairs(self, confirmed: Iterable[Pair]) -> Iterator[Pair]:
        """Pairs that may lend: those that are confirmed, each with the other's card, and each PC
        with its own."""
        for pair in confirmed:
            yield pair
            for one, other in (pair, pair[::-1]):
                if (card := self.of_pc.get(other)) is not None:
                    yield pair_of(one, card)
        yield from self.of_pc.items()

    def _reaching(self, pc: str, seen: PcSeen) -> PcSeen:
        """A PC that reaches cards where it reaches their PCs, and its own where that listens; none
        by an agent of before there were cards, which could read no order that names one."""
        if not seen.of_pc.host:
            return seen
        hosts, rates = dict(seen.hosts), dict(seen.bytes_per_s)
        for other, card in self.of_pc.items():
            host = seen.of_pc.host if other == pc else seen.hosts.get(other)
            hosts |= {card: host} if host else {}
            rates |= {card: rates[other]} if other in rates else {}
        return replace(seen, hosts=hosts, bytes_per_s=rates)


def orders_to_pcs(orders: Mapping[str, CellOrder]) -> dict[str, CellOrder]:
    """One order for each PC, with that of its card."""
    found = {pc: order for pc, order in orders.items() if not is_card(pc)}
    for lender, order in orders.items():
        if is_card(lender) and order != NOTHING:
            card = LenderOrder(serves=order.serves, allow=order.allow, end=order.end)
            pc = pc_of(lender)
            found[pc] = found.get(pc, NOTHING).model_copy(update={"card": card})
    return found
