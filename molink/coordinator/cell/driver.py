"""Driver of cells: heartbeats in, orders to PCs out, by a ledger for each cell. Pure.

The ledger (`molink_scheduler.cell`) decides who is asked, and for how much. The driver asks in the
debtor's place: keys are drawn here, and a stage is told its lease as it loads. So what a debtor
*has* is known here, and its reports are written here; what a lender lends it tells itself.

A stage and what lends beside it are two devices of a ledger, since the one may end without the
other. A lease is given to a stage whole and ends whole: whoever recalls a part of it ends it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from molink.control.messages.cell import CellOrder, LeaseOrder
from molink.coordinator.cell.echo_links import EchoLink, EchoLinks, may_lend
from molink.coordinator.cell.pairs import Pair, cells_of
from molink.coordinator.cell.values import LAN_BYTES_PER_S, Grant, PcSeen, RoomWanted
from molink.stage_protocol.lan_lease import LanLease
from molink_scheduler.cell.actions import (
    Action,
    AskLender,
    LeaseOffer,
    Recall,
    Refuse,
    Swap,
    VoidLeases,
)
from molink_scheduler.cell.events import (
    BlocksWanted,
    CellLink,
    DeviceFacts,
    DeviceGone,
    DeviceReported,
    LendAnswered,
    Origin,
    Tick,
    Told,
)
from molink_scheduler.cell.leases import Lease
from molink_scheduler.cell.ledger import CellLedger
from molink_scheduler.cell.quotas import Quotas

QUOTAS = Quotas(memory_share=1.0)
"""What an owner lends is set aside for others: no half of it waits for a busier day."""

ATTEND_BYTES_PER_S = 3e9
"""KV that one core attends to: the slowest kernel, AVX2 at long contexts (docs/benchmarks)."""

LOST_AFTER_S = 10.0
"""Silence after which a lender is lost. Its links may stand while only its agent is not heard."""

ASK_WITHIN_S = 8.0
"""Seconds for a lender to allow a lease: some heartbeats, and the start of its process."""

UNCLAIMED_S = 120.0
"""Seconds after which leases that nobody claims end: by then rings of an earlier start of the
coordinator are taken over."""

DEBTOR_INCARNATION = 1
"""A stage's leases are given back when its ring ends, so it is never taken for another one."""

RAM = "/ram"
"""Ending of a lender's name in the ledger, behind its PC's id."""


@dataclass(slots=True)
class _Question:
    """Lenders that are asked in turn for a stage."""

    ask: AskLender
    offers: list[LeaseOffer]
    key: str
    asked_at: float


@dataclass(slots=True)
class CellDriver:
    """Driver of all cells of one cluster."""

    next_lease: int
    """Above all numbers of leases of earlier starts."""
    draw_key: Callable[[], str]
    """Draws 32 bytes, in hex."""
    started_at: float = 0.0
    grants: dict[int, Grant] = field(default_factory=dict)
    """Leases that stages have, by number."""
    outcomes: dict[str, Grant | str] = field(default_factory=dict)
    """By node that wanted room: what it got, or a sentence on why it got none."""
    echoes: EchoLinks = field(init=False)
    _wants: dict[str, RoomWanted] = field(default_factory=dict)
    _questions: dict[str, _Question] = field(default_factory=dict)
    """Open questions, by node."""
    _ledgers: dict[frozenset[str], CellLedger] = field(default_factory=dict)
    _pairs: frozenset[Pair] = frozenset()
    _seen: Mapping[str, PcSeen] = field(default_factory=dict)
    _seen_at: dict[str, float] = field(default_factory=dict)
    """When lenders were seen last, by their PCs."""
    _number: int = 0
    _ended: set[int] = field(default_factory=set)
    """Leases that nobody has any more, while there may be others that are not claimed yet."""

    def __post_init__(self) -> None:
        self.echoes = EchoLinks(self.draw_key)

    def want(self, wanted: RoomWanted) -> None:
        """Look for room for a stage; `outcomes` has what comes of it, after some ticks."""
        self.outcomes.pop(wanted.node_id, None)
        self._wants[wanted.node_id] = wanted

    def drop(self, node_id: str) -> None:
        """End all that a node has, or wants."""
        self._wants.pop(node_id, None)
        self.outcomes.pop(node_id, None)
        if (question := self._questions.pop(node_id, None)) is not None:
            self._ended |= {one.lease for one in question.offers}
        for number in [one for one, grant in self.grants.items() if _of(grant, node_id)]:
            self._lost(number)

    def adopt(self, grant: Grant) -> None:
        """Count a lease that a stage of an earlier start of the coordinator has."""
        self.grants[grant.lease.number] = grant
        self.next_lease = max(self.next_lease, grant.lease.number + 1)

    def tick(
        self, seen: Mapping[str, PcSeen], pairs: Iterable[Pair], now: float
    ) -> dict[str, CellOrder]:
        """Take what PCs tell into account; the order to each of them that is seen, or in a cell."""
        self._seen, self._pairs = seen, frozenset(pairs)
        self._regroup()
        for cell, ledger in self._ledgers.items():
            self.echoes.measure(cell, seen, partial(_next_lease, ledger), now)
            self._drop_lost(cell, now)
            self._report(cell, ledger, now)
            self._ask(cell, ledger, now)
            self._act(ledger.handle(Tick(), now), now)
            self._take_answers(cell, ledger, now)
            self.next_lease = max(self.next_lease, ledger.next_lease)
        self._refuse_others()
        if now - self.started_at >= UNCLAIMED_S:
            self._ended.clear()
        members = {pc for cell in self._ledgers for pc in cell}
        return {pc: self._order(pc, now) for pc in {*members, *seen}}

    # -- cells and links --------------------------------------------------------------------------

    def _regroup(self) -> None:
        """Have a ledger for each cell; what was lent in a pair that is forgotten ends."""
        cells = cells_of(self._pairs)
        for cell in cells:
            self._ledgers.setdefault(cell, CellLedger(self.next_lease, QUOTAS))
        self._ledgers = {cell: self._ledgers[cell] for cell in cells}
        self.echoes.join(self._pairs)
        links = self.echoes.links
        for number in [one for one, grant in self.grants.items() if _way(grant) not in links]:
            self._lost(number)

    # -- the ledger's events ----------------------------------------------------------------------

    def _report(self, cell: frozenset[str], ledger: CellLedger, now: float) -> None:
        for pc in sorted(cell):
            seen = self._seen.get(pc)
            if seen is not None and (seen.facts.memory_bytes or pc in self._seen_at):
                self._seen_at[pc] = now
                self._act(ledger.handle(self._of_lender(pc), now), now)
            elif now - self._seen_at.get(pc, now) >= LOST_AFTER_S:
                self._seen_at.pop(pc)
                self._act(ledger.handle(DeviceGone(f"{pc}{RAM}"), now), now)
        for node_id, wanted in self._debtors(cell).items():
            report = self._of_debtor(node_id, wanted, ledger)
            self._act(ledger.handle(report, now), now)

    def _of_lender(self, pc: str) -> DeviceReported:
        facts, name = self._seen[pc].facts, f"{pc}{RAM}"
        held = {one.lease for one in facts.leases}
        leases = tuple(one.lease for number, one in self.grants.items() if number in held)
        rate = facts.cores * ATTEND_BYTES_PER_S if facts.port else 0.0
        told = DeviceFacts(memory_bytes=facts.memory_bytes, attend_bytes_per_s=rate)
        origin = self._origin(name, facts.started)
        lent = tuple(one for one in leases if one.lender == name)
        return DeviceReported(origin, told, 0, lent)

    def _debtors(self, cell: frozenset[str]) -> dict[str, RoomWanted]:
        had = {grant.wanted.node_id: grant.wanted for grant in self.grants.values()}
        return {name: one for name, one in (had | self._wants).items() if one.pc in cell}

    def _of_debtor(self, name: str, wanted: RoomWanted, ledger: CellLedger) -> DeviceReported:
        near = {to: link for to, link in self.echoes.lenders(wanted.pc).items() if link.is_in}
        facts = DeviceFacts(
            memory_bytes=0,
            block_bytes=wanted.block_bytes,
            layers=wanted.layers,
            row_bytes=wanted.row_bytes,
            links={f"{to}{RAM}": self._link(wanted.pc, to, link) for to, link in near.items()},
        )
        question = self._questions.get(name)
        asked = ledger.next_lease - 1 if question is None else question.offers[0].lease - 1
        leases = tuple(one.lease for one in self.grants.values() if _of(one, name))
        return DeviceReported(self._origin(name), facts, asked, leases)

    def _link(self, debtor: str, lender: str, link: EchoLink) -> CellLink:
        seen = self._seen.get(debtor)
        rates = seen.bytes_per_s if seen is not None else {}
        return CellLink(link.near_s or math.inf, rates.get(lender, LAN_BYTES_PER_S))

    def _origin(self, device: str, incarnation: int = DEBTOR_INCARNATION) -> Origin:
        self._number += 1
        return Origin(device, incarnation, self._number)

    def _ask(self, cell: frozenset[str], ledger: CellLedger, now: float) -> None:
        """Ask the ledger for what stages want, once it is known who is near them."""
        for node_id, wanted in list(self._wants.items()):
            links = self.echoes.lenders(wanted.pc)
            lenders = [to for to in links if may_lend(self._seen.get(to))]
            if node_id in self._questions or wanted.pc not in cell:
                continue
            if not any(self._seen[to].facts.memory_bytes for to in links if to in self._seen):
                self._resolve(node_id, "No PC that may lend to it lends anything now.")
            elif lenders and all(links[to].is_judged for to in lenders):
                room = max(self._seen[to].facts.memory_bytes for to in lenders)
                blocks = min(wanted.blocks, max(1, room // wanted.block_bytes))
                event = BlocksWanted(self._origin(node_id), blocks, wanted.slower_s)
                self._handle(ledger, event, now)

    def _refuse_others(self) -> None:
        """Refuse what stages want on PCs of no cell."""
        members = {pc for cell in self._ledgers for pc in cell}
        for node_id, wanted in list(self._wants.items()):
            if wanted.pc not in members:
                self._resolve(node_id, "No PC of its LAN is confirmed to lend to it.")

    def _take_answers(self, cell: frozenset[str], ledger: CellLedger, now: float) -> None:
        """Take what lenders that were asked say: the first that allows a lease has it."""
        for node_id, question in list(self._questions.items()):
            wanted = self._wants[node_id]
            if wanted.pc not in cell:
                continue
            offer, seen = question.offers[0], self._seen.get(question.offers[0].lender[: -len(RAM)])
            lease = _lease(question.ask, offer, wanted)
            held = () if seen is None else tuple(one.lease for one in seen.facts.leases)
            if seen is not None and offer.lease in held:
                del self._questions[node_id]
                room = max(0, seen.facts.memory_bytes - _allowed_bytes(seen))
                self._handle(ledger, LendAnswered(self._origin(node_id), lease, room), now)
                if node_id in self._wants:
                    self._granted(wanted, lease, question.key, seen)
            elif self._is_refused(question, seen, now):
                none = lease.with_blocks(0)
                self._handle(ledger, LendAnswered(self._origin(node_id), none, 0), now)
                self._ask_next(node_id, question, now)

    def _is_refused(self, question: _Question, seen: PcSeen | None, now: float) -> bool:
        is_late = now - question.asked_at >= ASK_WITHIN_S
        return is_late or seen is None or question.offers[0].lease in seen.facts.ended

    def _ask_next(self, node_id: str, question: _Question, now: float) -> None:
        self._ended.add(question.offers.pop(0).lease)
        question.key, question.asked_at = self.draw_key(), now
        if not question.offers:
            self._resolve(node_id, "Every lender that was asked has refused.")

    def _granted(self, wanted: RoomWanted, lease: Lease, key: str, seen: PcSeen) -> None:
        lender = lease.lender[: -len(RAM)]
        host = self._seen[wanted.pc].hosts.get(lender, "") if wanted.pc in self._seen else ""
        if not host:
            self._ended.add(lease.number)
            self._resolve(wanted.node_id, "It reaches no lender directly.")
            return
        number, size = lease.number, lease.size_bytes
        lan = LanLease(host, seen.facts.port, number, key, seen.facts.incarnation, size)
        self.grants[number] = grant = Grant(wanted, lender, lease, lan)
        self._resolve(wanted.node_id, grant)

    def _resolve(self, node_id: str, outcome: Grant | str) -> None:
        self._wants.pop(node_id, None)
        question = self._questions.pop(node_id, None)
        self._ended |= {one.lease for one in question.offers} if question is not None else set()
        self.outcomes[node_id] = outcome

    # -- the ledger's actions ---------------------------------------------------------------------

    def _handle(self, ledger: CellLedger, event: Told, now: float) -> None:
        self._act(ledger.handle(event, now), now)

    def _act(self, actions: Iterable[Action], now: float) -> None:
        for action in actions:
            match action:
                case AskLender():
                    offers, key = list(action.offers), self.draw_key()
                    self._questions[action.debtor] = _Question(action, offers, key, now)
                case Recall():
                    self._lost(action.lease)
                case Swap():
                    self._act(action.recalls, now)
                case VoidLeases():
                    for number, _ in action.leases:
                        self._lost(number)
                case Refuse():
                    if action.device in self._wants:
                        self._resolve(action.device, action.sentence)

    def _lost(self, number: int) -> None:
        """End a lease: its stage finds its lender gone."""
        self.grants.pop(number, None)
        self._ended.add(number)

    def _drop_lost(self, cell: frozenset[str], now: float) -> None:
        """End leases that lenders have ended, and those of links that have become too slow."""
        for number, grant in list(self.grants.items()):
            seen, link = self._seen.get(grant.lender), self.echoes.links.get(_way(grant))
            if grant.lender not in cell:
                continue
            is_ended = seen is not None and number not in {one.lease for one in seen.facts.leases}
            if is_ended or (link is not None and link.is_judged and not link.is_in):
                self._lost(number)

    # -- orders -----------------------------------------------------------------------------------

    def _order(self, pc: str, now: float) -> CellOrder:
        """All that a PC is to do; nothing where it is in no cell."""
        if not any(pc in cell for cell in self._ledgers):
            return CellOrder()
        allow = {one.lease: one for one in self._to_allow(pc)}
        seen = self._seen.get(pc)
        held = {one.lease for one in seen.facts.leases} if seen is not None else set()
        unclaimed = held if now - self.started_at >= UNCLAIMED_S else held & self._ended
        return CellOrder(
            serves=True,
            allow=tuple(allow.values()),
            end=tuple(sorted(unclaimed - allow.keys())),
            echoes=tuple(self.echoes.orders(pc, self._seen)),
        )

    def _to_allow(self, pc: str) -> Iterator[LeaseOrder]:
        for number, grant in self.grants.items():
            if grant.lender == pc:
                yield LeaseOrder(lease=number, key=grant.lan.key, size_bytes=grant.lease.size_bytes)
        for node_id, question in self._questions.items():
            offer = question.offers[0]
            if offer.lender == f"{pc}{RAM}":
                size = offer.blocks * self._wants[node_id].block_bytes
                yield LeaseOrder(lease=offer.lease, key=question.key, size_bytes=size)
        yield from self.echoes.to_allow(pc)


def _next_lease(ledger: CellLedger) -> int:
    """Take a number of a lease that is none of the ledger's."""
    ledger.next_lease += 1
    return ledger.next_lease - 1


def _allowed_bytes(seen: PcSeen) -> int:
    return sum(one.size_bytes for one in seen.facts.leases)


def _of(grant: Grant, node_id: str) -> bool:
    return grant.wanted.node_id == node_id


def _way(grant: Grant) -> Pair:
    """PCs of the debtor and of the lender."""
    return grant.wanted.pc, grant.lender


def _lease(ask: AskLender, offer: LeaseOffer, wanted: RoomWanted) -> Lease:
    return Lease(
        offer.lease,
        ask.debtor,
        ask.incarnation,
        offer.lender,
        offer.incarnation,
        offer.blocks,
        wanted.block_bytes,
    )
