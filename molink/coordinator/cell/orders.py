"""Orders of an operator about cells, carried out, and what there is to tell of them.

Who confirms two PCs says that he trusts both owners with the text of his users: it can be inferred
from KV that is lent. So nobody is confirmed by being near.
"""

import asyncio
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from molink.coordinator.cell.echo_links import EchoLink
from molink.coordinator.cell.lending import CellLending
from molink.coordinator.cell.pairs import LAN_RTT_MS, MARK, Pair, direct_path, pair_of, pc_of
from molink.coordinator.nodes.node import Node
from molink.errors import UserError
from molink.report.cell import CellPairReport, CellPcReport, CellReport
from molink.serving.events import EventLedger

PLAIN_BROKER = (
    "The broker speaks plain MQTT, by which keys of leases could be read: nothing is lent. Use "
    "mqtts://."
)

PREFIX = 24
"""Bits of a private network of a home."""


class UnknownPcError(UserError):
    """Raised when an order names a PC that is no member; one sentence for the operator."""


@dataclass(slots=True)
class CellOrders:
    """What an operator says of cells; `by` is who: the id of a key, or an address."""

    lending: CellLending
    events: EventLedger
    _keeping: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from reading the pairs until they are kept: orders may come at once."""

    async def confirm(self, one: str, other: str, by: str) -> CellReport:
        """Let two PCs, by their ids or names, lend to each other. Raises UserError."""
        if not self.lending.is_encrypted:
            raise UserError(PLAIN_BROKER)
        pair = self._pair(one, other)
        async with self._keeping:
            await asyncio.to_thread(self.lending.pairs.keep, self.lending.pairs.pairs | {pair})
        self._note("may lend each other memory", pair, by)
        return self.report()

    async def forget(self, one: str, other: str, by: str) -> CellReport:
        """End what two PCs have lent each other, and let them lend nothing. Raises UserError."""
        pair = self._pair(one, other)
        async with self._keeping:
            pairs = self.lending.pairs
            if pair not in pairs.pairs:
                names = " and ".join(self._name(pc) for pc in pair)
                raise UserError(f"{names} are not confirmed: `molink cell list` shows who is.")
            await asyncio.to_thread(pairs.keep, pairs.pairs - {pair})
        self._note("lend each other nothing any more", pair, by)
        return self.report()

    def report(self) -> CellReport:
        """Pairs that are confirmed, then those that could be; and what each PC has, lends and
        borrows."""
        confirmed = sorted(self.lending.pairs.pairs)
        near = sorted(set(self._near_pairs()) - set(confirmed))
        pairs = [*confirmed, *near]
        pcs = sorted({pc for pair in pairs for pc in pair} | self.lending.seen.keys())
        return CellReport(tuple(map(self._of_pair, pairs)), tuple(map(self._of_pc, pcs)))

    # -- who is meant -----------------------------------------------------------------------------

    def _pair(self, one: str, other: str) -> Pair:
        first, second = self._pc(one), self._pc(other)
        if first == second:
            raise UserError(
                f"{one!r:.60} and {other!r:.60} are one PC, whose stages have its own memory by "
                "--kv-host-tokens: name two."
            )
        return pair_of(first, second)

    def _pc(self, which: str) -> str:
        members = [one for one in self.lending.pairs.registry.list_nodes() if one.removed is None]
        found = {one.pc for one in members if which in (one.node_id, one.name)}
        if len(found) == 1:
            return found.pop()
        trouble = "no PC here has" if not found else "several PCs have"
        raise UnknownPcError(
            f"{trouble[:1].upper()}{trouble[1:]} the id or name {which!r:.60}: `molink node list` "
            "shows their ids."
        )

    def _name(self, lender: str) -> str:
        """Name of a PC, with the card that is meant."""
        pc, _, card = lender.partition(MARK)
        node = self._node(pc)
        name = node.name if node is not None else pc
        return f"{name} ({card})" if card else name

    def _node(self, pc: str) -> Node | None:
        return self.lending.hub.book.nodes.get(pc)

    def _note(self, what: str, pair: Pair, by: str) -> None:
        names = " and ".join(self._name(pc) for pc in pair)
        self.events.add("order", f"{names} {what}, by order of {by}")

    # -- what there is ----------------------------------------------------------------------------

    def _near_pairs(self) -> Iterator[Pair]:
        """PCs that reach each other within a LAN's round trip, or are in one private network."""
        pcs = [node for node in self.lending.hub.book if node.pc == node.node_id and node.is_here]
        for one, other in combinations(pcs, 2):
            rtt_ms = _rtt_ms(one, other)
            is_near = rtt_ms is not None and rtt_ms <= LAN_RTT_MS
            if is_near or _networks(one) & _networks(other):
                yield pair_of(one.node_id, other.node_id)

    def _of_pair(self, pair: Pair) -> CellPairReport:
        one, other = pair
        is_confirmed = pair in self.lending.pairs.pairs
        ways = self._ways(pair)
        times = [way.near_s for way in ways if way.near_s is not None]
        first, second = self._node(one), self._node(other)
        rtt_ms = None if first is None or second is None else _rtt_ms(first, second)
        return CellPairReport(
            pcs=pair,
            names=(self._name(one), self._name(other)),
            confirmed=is_confirmed,
            rtt_ms=rtt_ms,
            echo_ms=1e3 * max(times) if times else None,
            near=any(way.is_in for way in ways),
            reason=self._why_not(pair) if is_confirmed else "The operator has not confirmed it.",
        )

    def _why_not(self, pair: Pair) -> str:
        """Why nothing is lent in a confirmed pair; empty: it may be."""
        if not self.lending.is_encrypted:
            return PLAIN_BROKER
        seen = self.lending.seen
        if not any(pc_of(to) in pair and one.facts.memory_bytes for to, one in seen.items()):
            return (
                "Neither owner lends now what lend_ram_gb and lend_cpu_cores, or lend_gpu_gb, say."
            )
        ways = self._ways(pair)
        if not any(way.is_judged for way in ways):
            return "Its echoes are not measured yet."
        return "" if any(way.is_in for way in ways) else "Its echoes take too long."

    def _ways(self, pair: Pair) -> list[EchoLink]:
        """Links between two PCs, each to main memory and to a card."""
        links = self.lending.driver.echoes.links.items()
        return [link for (of, to), link in links if pair_of(of, pc_of(to)) == pair]

    def _of_pc(self, pc: str) -> CellPcReport:
        seen = self.lending.seen.get(pc)
        facts = seen.facts if seen is not None else None
        grants = self.lending.driver.grants.values()
        borrowed = sum(one.lease.size_bytes for one in grants if one.wanted.pc == pc)
        leases = facts.leases if facts is not None else ()
        why_less = facts.why_less if facts is not None else ""
        return CellPcReport(
            id=pc,
            name=self._name(pc),
            own_bytes=self._own(pc),
            lent_bytes=sum(one.size_bytes for one in leases),
            held_bytes=sum(one.held_bytes for one in leases),
            borrowed_bytes=borrowed,
            lendable_bytes=facts.memory_bytes if facts is not None else 0,
            reason=" ".join(filter(None, (why_less, self._why_borrows_nothing(pc)))),
        )

    def _why_borrows_nothing(self, pc: str) -> str:
        why = self.lending.refused.get(pc)
        return f"Its stage borrows nothing: {why}" if why else ""

    def _own(self, pc: str) -> int:
        """Bytes of KV that stages on a PC hold on their devices."""
        return sum(self._own_bytes(node) for node in self.lending.hub.book if node.pc == pc)

    def _own_bytes(self, node: Node) -> int:
        work = node.assignment.work if node.assignment is not None else None
        figures = self.lending.figures(node, work) if work is not None else None
        return (work.kv_tokens or 0) * figures.token_bytes if work and figures else 0


def _rtt_ms(one: Node, other: Node) -> float | None:
    """The shorter round trip that either has measured directly; None: neither has."""
    paths = direct_path(one, other), direct_path(other, one)
    return min((path.rtt_ms for path in paths if path is not None), default=None)


def _networks(node: Node) -> set[str]:
    """Private networks in which a PC may be reached."""
    found = set[str]()
    for address in node.profile.addresses if node.profile is not None else ():
        try:
            host = ipaddress.IPv4Address(address.rpartition(":")[0])
        except ValueError:
            continue
        if host.is_private and not host.is_loopback:
            found.add(str(ipaddress.ip_network(f"{host}/{PREFIX}", strict=False)))
    return found
