"""Leases of stages, from what a stage wants to the end of what it has. Pure.

The ledger says who may be asked. The driver asks in the debtor's place: keys are drawn here, and a
stage is told its lease. So what a debtor *has* is known here, and its reports are written here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from molink.control.messages.cell import LeaseOrder
from molink.coordinator.cell.echo_links import may_lend
from molink.coordinator.cell.lender_reports import LenderReports
from molink.coordinator.cell.pairs import Pair
from molink.coordinator.cell.values import LENDS, Grant, PcSeen, RoomWanted
from molink.stage_protocol.lan_lease import LanLease
from molink_scheduler.cell.actions import AskLender, LeaseOffer
from molink_scheduler.cell.events import BlocksWanted, DeviceFacts, DeviceReported, LendAnswered
from molink_scheduler.cell.leases import Lease
from molink_scheduler.cell.ledger import CellLedger

ASK_WITHIN_S = 8.0
"""Seconds for a lender to allow a lease: some heartbeats, and the start of its process."""


@dataclass(slots=True)
class Question:
    """Lenders that are asked in turn for a stage."""

    ask: AskLender
    offers: list[LeaseOffer]
    key: str
    asked_at: float


@dataclass(slots=True)
class StageLeases:
    """Leases of the stages of all cells: wanted, asked for, had and ended."""

    pcs: LenderReports
    draw_key: Callable[[], str]
    """Draws 32 bytes, in hex."""
    grants: dict[int, Grant] = field(default_factory=dict)
    """Leases that stages have, by number."""
    outcomes: dict[str, Grant | str] = field(default_factory=dict)
    """By node that wanted room: what it got, or a sentence on why it got none."""
    wants: dict[str, RoomWanted] = field(default_factory=dict)
    questions: dict[str, Question] = field(default_factory=dict)
    """Open questions, by node."""
    recalls: dict[int, int] = field(default_factory=dict)
    """Blocks that are to be left of leases, by number: their stages give the others back."""
    ended: set[int] = field(default_factory=set)
    """Leases that nobody has any more, while there may be others that are not claimed yet."""

    def want(self, wanted: RoomWanted) -> None:
        """Look for room for a stage."""
        self.outcomes.pop(wanted.node_id, None)
        self.wants[wanted.node_id] = wanted

    def drop(self, node_id: str) -> None:
        """End all that a node has, or wants."""
        self.wants.pop(node_id, None)
        self.outcomes.pop(node_id, None)
        if (question := self.questions.pop(node_id, None)) is not None:
            self.ended |= {one.lease for one in question.offers}
        for number in [one for one, grant in self.grants.items() if _of(grant, node_id)]:
            self.lost(number)

    def resolve(self, node_id: str, outcome: Grant | str) -> None:
        """Say what comes of what a stage wants."""
        self.wants.pop(node_id, None)
        question = self.questions.pop(node_id, None)
        self.ended |= {one.lease for one in question.offers} if question is not None else set()
        self.outcomes[node_id] = outcome

    def ask(self, ask: AskLender, now: float) -> None:
        """Ask lenders in turn, the first of them now."""
        self.questions[ask.debtor] = Question(ask, list(ask.offers), self.draw_key(), now)

    def lost(self, number: int) -> None:
        """End a lease: its stage finds its lender gone."""
        self.grants.pop(number, None)
        self.recalls.pop(number, None)
        self.ended.add(number)

    def recall(self, number: int, blocks_left: int) -> None:
        """Have a stage give blocks of a lease back until so many are left."""
        if number in self.grants:
            self.recalls[number] = min(blocks_left, self.recalls.get(number, blocks_left))

    def take_back(self, cell: frozenset[str]) -> None:
        """Count no more of leases that were called back than is left, once their lenders say that
        no more lies there."""
        for number, left in list(self.recalls.items()):
            grant = self.grants[number]
            seen = self.pcs.seen.get(grant.lender)
            if seen is None or grant.lender not in cell:
                continue
            held = {one.lease: one.held_bytes for one in seen.facts.leases}
            if held.get(number, 0) > left * grant.lease.block_bytes:
                continue
            if not left:
                self.lost(number)
                continue
            lease = grant.lease.with_blocks(left)
            lan = replace(grant.lan, places_bytes=lease.size_bytes)
            self.grants[number] = replace(grant, lease=lease, lan=lan)
            del self.recalls[number]

    def drop_lost(self, cell: frozenset[str]) -> None:
        """End leases that lenders have ended, and those of links that have become too slow."""
        for number, grant in list(self.grants.items()):
            seen, link = self.pcs.seen.get(grant.lender), self.pcs.echoes.links.get(_way(grant))
            if grant.lender not in cell:
                continue
            is_ended = seen is not None and number not in {one.lease for one in seen.facts.leases}
            if is_ended or (link is not None and link.is_judged and not link.is_in):
                self.lost(number)

    def drop_unlinked(self) -> None:
        """End what was lent in a pair that is forgotten."""
        links = self.pcs.echoes.links
        for number in [one for one, grant in self.grants.items() if _way(grant) not in links]:
            self.lost(number)

    def refuse_others(self, members: frozenset[str]) -> None:
        """Refuse what stages want on PCs of no cell."""
        for node_id, wanted in list(self.wants.items()):
            if wanted.pc not in members:
                self.resolve(node_id, "No PC of its LAN is confirmed to lend to it.")

    def to_allow(self, pc: str) -> Iterator[LeaseOrder]:
        """Leases of stages that a PC is to allow."""
        for number, grant in self.grants.items():
            if grant.lender == pc:
                yield LeaseOrder(lease=number, key=grant.lan.key, size_bytes=grant.lease.size_bytes)
        for node_id, question in self.questions.items():
            offer = question.offers[0]
            if offer.lender == f"{pc}{LENDS}":
                size = offer.blocks * self.wants[node_id].block_bytes
                yield LeaseOrder(lease=offer.lease, key=question.key, size_bytes=size)

    # -- events of a cell's ledger ----------------------------------------------------------------

    def debtors(self, cell: frozenset[str], ledger: CellLedger) -> Iterator[DeviceReported]:
        """Reports of the stages that have or want something."""
        had = {grant.wanted.node_id: grant.wanted for grant in self.grants.values()}
        for node_id, wanted in (had | self.wants).items():
            if wanted.pc in cell:
                yield self._of_debtor(node_id, wanted, ledger)

    def wanted(self, cell: frozenset[str]) -> Iterator[BlocksWanted]:
        """Events of what stages want, once it is known who is near them."""
        for node_id, wanted in list(self.wants.items()):
            links, seen = self.pcs.echoes.lenders(wanted.pc), self.pcs.seen
            lenders = [to for to in links if may_lend(seen.get(to))]
            if node_id in self.questions or wanted.pc not in cell:
                continue
            if not any(seen[to].facts.memory_bytes for to in links if to in seen):
                self.resolve(node_id, "No PC that may lend to it lends anything now.")
            elif lenders and all(links[to].is_judged for to in lenders):
                room = max(seen[to].facts.memory_bytes for to in lenders)
                blocks = min(wanted.blocks, max(1, room // wanted.block_bytes))
                yield BlocksWanted(self.pcs.origin(node_id), blocks, wanted.slower_s)

    def answers(self, cell: frozenset[str], now: float) -> Iterator[LendAnswered]:
        """Events of what lenders that were asked say: the first that allows a lease has it, once
        its event is taken."""
        for node_id, question in list(self.questions.items()):
            wanted = self.wants[node_id]
            if wanted.pc not in cell:
                continue
            offer = question.offers[0]
            seen = self.pcs.seen.get(offer.lender[: -len(LENDS)])
            lease = _lease(question.ask, offer, wanted)
            held = () if seen is None else tuple(one.lease for one in seen.facts.leases)
            if seen is not None and offer.lease in held:
                del self.questions[node_id]
                room = max(0, seen.facts.memory_bytes - _allowed_bytes(seen))
                yield LendAnswered(self.pcs.origin(node_id), lease, room)
                if node_id in self.wants:
                    self._granted(wanted, lease, question.key, seen)
            elif _is_refused(question, seen, now):
                yield LendAnswered(self.pcs.origin(node_id), lease.with_blocks(0), 0)
                self._ask_next(node_id, question, now)

    def _of_debtor(self, name: str, wanted: RoomWanted, ledger: CellLedger) -> DeviceReported:
        facts = DeviceFacts(
            memory_bytes=0,
            block_bytes=wanted.block_bytes,
            layers=wanted.layers,
            row_bytes=wanted.row_bytes,
            links=self.pcs.links(wanted.pc),
        )
        question = self.questions.get(name)
        asked = ledger.next_lease - 1 if question is None else question.offers[0].lease - 1
        leases = tuple(one.lease for one in self.grants.values() if _of(one, name))
        return DeviceReported(self.pcs.origin(name), facts, asked, leases)

    def _ask_next(self, node_id: str, question: Question, now: float) -> None:
        self.ended.add(question.offers.pop(0).lease)
        question.key, question.asked_at = self.draw_key(), now
        if not question.offers:
            self.resolve(node_id, "Every lender that was asked has refused.")

    def _granted(self, wanted: RoomWanted, lease: Lease, key: str, seen: PcSeen) -> None:
        lender, debtor = lease.lender[: -len(LENDS)], self.pcs.seen.get(wanted.pc)
        host = debtor.hosts.get(lender, "") if debtor is not None else ""
        if not host:
            self.ended.add(lease.number)
            self.resolve(wanted.node_id, "It reaches no lender directly.")
            return
        number, size = lease.number, lease.size_bytes
        lan = LanLease(host, seen.facts.port, number, key, seen.facts.incarnation, size)
        self.grants[number] = grant = Grant(wanted, lender, lease, lan)
        self.resolve(wanted.node_id, grant)


def _is_refused(question: Question, seen: PcSeen | None, now: float) -> bool:
    is_late = now - question.asked_at >= ASK_WITHIN_S
    return is_late or seen is None or question.offers[0].lease in seen.facts.ended


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
