"""Roles of rings that come and go, and which of their stages hand KV over to which.

A ring that stands takes the first role that nobody has. Two rings whose roles belong together are
paired where their stages have the same layers, one by one, and stand in one PC, or in two that the
operator has confirmed and that reach each other as in a LAN. A stage that takes is told a key, and
says at which port it listens; then the other one is told both. Only when all of them are linked
have the rings their roles. Until then, and after, each of them does both: so nothing is handed over
on a home link, and no prompt is computed twice for a pair that does not stand.
"""

import ipaddress
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from molink.control.messages.cell import PairOrder
from molink.control.messages.payloads import PathMeasured
from molink.coordinator.cell.pairs import Pair, direct_path, pair_of
from molink.coordinator.nodes.node import Node
from molink.coordinator.requests.serving_ring import ServingRing
from molink.coordinator.ring.agent_stage import AgentStage
from molink.stage_protocol.health import PairHealth
from molink.stage_protocol.pairing import Pairing, PairLink
from molink_scheduler.routing.roles import Role, pairs_of

AGAIN_S = 3.0
"""Seconds until an order is sent again that a stage does not seem to have: its heartbeats come each
second."""

NEAR_RTT_MS = 30.0
"""Round trip, the shorter way, beyond which two PCs with private addresses are in two homes, by a
tunnel, whatever the operator has confirmed. It is measured once, while PCs may load a model:
on a busy one a round trip in itself took 16 ms."""

LOCALHOST = "127.0.0.1"

Ends = tuple[AgentStage, AgentStage]
"""A stage that hands over, and the one that takes."""

Group = tuple[str, tuple[str, ...]]
"""Ids of the node that takes, and of those that may hand over to it."""

PLAIN_BROKER = "The broker speaks plain MQTT, by which keys of pairs could be read: use mqtts://."


@dataclass(slots=True)
class RingPairs:
    """Roles and pairs of one cluster's rings."""

    roles: tuple[Role, ...] = (Role.BOTH,)
    is_encrypted: bool = True
    """Whether control links are, on which keys travel; else no rings are paired."""
    draw_key: Callable[[], str] = lambda: secrets.token_hex(32)
    """Draws 32 bytes, in hex."""
    next_number: int = field(default_factory=lambda: int(1e3 * time.time()))
    """Number of the next pair, above all of earlier starts."""
    _nodes: Mapping[str, Node] = field(default_factory=dict)
    """All nodes, for paths between their PCs."""
    _confirmed: frozenset[Pair] = frozenset()
    """PCs that the operator has confirmed."""
    _rings: dict[int, Sequence[AgentStage]] = field(default_factory=dict)
    """Stages of the rings that stand, by number."""
    _role_index: dict[int, int] = field(default_factory=dict)
    """Ring to its place among the roles."""
    _links: dict[Group, PairLink] = field(default_factory=dict)
    """Links that are wanted now."""
    _why_not: dict[int, str] = field(default_factory=dict)
    """Why rings that compute prompts are not paired, by their numbers."""
    _linked: frozenset[int] = frozenset()
    """Rings of pairs that stand."""
    _sent: dict[str, tuple[PairOrder, float]] = field(default_factory=dict)
    """Last order to each node, and when it was sent."""

    @property
    def are_set(self) -> bool:
        """Whether rings have roles at all."""
        return len(self.roles) > 1

    @contextmanager
    def standing(self, ring: int, stages: Sequence[AgentStage]) -> Iterator[None]:
        """A ring stands, with these stages, until the block ends."""
        self._rings[ring] = stages
        try:
            yield
        finally:
            if self._rings.get(ring) is stages:
                del self._rings[ring]

    def place(self, ring: ServingRing) -> int | None:
        """The place of a ring among the roles; None: it does all now."""
        return self._role_index.get(ring.number) if ring.number in self._linked else None

    @property
    def trouble(self) -> str:
        """Why rings that have roles do not keep to them, in sentences; empty: they do."""
        if not self.are_set or not self._rings:
            return ""
        if not self.is_encrypted:
            return f"All rings compute their own prompts. {PLAIN_BROKER}"
        if len(self._rings) < len(self.roles):
            wanted, here = len(self.roles), len(self._rings)
            few = f"--roles names {wanted} rings, and {here} can be made of these PCs"
            return " ".join((f"{few}.", *self._why_not.values()))
        return " ".join(self._why_not.values())

    def orders(
        self, nodes: Mapping[str, Node], confirmed: Iterable[Pair], now: float
    ) -> dict[str, PairOrder]:
        """Orders that these nodes are to be sent now, by their ids, of whose PCs these pairs are
        confirmed."""
        if not self.are_set:
            return {}
        self._nodes, self._confirmed = nodes, frozenset(confirmed)
        self._assign_roles()
        self._why_not.clear()
        rings = {one: self._ends(*one) for one in self._paired_rings()}
        self._links = self._drawn([ends for pairs in rings.values() for ends in pairs])
        wanted, linked = dict[str, Pairing](), set[int]()
        for (prefill_ring, decode_ring), pairs in rings.items():
            for ends in pairs:
                wanted |= self._wanted(ends)
            if pairs and all(map(self._is_linked, pairs)):
                linked |= {prefill_ring, decode_ring}
            elif pairs:
                self._refuse(prefill_ring, decode_ring, _why_not_linked(pairs))
        self._linked = frozenset(linked)
        return self._to_send(wanted, now)

    # -- which rings ------------------------------------------------------------------------------

    def _assign_roles(self) -> None:
        """Give rings that stand the roles that no other one has which stands."""
        self._role_index = {
            ring: role for ring, role in self._role_index.items() if ring in self._rings
        }
        for ring in sorted(self._rings.keys() - self._role_index.keys()):
            free = sorted(set(range(len(self.roles))) - set(self._role_index.values()))
            if free:
                self._role_index[ring] = free[0]

    def _paired_rings(self) -> Iterator[tuple[int, int]]:
        """Rings that compute prompts, each with the one that it does it for."""
        ring_at = {role: ring for ring, role in self._role_index.items()}
        for prefill_ring, decode_ring in pairs_of(self.roles).items():
            if prefill_ring in ring_at and decode_ring in ring_at:
                yield ring_at[prefill_ring], ring_at[decode_ring]

    def _ends(self, prefill_ring: int, decode_ring: int) -> list[Ends]:
        """The stages of two rings that are to be paired; none where that cannot be."""
        if why := self._objection(prefill_ring, decode_ring):
            self._refuse(prefill_ring, decode_ring, why)
            return []
        return list(zip(self._rings[prefill_ring], self._rings[decode_ring], strict=True))

    def _refuse(self, prefill_ring: int, decode_ring: int, why: str) -> None:
        self._why_not[prefill_ring] = (
            f"Ring {prefill_ring} computes no prompts for ring {decode_ring}: {why}."
        )

    def _objection(self, prefill_ring: int, decode_ring: int) -> str:
        """Why two rings cannot be paired, a clause; empty: they can."""
        if not self.is_encrypted:
            return "keys would travel in clear"
        one, other = self._rings[prefill_ring], self._rings[decode_ring]
        if (held := _split(one)) != (wanted := _split(other)):
            return f"its stages have layers {held}, and those of the other {wanted}"
        clauses = (self._why_far(*ends) for ends in zip(one, other, strict=True))
        return next(filter(None, clauses), "")

    def _why_far(self, sender: AgentStage, receiver: AgentStage) -> str:
        """Why two stages are not in one PC or LAN, a clause; empty: they are."""
        here, there = sender.node, receiver.node
        if here.pc == there.pc:
            return ""
        names = f"{here.name} and {there.name}"
        if pair_of(here.pc, there.pc) not in self._confirmed:
            return f"{names} are not confirmed as a pair of a cell (`molink cell confirm`)"
        path = self._path(here, there)
        if path is None:
            return f"{here.name} does not reach {there.name} directly"
        if not _is_private(_host(path)):
            return f"{here.name} reaches {there.name} by a public address, and no LAN's"
        back = self._path(there, here) or path
        if (apart_ms := min(path.rtt_ms, back.rtt_ms)) > NEAR_RTT_MS:
            return f"{names} are {apart_ms:.0f} ms apart, and PCs of a LAN {NEAR_RTT_MS:g} at most"
        return ""

    def _path(self, here: Node, there: Node) -> PathMeasured | None:
        """The direct path between two nodes, or else between their PCs."""
        one, other = self._nodes.get(here.pc), self._nodes.get(there.pc)
        of_pcs = direct_path(one, other) if one is not None and other is not None else None
        return direct_path(here, there) or of_pcs

    # -- their stages -----------------------------------------------------------------------------

    def _drawn(self, pairs: Sequence[Ends]) -> dict[Group, PairLink]:
        """The link of each stage that takes, with those who may come: as long as they are the same
        it stays."""
        senders = dict[str, list[str]]()
        for sender, receiver in pairs:
            senders.setdefault(receiver.node.node_id, []).append(sender.node.node_id)
        groups = {(receiver, tuple(sorted(ids))) for receiver, ids in senders.items()}
        return {group: self._links.get(group) or self._draw() for group in sorted(groups)}

    def _draw(self) -> PairLink:
        self.next_number += 1
        return PairLink(self.next_number, self.draw_key())

    def _link(self, ends: Ends) -> PairLink:
        sender, receiver = (stage.node.node_id for stage in ends)
        return next(
            link for (to, ids), link in self._links.items() if to == receiver and sender in ids
        )

    def _is_linked(self, ends: Ends) -> bool:
        number, reported = self._link(ends).number, [_reported_pair(stage) for stage in ends]
        return all(one is not None and one.linked and one.number == number for one in reported)

    def _wanted(self, ends: Ends) -> dict[str, Pairing]:
        """What both ends are to be, by their nodes: the one that hands over once it is known where
        the other listens."""
        (sender, receiver), link = ends, self._link(ends)
        wanted, reported = {receiver.node.node_id: Pairing(link=link)}, _reported_pair(receiver)
        if reported is not None and reported.number == link.number and reported.port:
            path = self._path(sender.node, receiver.node)
            host = _host(path) if path is not None else LOCALHOST
            there = replace(link, host=host, port=reported.port)
            wanted[sender.node.node_id] = Pairing(sends=True, link=there)
        return wanted

    def _to_send(self, wanted: Mapping[str, Pairing], now: float) -> dict[str, PairOrder]:
        """Orders to those stages that are not yet what is wanted of them."""
        orders = dict[str, PairOrder]()
        for ring, stages in self._rings.items():
            for stage in stages:
                node_id = stage.node.node_id
                order = PairOrder(ring=ring, pairing=wanted.get(node_id))
                if _matches(_reported_pair(stage), order.pairing):
                    self._sent.pop(node_id, None)
                    continue
                before, sent_at = self._sent.get(node_id, (None, now))
                if before != order or now - sent_at >= AGAIN_S:
                    orders[node_id], self._sent[node_id] = order, (order, now)
        return orders


def _host(path: PathMeasured) -> str:
    return path.address.rpartition(":")[0]


def _is_private(host: str) -> bool:
    """Whether it is an address of a LAN, or of this PC."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_private
    except ValueError:
        return False


def _reported_pair(stage: AgentStage) -> PairHealth | None:
    """What a stage has told of its end; None: it has none."""
    return stage.health.pair if stage.health is not None else None


def _matches(reported: PairHealth | None, pairing: Pairing | None) -> bool:
    """Whether a stage is the end that it is to be."""
    if reported is None or pairing is None or pairing.link is None:
        return reported is None and pairing is None
    is_there = not pairing.sends or reported.port == pairing.link.port
    return (reported.number, reported.sends) == (pairing.link.number, pairing.sends) and is_there


def _why_not_linked(pairs: Sequence[Ends]) -> str:
    """Why stages are not linked that are paired, a clause."""
    for sender, receiver in pairs:
        reported = _reported_pair(sender)
        if reported is not None and reported.why:
            return f"{sender.name} does not reach {receiver.name}: {reported.why.rstrip('.')}"
    return "their stages are being linked"


def _split(stages: Sequence[AgentStage]) -> str:
    """Layers of a ring's stages, as people write them."""
    return ", ".join(f"{first}-{end - 1}" for first, end in (one.layers for one in stages))
