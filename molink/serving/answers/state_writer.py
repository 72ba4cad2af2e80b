"""Thread that writes to a SQLite file what others put into its queue.

Whoever has something to keep never waits for the disk. What comes within `FLUSH_S` is written as
one transaction, so that a token costs a place in a queue and not a commit. A disk that is full is
tried again; what waits meanwhile is bounded.
"""

import json
import logging
import queue
import sqlite3
import threading
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from molink.serving.token_events import TokenEvent

FLUSH_S = 0.2
"""Seconds of tokens that a killed coordinator has computed again. Each commit writes a page of 4 KB
for each answer under way: with 16 of them 0.3 MB/s, which a disk bears for years."""

QUEUED_MAX = 200_000
"""Writes that wait for a disk that is full or slow; beyond it they are dropped."""

RETRY_S, PRUNE_S = 1.0, 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Statement:
    """Write: one statement of SQL."""

    sql: str
    row: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Write: the next tokens of an answer."""

    number: int
    first: int
    came_unix_s: float
    event: TokenEvent


@dataclass(frozen=True, slots=True)
class Barrier:
    """Barrier between writes: set when all before it are on disk."""

    passed: threading.Event = field(default_factory=threading.Event)


Write = Statement | Tokens | Barrier


class StateWriter:
    """Thread that writes what others put into its queue, in their order."""

    def __init__(
        self, db: sqlite3.Connection, prune: Callable[[sqlite3.Connection, float], None]
    ) -> None:
        """`prune` drops what is too old by now, in seconds since 1970."""
        self.trouble = ""
        self._db, self._prune = db, prune
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._closing, self._hurry = threading.Event(), threading.Event()
        self._pruned_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="live state", daemon=True)
        self._thread.start()

    def put(self, write: Write) -> None:
        """Have it written soon; from any thread."""
        if self._queue.qsize() < QUEUED_MAX:
            self._queue.put(write)
        if isinstance(write, Barrier):
            self._hurry.set()

    def close(self) -> None:
        """Write what waits, then end; a disk that takes nothing is not waited for."""
        self._closing.set()
        self._queue.put(None)
        self._hurry.set()
        self._thread.join()
        self._db.close()

    def _run(self) -> None:
        while True:
            batch = self._next_batch()
            while not self._is_written([one for one in batch if one is not None]):
                if self._closing.wait(RETRY_S):
                    return
            if None in batch:
                return

    def _next_batch(self) -> list[Write | None]:
        """Writes that came until a moment after the first, or until somebody waits for them."""
        batch = [self._queue.get()]
        self._hurry.wait(FLUSH_S)
        if not self._closing.is_set():
            self._hurry.clear()
        while not self._queue.empty():
            batch.append(self._queue.get())
        return batch

    def _is_written(self, batch: list[Write]) -> bool:
        try:
            with self._db:  # Knows when SQLite has rolled back by itself.
                self._db.execute("BEGIN IMMEDIATE")
                _write(self._db, batch)
            self._prune_if_due()
        except sqlite3.Error as error:
            if not self.trouble:
                log.warning("requests under way cannot be written down: %s", error)
            self.trouble = f"Requests under way cannot be written down ({error}): is the disk full?"
            return False
        self.trouble = ""
        for one in batch:
            if isinstance(one, Barrier):
                one.passed.set()
        return True

    def _prune_if_due(self) -> None:
        if time.monotonic() - self._pruned_at >= PRUNE_S:
            self._pruned_at = time.monotonic()
            self._prune(self._db, time.time())


def _write(db: sqlite3.Connection, batch: Iterable[Write]) -> None:
    """All of a batch, within a transaction; the tokens of an answer are one row of it."""
    tokens: dict[int, list[Tokens]] = {}
    for one in batch:
        if isinstance(one, Statement):
            db.execute(one.sql, one.row)
        elif isinstance(one, Tokens):
            tokens.setdefault(one.number, []).append(one)
    rows = [_tokens_row(number, some) for number, some in tokens.items()]
    db.executemany("INSERT OR REPLACE INTO tokens VALUES (?, ?, ?, ?, ?)", rows)
    grown = [(len(ids) + len(logprobs or ""), number) for number, *_, ids, logprobs in rows]
    db.executemany("UPDATE answers SET bytes = bytes + ? WHERE number = ?", grown)


def _tokens_row(number: int, some: list[Tokens]) -> tuple[Any, ...]:
    ids = array("i", [token_id for one in some for token_id in one.event.token_ids]).tobytes()
    logprobs = [(one.logprob, one.top) for each in some for one in each.event.logprobs]
    written = json.dumps(logprobs) if logprobs else None
    return number, some[0].first, some[-1].came_unix_s, ids, written
