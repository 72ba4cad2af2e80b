"""The links of a running ring as their senders last told of them."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from molink.coordinator.members.ring import COORDINATOR, Ring
from molink.coordinator.requests.link_memory import KnownLink
from molink.coordinator.requests.ring_client_links import RingClientLinks
from molink_scheduler.link.facts import LinkReport

__all__ = ["RingLink", "known_links", "ring_links"]


@dataclass(frozen=True, slots=True)
class RingLink:
    """One directed link; stages by their number in the ring."""

    source: int
    target: int
    report: LinkReport


def ring_links(ring: Ring, coordinator: RingClientLinks) -> Iterator[RingLink]:
    """In the order in which a request meets them; of a stage that has not reported, none."""
    if coordinator.head is not None:
        yield RingLink(COORDINATOR, 0, coordinator.head.report())
    for index, stage in enumerate(ring.stages):
        following = (index + 1) % len(ring.stages)
        for link in stage.health.links if stage.health else ():
            yield RingLink(index, following if link.name == "next" else COORDINATOR, link)


def known_links(
    ring: Ring, coordinator: RingClientLinks, address_of: Callable[[int], str], now: float
) -> Iterator[tuple[str, str, KnownLink]]:
    """Source, target and state of each link, to be remembered; `address_of` a stage's place or
    COORDINATOR."""
    for link in ring_links(ring, coordinator):
        places = address_of(link.source), address_of(link.target)
        with suppress(ValueError, TypeError):  # What a stage says of its link may be impossible.
            yield *places, KnownLink(link.report.rate_mbps, link.report.rtt_ms, now)
