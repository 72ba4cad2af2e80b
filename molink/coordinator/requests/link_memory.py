"""The file in which known links outlive a ring.

It is read, merged and replaced as a whole, so that two rings of one user can share it: at worst one
of them forgets what the other saw in the same moment.
"""

import asyncio
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from molink.coordinator.requests.known_links import KnownLink, KnownLinks

__all__ = ["LinkMemoryFile", "keep_up_to_date"]

FILE_NAME = "link_memory.json"

FILE_BYTES_MAX = 2**20
"""Thirty times what we write; a larger file is not ours."""

WRITE_PERIOD_S = 60.0
"""A ring that is killed loses a minute; a disk is not kept awake by a ring that runs for weeks."""

log = logging.getLogger(__name__)

Seen = Iterable[tuple[str, str, KnownLink]]


@dataclass(slots=True)
class LinkMemoryFile:
    """Known links on disk; what goes wrong with them is warned of once and costs nothing else."""

    path: Path
    _warned: bool = field(init=False, default=False)

    @classmethod
    def of_user(cls) -> "LinkMemoryFile | None":
        """Where a user's programs keep what they learned; None for a user without a home."""
        try:
            root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        except RuntimeError:
            return None
        return cls(Path(root) / "molink" / FILE_NAME)

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
        except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
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
