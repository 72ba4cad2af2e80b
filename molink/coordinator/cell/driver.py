"""Driver of cells: heartbeats in, orders to PCs out, by a ledger for each cell. A card that lends
is one more PC here (`cards`). Pure.

The ledger (`molink_scheduler.cell`) decides who is asked, and for how much. What it hears of PCs
that lend is made in `lender_reports`, what it hears of stages that borrow in `stage_leases`.

A stage and what lends beside it are two devices of a ledger, since the one may end without the
other. What the ledger recalls of a lease its stage gives back itself (`standing`), and it counts
until the lender says that no more lies there; where that takes too long the lender ends it whole.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from molink.control.messages.cell import CellOrder
from molink.coordinator.cell.echo_links import EchoLinks
from molink.coordinator.cell.lender_reports import LenderReports
from molink.coordinator.cell.pairs import Pair, cells_of, is_card
from molink.coordinator.cell.stage_leases import StageLeases
from molink.coordinator.cell.values import Grant, PcSeen, RoomWanted
from molink_scheduler.cell.actions import Action, AskLender, Recall, Refuse, Swap, VoidLeases
from molink_scheduler.cell.events import Event, Tick
from molink_scheduler.cell.ledger import CellLedger
from molink_scheduler.cell.quotas import Quotas

QUOTAS = Quotas(memory_share=1.0)
"""What an owner lends is set aside for others: no half of it waits for a busier day."""

UNCLAIMED_S = 120.0
"""Seconds after which leases that nobody claims end: by then rings of an earlier start of the
coordinator are taken over."""


@dataclass(slots=True)
class CellDriver:
    """Driver of all cells of one cluster."""

    next_lease: int
    """Above all numbers of leases of earlier starts."""
    draw_key: Callable[[], str]
    """Draws 32 bytes, in hex."""
    started_at: float = 0.0
    echoes: EchoLinks = field(init=False)
    _pcs: LenderReports = field(init=False)
    _leases: StageLeases = field(init=False)
    _ledgers: dict[frozenset[str], CellLedger] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.echoes = EchoLinks(self.draw_key)
        self._pcs = LenderReports(self.echoes)
        self._leases = StageLeases(self._pcs, self.draw_key)

    @property
    def grants(self) -> Mapping[int, Grant]:
        """Leases that stages have, by number."""
        return self._leases.grants

    def outcome(self, node_id: str) -> Grant | str | None:
        """What a node got that wanted room, or a sentence on why it got none; None: it is not
        known yet."""
        return self._leases.outcomes.get(node_id)

    def recalled(self, number: int) -> int | None:
        """Blocks that a stage is to keep of a lease; None: all."""
        return self._leases.recalls.get(number)

    def is_wanted(self, node_id: str) -> bool:
        """Whether room is looked for, for a node."""
        return node_id in self._leases.wants

    def want(self, wanted: RoomWanted) -> None:
        """Look for room for a stage; `outcome` has what comes of it, after some ticks."""
        self._leases.want(wanted)

    def drop(self, node_id: str) -> None:
        """End all that a node has, or wants."""
        self._leases.drop(node_id)

    def adopt(self, grant: Grant) -> None:
        """Count a lease that a stage of an earlier start of the coordinator has."""
        self._leases.grants[grant.lease.number] = grant
        self.next_lease = max(self.next_lease, grant.lease.number + 1)

    def tick(
        self, seen: Mapping[str, PcSeen], pairs: Iterable[Pair], now: float
    ) -> dict[str, CellOrder]:
        """Take what PCs tell into account; the order to each of them that is seen, or in a cell."""
        self._pcs.seen = seen
        self._regroup(frozenset(pairs))
        for cell, ledger in self._ledgers.items():
            self.echoes.measure(cell, seen, partial(_next_lease, ledger), now)
            self._leases.drop_lost(cell)
            self._leases.take_back(cell)
            self._handle(ledger, self._pcs.lenders(cell, self.grants, now), now)
            self._handle(ledger, self._leases.debtors(cell, ledger), now)
            self._handle(ledger, self._leases.wanted(cell), now)
            self._handle(ledger, [Tick()], now)
            self._handle(ledger, self._leases.answers(cell, now), now)
            self.next_lease = max(self.next_lease, ledger.next_lease)
        members = frozenset(pc for cell in self._ledgers for pc in cell)
        self._leases.refuse_others(members)
        if now - self.started_at >= UNCLAIMED_S:
            self._leases.ended.clear()
        return {pc: self._order(pc, now) for pc in {*members, *seen}}

    def _regroup(self, pairs: frozenset[Pair]) -> None:
        """Have a ledger for each cell; what was lent in a pair that is forgotten ends."""
        cells = cells_of(pairs)
        for cell in cells:
            self._ledgers.setdefault(cell, CellLedger(self.next_lease, QUOTAS))
        self._ledgers = {cell: self._ledgers[cell] for cell in cells}
        self.echoes.join(pairs)
        self._leases.drop_unlinked()

    def _handle(self, ledger: CellLedger, events: Iterable[Event], now: float) -> None:
        """Take events, each made when what the ones before it have led to is done."""
        for event in events:
            self._act(ledger.handle(event, now), now)

    def _act(self, actions: Iterable[Action], now: float) -> None:
        leases = self._leases
        for action in actions:
            match action:
                case AskLender():
                    leases.ask(action, now)
                case Recall():
                    leases.recall(action.lease, action.blocks_left)
                case Swap():
                    self._act(action.recalls, now)
                case VoidLeases():
                    for number, _ in action.leases:
                        leases.lost(number)
                case Refuse():
                    if action.device in leases.wants:
                        leases.resolve(action.device, action.sentence)

    def _order(self, pc: str, now: float) -> CellOrder:
        """All that a PC, or a card, is to do; nothing where it is in no cell."""
        if not any(pc in cell for cell in self._ledgers):
            return CellOrder()
        wanted = *self._leases.to_allow(pc), *self.echoes.to_allow(pc)
        allow = {one.lease: one for one in wanted}
        seen = self._pcs.seen.get(pc)
        held = {one.lease for one in seen.facts.leases} if seen is not None else set()
        unclaimed = held if now - self.started_at >= UNCLAIMED_S else held & self._leases.ended
        return CellOrder(
            serves=any(pc == lender for _, lender in self.echoes.links),
            allow=tuple(allow.values()),
            end=tuple(sorted(unclaimed - allow.keys())),
            echoes=() if is_card(pc) else tuple(self.echoes.orders(pc, self._pcs.seen)),
        )


def _next_lease(ledger: CellLedger) -> int:
    """Take a number of a lease that is none of the ledger's."""
    ledger.next_lease += 1
    return ledger.next_lease - 1
