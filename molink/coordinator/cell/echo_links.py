"""Whether a lender is near enough to a PC, by echoes that this one measures each minute. Pure.

A layer's attention waits for one message and its answer: a wire takes 0.1 to 0.3 ms, Wi-Fi more,
and now and then much more. So nearly all echoes have to be fast. Between both bounds nothing
changes. A link that fell out is in again only after it was fast for as long as a lost lender has to
be steady: each time that it falls, rings of its debtors begin anew. One that falls out again soon
has to be steady for twice as long: what comes and goes with the minutes is in by chance only.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from molink.control.messages.cell import EchoesTold, EchoOrder, LeaseOrder
from molink.coordinator.cell.pairs import Pair, is_card
from molink.coordinator.cell.values import PcSeen
from molink_scheduler.cell.ledger import STEADY_S

NEAR_SHARE = 0.95
"""Share of the echoes that have to come in time."""

IN_S, OUT_S = 1.0e-3, 1.5e-3
"""Echoes of a link that comes in take less than the one; at the other it falls out."""

STEADY_MOST_S = 1920.0
"""Longest time for which a link that has fallen out has to be fast until it is in again."""

CALM_S = 3600.0
"""Time for which a link is in after which it counts as one that never fell out."""

MEASURE_EVERY_S = 60.0
ANSWER_WITHIN_S = 25.0
"""Seconds for one measurement: twenty echoes of a second each, and two heartbeats."""


@dataclass(slots=True)
class EchoLink:
    """Link from a PC that may borrow to one that may lend."""

    is_in: bool = False
    near_s: float | None = None
    """Seconds within which nearly all of the last echoes came; None: none came, or none was
    measured."""
    is_judged: bool = False
    """Whether it was measured at all."""
    lease: int = 0
    """Lease of the measurement under way; 0: none is."""
    key: str = ""
    round: int = 0
    _asked_at: float = 0.0
    _due_at: float = -math.inf
    _fell_at: float = -math.inf
    """When it was slow last, since it was in for the first time."""
    _came_at: float = -math.inf
    """When it came in last."""
    _steady_s: float = STEADY_S / 2
    """How long it had to be fast before it came in."""

    def is_due(self, now: float) -> bool:
        """Whether it is time to measure, and nothing is under way."""
        return not self.lease and now >= self._due_at

    def ask(self, lease: int, key: str, now: float) -> None:
        """Begin a measurement of its echoes, by a lease of its own."""
        self.lease, self.key, self._asked_at = lease, key, now
        self.round += 1

    def is_overdue(self, now: float) -> bool:
        """Whether a measurement has taken too long: the lender is not to be reached."""
        return bool(self.lease) and now - self._asked_at >= ANSWER_WITHIN_S

    def judge(self, seconds: Sequence[float], now: float) -> None:
        """Take echoes into account; none at all have it out."""
        bound_s = OUT_S if self.is_in else IN_S
        wanted = math.ceil(NEAR_SHARE * len(seconds))
        self.near_s = sorted(seconds)[wanted - 1] if seconds else None
        is_near = self.near_s is not None and self.near_s < bound_s
        if not is_near and self.is_in:
            is_calm = now - self._came_at >= CALM_S
            self._steady_s = STEADY_S if is_calm else min(STEADY_MOST_S, 2 * self._steady_s)
        if not is_near and (self.is_in or self._fell_at > -math.inf):
            self._fell_at = now
        was_in, is_steady = self.is_in, now - self._fell_at >= self._steady_s
        self.is_in = is_near and (was_in or is_steady)
        self._came_at = now if self.is_in and not was_in else self._came_at
        self.is_judged, self.lease, self._due_at = True, 0, now + MEASURE_EVERY_S


@dataclass(slots=True)
class EchoLinks:
    """Links of all cells, and the measurements that are under way."""

    draw_key: Callable[[], str]
    """Draws 32 bytes, in hex."""
    links: dict[Pair, EchoLink] = field(default_factory=dict)
    """By debtor's and lender's PC."""

    def join(self, pairs: Iterable[Pair]) -> None:
        """Have a link each way in each pair, and no other; none from a card, which borrows
        nothing."""
        both = (way for one, other in pairs for way in ((one, other), (other, one)))
        ways = [way for way in both if not is_card(way[0])]
        self.links = {way: self.links.get(way) or EchoLink() for way in ways}

    def measure(
        self,
        cell: Collection[str],
        seen: Mapping[str, PcSeen],
        next_lease: Callable[[], int],
        now: float,
    ) -> None:
        """Judge what a cell's PCs tell, and begin what is due. `next_lease`: takes a number."""
        for (debtor, lender), link in self.links.items():
            if debtor not in cell:
                continue
            echoes = _last_echoes(seen.get(debtor), lender)
            if link.lease and echoes is not None and echoes.round == link.round:
                link.judge([one / 1e3 for one in echoes.milliseconds], now)
            elif link.is_overdue(now):
                link.judge((), now)
            elif link.is_due(now) and debtor in seen and may_lend(seen.get(lender)):
                link.ask(next_lease(), self.draw_key(), now)

    def lenders(self, debtor: str) -> dict[str, EchoLink]:
        """Links from a PC to those that may lend to it."""
        return {to: link for (of, to), link in self.links.items() if of == debtor}

    def to_allow(self, pc: str) -> Iterator[LeaseOrder]:
        """Leases for echoes that a PC is to allow."""
        for (_, lender), link in self.links.items():
            if lender == pc and link.lease:
                yield LeaseOrder(lease=link.lease, key=link.key, size_bytes=0)

    def orders(self, pc: str, seen: Mapping[str, PcSeen]) -> Iterator[EchoOrder]:
        """Echoes that a PC is to measure, once their lenders let it in."""
        for lender, link in self.lenders(pc).items():
            host = seen[pc].hosts.get(lender) if pc in seen else None
            facts = seen[lender].facts if lender in seen else None
            if host and facts is not None and link.lease in {one.lease for one in facts.leases}:
                yield EchoOrder(
                    lender=lender,
                    round=link.round,
                    host=host,
                    port=facts.port,
                    lease=link.lease,
                    key=link.key,
                )


def may_lend(pc: PcSeen | None) -> bool:
    """Whether a PC listens, and its owner lends something now."""
    return pc is not None and pc.facts.port > 0 and pc.facts.memory_bytes > 0


def _last_echoes(debtor: PcSeen | None, lender: str) -> EchoesTold | None:
    """The last echoes of a lender that a debtor tells of."""
    echoes = [] if debtor is None else [one for one in debtor.of_pc.echoes if one.lender == lender]
    return echoes[0] if echoes else None
