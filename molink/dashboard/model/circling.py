"""Micro-batches of a ring as they circle: a share at each stage, the rest on its links.

Each stage tells how many micro-batches it held in the last half second, waiting or computed, and
the head how many circled, as means. What no stage held was on the way, and is shared among the
links by their round trips. Those are means over some rounds, so whole micro-batches are placed
where most of them were (largest remainders, as seats in a parliament). A single moment was
rejected: a round takes less time than there is between two looks, so it would show chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from molink.report.cluster import RingReport

CIRCLING_MIN = 0.05
"""Mean count of micro-batches under way below which a ring rests."""

SHOWN_MAX = 99
"""Most micro-batches that are shown, more than any ring has: a stage may report anything."""


@dataclass(frozen=True, slots=True)
class Circling:
    """Micro-batches at each place of a ring, whole ones."""

    stages: tuple[int, ...]
    links: tuple[int, ...]
    """Micro-batches on the link that leaves each stage."""


def circling(ring: RingReport) -> Circling | None:
    """Places of a ring's micro-batches; None: the ring rests, or does not tell."""
    held = [stage.micro_batches_held for stage in ring.stages]
    known = [one for one in held if one is not None]
    if ring.circling is None or ring.circling < CIRCLING_MIN or len(known) < len(held):
        return None
    count = min(round(ring.circling), SHOWN_MAX)
    on_the_way = max(0.0, ring.circling - sum(known))
    shares = [*known, *(on_the_way * part for part in _link_parts(ring))]
    whole = _whole(shares, max(1, count))
    return Circling(tuple(whole[: len(held)]), tuple(whole[len(held) :]))


def _link_parts(ring: RingReport) -> list[float]:
    """Part of the way that each link is; even parts where no round trip is known."""
    stages = ring.stages
    links = [ring.link_to((index + 1) % len(stages)) for index in range(len(stages))]
    rtts = [(link.rtt_ms or 0.0) if link is not None else 0.0 for link in links]
    together = sum(rtts)
    return [rtt / together if together else 1 / len(stages) for rtt in rtts]


def _whole(shares: Sequence[float], count: int) -> list[int]:
    """Whole numbers that add up to `count`, as near to these shares as can be."""
    together = sum(shares)
    wanted = [count * share / together if together else 0.0 for share in shares]
    found = [int(one) for one in wanted]
    by_remainder = sorted(range(len(wanted)), key=lambda at: found[at] - wanted[at])
    for at in by_remainder[: count - sum(found)]:
        found[at] += 1
    return found
