"""Ledger of what each node gave: time, tokens x layers, bytes; an SQLite file beside the registry.

Figures are sums over all starts of the coordinator; a node's reports count up from the start of its
stage, so differences between two reports are added, and a report that is less than the one before
begins anew. A node could report too much: tokens are counted here, from what the coordinator itself
handed to users, and only bytes are the node's word, up to what its line could carry meanwhile.

A disk that is full stops nothing: what could not be written is kept and written later, and the sums
are known without asking the disk.
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from molink.control.messages.payloads import NodeState
from molink.control.sqlite_file import cannot_open, open_database
from molink.coordinator.nodes.discrepancies import Sightings, line_mbps
from molink.coordinator.nodes.node import Contribution, Node
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.requests.serving_ring import ServingRing
from molink.errors import ErrorGuard
from molink.stage_protocol.health import StageHealth

LEDGER_FILE = "ledger.sqlite"

LINE_SLACK = 2.0
"""Factor over what a line is believed to carry: a probe of a second may find it busy."""

LOCAL_MBPS = 100_000.0
"""Between processes of one PC."""

LOCKED_S = 0.0
"""Nobody else writes here; should something hold the file all the same, it is tried again."""

PERIOD_S = 10.0
"""What a coordinator that is killed forgets."""

TROUBLE = (
    "Who gave what cannot be written down: is the disk full or gone? It is kept and tried again."
)

MIGRATIONS = (
    """
    CREATE TABLE IF NOT EXISTS contribution (
        node_id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        uptime_s REAL NOT NULL DEFAULT 0,
        token_layers INTEGER NOT NULL DEFAULT 0,
        bytes_sent INTEGER NOT NULL DEFAULT 0
    )
    """,
)
"""Files of before steps were counted have the first table already."""


@dataclass(slots=True)
class Ledger:
    """An open ledger; from one thread at a time."""

    _db: sqlite3.Connection
    _sums: dict[str, Contribution] = field(default_factory=dict)
    """Sums of what nodes gave, by node id, as they are written."""
    _added: list[tuple[str, Contribution]] = field(default_factory=list)
    """Contributions that were added and are not written yet."""
    _sent_before: dict[str, int] = field(default_factory=dict)

    @classmethod
    def open(cls, data_dir: Path) -> "Ledger":
        """Made on first use. Raises UserError when it cannot be used."""
        path = data_dir / LEDGER_FILE
        db = open_database(path, MIGRATIONS, LOCKED_S, may_be_lost=True)
        try:
            db.execute("PRAGMA synchronous=NORMAL")  # A power cut may take what came last.
            names = "node_id, uptime_s, token_layers, bytes_sent"
            rows = list(db.execute(f"SELECT {names} FROM contribution"))
        except sqlite3.Error as error:
            db.close()
            raise cannot_open(path, error) from None
        return cls(db, {row[0]: Contribution(row[1], row[2], row[3]) for row in rows})

    def close(self) -> None:
        """Close the database's file."""
        self._db.close()

    def add(self, node_id: str, name: str, given: Contribution) -> None:
        """Add what a node has given since the last call; within `together`."""
        self._db.execute(
            "INSERT INTO contribution (node_id, name, uptime_s, token_layers, bytes_sent) "
            "VALUES (?, ?, ?, ?, ?) ON CONFLICT (node_id) DO UPDATE SET "
            "name = excluded.name, uptime_s = uptime_s + excluded.uptime_s, "
            "token_layers = token_layers + excluded.token_layers, "
            "bytes_sent = bytes_sent + excluded.bytes_sent",
            (node_id, name, given.uptime_s, given.token_layers, given.bytes_sent),
        )
        self._added.append((node_id, given))

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is added in the block is written at once, or nothing of it."""
        self._added.clear()
        with self._db:  # Knows when SQLite has rolled back by itself, as on a full disk.
            self._db.execute("BEGIN")
            yield
        for node_id, given in self._added:
            self._sums[node_id] = self._sums.get(node_id, Contribution()) + given

    def bytes_since(self, node_id: str, reported: int, most: float) -> int:
        """What a counter that a stage reports has gained since its last report, up to `most`."""
        before = self._sent_before.get(node_id, 0)
        self._sent_before[node_id] = reported
        new = reported - before if reported >= before else reported
        return max(0, min(new, int(most)))

    def all(self) -> Mapping[str, Contribution]:
        """Contributions of every node that has ever given something, as they are written."""
        return dict(self._sums)

    def of(self, node_ids: Iterable[str]) -> Contribution:
        """Contribution of these nodes together."""
        given = (self._sums.get(node_id, Contribution()) for node_id in node_ids)
        return sum(given, Contribution())


@dataclass(slots=True)
class Accounting:
    """Bookkeeper of what nodes give: time, tokens x layers, bytes."""

    ledger: Ledger
    book: NodeBook
    service: ClusterService
    _tokens_before: dict[int, int] = field(default_factory=dict)
    """Tokens that each ring had handed to users at the last look, over all epochs, by its
    number."""
    _at: float = field(default_factory=time.monotonic)
    _counted_at: dict[str, float] = field(default_factory=dict)
    """When each node's bytes were counted last."""
    _unwritten: dict[str, tuple[str, Contribution]] = field(default_factory=dict)
    """By node: its name, and what it has given since the ledger could last be written."""
    _trouble: str = ""
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Writing down who gave what"))
    _writing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def trouble(self) -> str:
        """Why nothing is written down now; empty when it is."""
        return self._trouble

    async def run(self) -> None:
        """Write until cancelled, and once more then. Only the last time is the disk waited for."""
        try:
            while True:
                await asyncio.sleep(PERIOD_S)
                with self.guard:
                    self._add_up(time.monotonic())
                await asyncio.to_thread(self._write)
        finally:
            self.settle(time.monotonic())

    def settle(self, now: float) -> None:
        """Write down what has come since the last call. What cannot be written, on a full disk
        perhaps, is written the next time."""
        with self._writing, self.guard:
            self._add_up(now)
        self._write()

    def _write(self) -> None:
        with self._writing:
            trouble = TROUBLE  # Told only once it has failed: a busy disk takes seconds.
            with self.guard:
                with self.ledger.together():
                    for node_id, (name, given) in self._unwritten.items():
                        self.ledger.add(node_id, name, given)
                self._unwritten.clear()
                trouble = ""
            self._trouble = trouble

    def _add_up(self, now: float) -> None:
        elapsed_s, self._at = now - self._at, now
        tokens, seen = self._new_token_layers(), Sightings.of(list(self.book))
        for node in self.book:
            if not node.is_here:
                continue
            serving = node.state is NodeState.SERVING
            given = Contribution(
                elapsed_s if serving else 0.0,
                tokens.get(node.node_id, 0),
                self._bytes(node, line_mbps(node, seen), now),
            )
            if given != Contribution():
                _, before = self._unwritten.get(node.node_id, ("", Contribution()))
                self._unwritten[node.node_id] = node.name, before + given

    def _new_token_layers(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for ring in self.service.rings:
            tokens = self._new_tokens(ring)
            for stage in ring.client.ring.stages:
                start, end = stage.layers
                found[stage.node.node_id] = tokens * (end - start)
        return found

    def _new_tokens(self, ring: ServingRing) -> int:
        sent = ring.client.tokens_sent
        new = sent - self._tokens_before.get(ring.number, 0)
        self._tokens_before[ring.number] = sent
        return new

    def _bytes(self, node: Node, line_mbps: float, now: float) -> int:
        """The node's word, up to what its line could carry since it was last asked."""
        before = self._counted_at.get(node.node_id, now - PERIOD_S)
        self._counted_at[node.node_id] = now
        mbps = LOCAL_MBPS if node.is_local else LINE_SLACK * line_mbps
        most = (now - before) * mbps * 1e6 / 8
        stage = node.health.stage if node.health is not None else None
        links = stage.links if isinstance(stage, StageHealth) else ()
        return self.ledger.bytes_since(node.node_id, sum(one.bytes_sent for one in links), most)
