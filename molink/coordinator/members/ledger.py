"""What each node has given: time, tokens x layers, bytes. One SQLite file beside the registry.

Figures are sums over all starts of the coordinator; a node's reports count up from the start of its
stage, so differences between two reports are added, and a report that is less than the one before
begins anew. A node could report too much: tokens are counted here, from what the coordinator itself
handed to users, and only bytes are the node's word.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["LEDGER_FILE", "Contribution", "Ledger"]

LEDGER_FILE = "ledger.sqlite"

BYTES_STEP_MAX = 10 * 2**30
"""Of one report: what 10 Gbit/s carry in eight seconds. More is not believed."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS contribution (
    node_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    uptime_s REAL NOT NULL DEFAULT 0,
    token_layers INTEGER NOT NULL DEFAULT 0,
    bytes_sent INTEGER NOT NULL DEFAULT 0
)
"""


@dataclass(frozen=True, slots=True)
class Contribution:
    """Of one node, since it first joined."""

    uptime_s: float = 0.0
    token_layers: int = 0
    """Generated tokens times the layers that the node held for them."""
    bytes_sent: int = 0

    def __add__(self, other: "Contribution") -> "Contribution":
        return Contribution(
            self.uptime_s + other.uptime_s,
            self.token_layers + other.token_layers,
            self.bytes_sent + other.bytes_sent,
        )


@dataclass(slots=True)
class Ledger:
    """An open ledger; from one thread."""

    _db: sqlite3.Connection
    _sent_before: dict[str, int] = field(default_factory=dict)

    @classmethod
    def open(cls, data_dir: Path) -> "Ledger":
        """Made on first use."""
        data_dir.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(data_dir / LEDGER_FILE, isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")  # A power cut may take what came last.
        db.execute(_SCHEMA)
        return cls(db)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def add(self, node_id: str, name: str, given: Contribution) -> None:
        """Add what a node has given since the last call."""
        self._db.execute(
            "INSERT INTO contribution VALUES (?, ?, ?, ?, ?) ON CONFLICT (node_id) DO UPDATE SET "
            "name = excluded.name, uptime_s = uptime_s + excluded.uptime_s, "
            "token_layers = token_layers + excluded.token_layers, "
            "bytes_sent = bytes_sent + excluded.bytes_sent",
            (node_id, name, given.uptime_s, given.token_layers, given.bytes_sent),
        )

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is added in the block is written at once, or nothing of it."""
        with self._db:  # Knows when SQLite has rolled back by itself, as on a full disk.
            self._db.execute("BEGIN")
            yield

    def bytes_since(self, node_id: str, reported: int) -> int:
        """Of a counter that a stage reports: what has come since its last report, bounded."""
        before = self._sent_before.get(node_id, 0)
        self._sent_before[node_id] = reported
        new = reported - before if reported >= before else reported
        return max(0, min(new, BYTES_STEP_MAX))

    def all(self) -> Mapping[str, Contribution]:
        """Of every node that has ever given something."""
        rows = self._db.execute(
            "SELECT node_id, uptime_s, token_layers, bytes_sent FROM contribution"
        )
        return {row[0]: Contribution(row[1], row[2], row[3]) for row in rows}
