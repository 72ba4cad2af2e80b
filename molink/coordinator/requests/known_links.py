"""What was last known of the links between hosts, kept from one ring to the next.

A home link's rate changes by the hour, but rarely tenfold: a link that starts from yesterday's rate
begins with pieces of the right size and need not ramp up from what TCP would dare. Only hosts that
`--hosts` names are remembered, by their addresses; what is on random ports of one machine has none.

Pure: the time is an argument. `link_memory` reads and writes the file.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from molink_scheduler.link.facts import RATE_MAX_BYTES_PER_S, LinkMemory

__all__ = ["ENTRIES_MAX", "KnownLink", "KnownLinks"]

ENTRIES_MAX = 256
"""A ring of 64 hosts has 66 links: enough for some rings of this size, and a file of 32 KB."""

RATE_MBPS_MAX = RATE_MAX_BYTES_PER_S * 8 / 1e6
"""No estimator believes more."""

START_MBPS_MAX = 200.0
"""A link that was faster starts as if never met. Its ramp gets there within the second in which a
ring measures its links, and a wrong memory of that kind costs most: with 1,000 Mbps remembered of a
20 Mbps line (60 ms, real TCP) 3.4 s of data queued and the first prompt took 11 s instead of 2."""

RTT_MS_MAX = 10_000.0
"""Two satellites in a row take two seconds; a window for longer would bury a link."""

AGE_S_MAX = 30 * 24 * 3600.0
"""Older ones say more of a contract or a flat that was left than of the link today."""


@dataclass(frozen=True, slots=True)
class KnownLink:
    """One directed link as it was `when`, in seconds since 1970. Raises ValueError for values that
    no link has."""

    rate_mbps: float
    rtt_ms: float
    when: float

    def __post_init__(self) -> None:
        ranges = (
            ("rate_mbps", 0 < self.rate_mbps <= RATE_MBPS_MAX),
            ("rtt_ms", 0 < self.rtt_ms <= RTT_MS_MAX),
            ("when", 0 <= self.when < math.inf),
        )
        for name, is_possible in ranges:
            if not is_possible:
                raise ValueError(f"{name} of a link cannot be {getattr(self, name)}")

    @property
    def memory(self) -> LinkMemory:
        """What a link's estimator starts from."""
        return LinkMemory(self.rate_mbps * 1e6 / 8, self.rtt_ms / 1e3)

    def is_fresh(self, now: float) -> bool:
        """Whether it still says something; what is from the future does not."""
        return 0 <= now - self.when <= AGE_S_MAX


@dataclass(frozen=True, slots=True)
class KnownLinks:
    """All of them, by the addresses that they join."""

    links: Mapping[str, KnownLink] = field(default_factory=dict)

    @classmethod
    def from_fields(cls, fields: Any) -> "KnownLinks":
        """From what JSON holds. Raises ValueError or TypeError when it is none of ours."""
        if not isinstance(fields, dict):
            raise TypeError("known links are an object")
        return cls({str(key): KnownLink(**_numbers(one)) for key, one in fields.items()})

    def fields(self) -> dict[str, dict[str, float]]:
        """For JSON."""
        return {key: asdict(link) for key, link in self.links.items()}

    def memory(self, source: str, target: str) -> LinkMemory | None:
        """Of the link from one address to another; None when it had better start without."""
        link = self.links.get(_key(source, target))
        return link.memory if link is not None and link.rate_mbps <= START_MBPS_MAX else None

    def fresh(self, now: float) -> "KnownLinks":
        """Without those that are too old."""
        return KnownLinks({key: one for key, one in self.links.items() if one.is_fresh(now)})

    def updated(self, seen: Iterable[tuple[str, str, KnownLink]], now: float) -> "KnownLinks":
        """With links (source, target, what was seen) added; the oldest leave beyond
        ENTRIES_MAX."""
        links = dict(self.fresh(now).links)
        links |= {_key(source, target): link for source, target, link in seen}
        newest = sorted(links.items(), key=lambda item: item[1].when, reverse=True)
        return KnownLinks(dict(newest[:ENTRIES_MAX]))


def _key(source: str, target: str) -> str:
    return f"{source} -> {target}"


def _numbers(fields: Any) -> dict[str, float]:
    if not isinstance(fields, dict) or not all(
        type(one) in (int, float) for one in fields.values()
    ):
        raise TypeError("a link is known by numbers")
    return dict(fields)
