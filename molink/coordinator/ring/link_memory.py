"""Memory of the links between hosts, kept in a file from one ring to the next.

A home link's rate changes by the hour, but rarely tenfold: a link that starts from yesterday's rate
begins with pieces of the right size and need not ramp up from what TCP would dare. Only hosts that
`--hosts` names are remembered, by their addresses; what is on random ports of one machine has none.

The file is read, merged and replaced as a whole, so that two rings of one user can share it: at
worst one of them forgets what the other saw in the same moment.
"""

import asyncio
import json
import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from molink.config.data_dir import state_dir
from molink.errors import FrameError
from molink.wire.schema import Rules, Schema
from molink_scheduler.link.facts import RATE_MAX_BYTES_PER_S, LinkMemory

__all__ = ["ENTRIES_MAX", "KnownLink", "KnownLinks", "LinkMemoryFile", "keep_up_to_date"]

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

FILE_NAME = "link_memory.json"

FILE_BYTES_MAX = 2**20
"""Thirty times what we write; a larger file is not ours."""

WRITE_PERIOD_S = 60.0
"""A ring that is killed loses a minute; a disk is not kept awake by a ring that runs for weeks."""

log = logging.getLogger(__name__)


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
        """Whether it is young enough to be used; one from the future is not."""
        return 0 <= now - self.when <= AGE_S_MAX


KNOWN_LINK = Schema(KnownLink, Rules())


@dataclass(frozen=True, slots=True)
class KnownLinks:
    """Directed links by the addresses that they join."""

    links: Mapping[str, KnownLink] = field(default_factory=dict)

    @classmethod
    def from_fields(cls, fields: Any) -> "KnownLinks":
        """From what JSON holds. Raises FrameError when it is none of ours."""
        if not isinstance(fields, dict):
            raise FrameError("known links are an object")
        return cls({key: KNOWN_LINK.read(one) for key, one in fields.items()})

    def fields(self) -> dict[str, dict[str, float]]:
        """What JSON holds of them."""
        return {key: KNOWN_LINK.write(link) for key, link in self.links.items()}

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


Seen = Iterable[tuple[str, str, KnownLink]]
"""Source, target and state of each link."""


@dataclass(slots=True)
class LinkMemoryFile:
    """Known links on disk; what goes wrong with them is warned of once and costs nothing else."""

    path: Path
    _warned: bool = field(init=False, default=False)

    @classmethod
    def of_user(cls) -> "LinkMemoryFile | None":
        """Where a user's programs keep what they learned; None for a user without a home."""
        try:
            return cls(state_dir() / FILE_NAME)
        except RuntimeError:
            return None

    def read(self, now: float) -> KnownLinks:
        """What is known and not too old; nothing when there is no file, or none of ours."""
        try:
            with self.path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
            if len(content) > FILE_BYTES_MAX:
                raise ValueError("it is too large")
            return KnownLinks.from_fields(json.loads(content)).fresh(now)
        except FileNotFoundError:
            return KnownLinks()
        except (OSError, ValueError, RecursionError, FrameError) as error:
            self._warn(f"cannot be read and is not used, links start from a guess: {error}")
            return KnownLinks()

    def add(self, seen: Seen, now: float) -> None:
        """Merge links into the file."""
        known = self.read(now).updated(seen, now)
        try:
            self._replace(json.dumps(known.fields(), indent=1) + "\n")
        except OSError as error:
            self._warn(f"cannot be written, the next ring will know less: {error.strerror}")

    def _replace(self, text: str) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.path.parent) as directory:
            written = Path(directory) / self.path.name
            written.write_text(text, encoding="utf-8")
            written.replace(self.path)

    def _warn(self, what: str) -> None:
        if not self._warned:
            log.warning("%s %s", self.path, what)
        self._warned = True


async def keep_up_to_date(file: LinkMemoryFile, seen: Callable[[], Seen]) -> None:
    """Write what `seen` returns into the file every minute, and once more when cancelled."""
    try:
        while True:
            await asyncio.sleep(WRITE_PERIOD_S)
            file.add(seen(), time.time())  # A millisecond; in a thread it could outlive the last.
    finally:
        file.add(seen(), time.time())
