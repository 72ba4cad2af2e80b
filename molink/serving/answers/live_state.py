"""State that outlives a coordinator: rings that run, requests under way and answers just ended.

A coordinator that is killed and started again reads here which rings it had, and goes on with the
answers that were being written. It is a SQLite file of its own beside the registry, because it is
written many times a second, holds what users have written, and may be lost without harm to members.

One thread writes. The event loop puts what is to be written into a queue and never waits; what has
come within `FLUSH_S` is one transaction. WAL with synchronous=NORMAL: a killed process loses what
was in the queue, a power cut perhaps the last transactions too, each as a whole. Either way some
tokens are computed again, the same ones, so that an fsync for each is not worth its price.
"""

import asyncio
import json
import sqlite3
import threading
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from molink.control.sqlite_file import open_database
from molink.errors import ControlError
from molink.serving.answer_log import Ending, Place
from molink.serving.answers.kept_answer import KeptAnswer, KeptLog
from molink.serving.answers.state_writer import RETRY_S, Barrier, Statement, StateWriter, Write
from molink.serving.service import GenerationRequest, cache_salt
from molink.serving.token_events import TokenLogprob
from molink.tasks import cancel
from molink_scheduler.request import SamplingParams

FILE_NAME = "live.sqlite"

ANSWER_KEPT_S = 3600.0
"""Seconds for which an ended answer can be read: for a client to come back, not to be an archive of
what users wrote."""

UNFINISHED_KEPT_S = 3600.0
"""A request whose coordinator was away for longer is not gone on with: nobody waits any more."""

TOO_LATE = "The server was away for too long: send the request again."

ANSWERS_MAX, ANSWERS_BYTES_MAX = 10_000, 256 * 2**20
"""Limits on ended answers, beyond which the oldest go; the bytes are also the limit on requests
under way, beyond which a new one is served and not kept. Questions, tokens and log-probabilities
count."""

OWNER_BYTES_MAX = ANSWERS_BYTES_MAX // 4
"""Most bytes of the ended answers of one key."""

MIGRATIONS = (
    """
    CREATE TABLE rings (number INTEGER PRIMARY KEY, ring TEXT NOT NULL);
    CREATE TABLE answers (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL,
        owner TEXT NOT NULL,
        model TEXT NOT NULL,
        created REAL NOT NULL,
        asked TEXT NOT NULL,
        prompt BLOB NOT NULL,
        sampling TEXT NOT NULL,
        priority INTEGER NOT NULL,
        deadline REAL,
        bytes INTEGER NOT NULL,
        ring INTEGER,
        request INTEGER,
        submitted_tokens INTEGER,
        ended REAL,
        finish_reason TEXT,
        stop_reason TEXT,
        error TEXT,
        UNIQUE (owner, id)
    );
    CREATE TABLE tokens (
        answer INTEGER NOT NULL,
        first INTEGER NOT NULL,
        came REAL NOT NULL,
        ids BLOB NOT NULL,
        logprobs TEXT,
        PRIMARY KEY (answer, first)
    ) WITHOUT ROWID
    """,
)
"""Times are seconds since 1970."""

ANSWER_COLUMNS = (
    "number, id, owner, created, asked, prompt, sampling, priority, deadline, ring, request, "
    "submitted_tokens, ended, finish_reason, stop_reason, error"
)

_SAMPLING: TypeAdapter[SamplingParams] = TypeAdapter(SamplingParams)


_FORGET = "DELETE FROM answers WHERE owner = ? AND id = ?"
_BEGIN = (
    "INSERT INTO answers (number, id, owner, asked, prompt, sampling, priority, deadline, bytes, "
    "model, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(slots=True)
class LiveState:
    """Open file of what is live. Made by `open`."""

    path: Path
    _reader: sqlite3.Connection
    _writer: StateWriter
    _model: str
    _next_number: int
    _open_bytes: dict[int, int] = field(default_factory=dict)
    """Bytes of each request under way, by its number."""
    _going_on: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    """Tasks that go on with answers of an earlier coordinator, by their numbers."""
    _reading: threading.Lock = field(default_factory=threading.Lock)
    _is_frozen: bool = False

    @classmethod
    def open(cls, data_dir: Path, model: str, now: float) -> "LiveState":
        """The file in a data folder, made where there is none; what is too old, or of another
        model, is dropped. Raises UserError when it cannot be opened."""
        path = data_dir / FILE_NAME
        db = open_database(path, MIGRATIONS, may_be_lost=True)
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA secure_delete = ON")
        _begin_anew(db, model, now)
        _prune(db, now)
        last = db.execute("SELECT max(number) FROM answers").fetchone()[0] or 0
        writer = StateWriter(db, _prune)
        return cls(path, open_database(path, MIGRATIONS, may_be_lost=True), writer, model, last + 1)

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._writer.close()
        with self._reading:
            self._reader.close()

    def freeze(self) -> None:
        """Take nothing in of answers any more: what ends now ends because this coordinator does,
        and the next one goes on with it."""
        self._is_frozen = True

    @property
    def trouble(self) -> str:
        """Why nothing is written now; empty when it is."""
        return self._writer.trouble

    # -- rings -----------------------------------------------------------------------------------

    def keep_ring(self, number: int, ring: str) -> None:
        """Keep what a later coordinator needs to take a ring over."""
        self._writer.put(Statement("INSERT OR REPLACE INTO rings VALUES (?, ?)", (number, ring)))

    def drop_ring(self, number: int) -> None:
        """Forget a ring that has ended."""
        self._writer.put(Statement("DELETE FROM rings WHERE number = ?", (number,)))

    def rings(self) -> list[tuple[int, str]]:
        """Numbers of the rings of an earlier coordinator, and what it has kept of each."""
        with self._reading:
            rows = self._reader.execute("SELECT number, ring FROM rings ORDER BY number")
            return [(int(number), str(ring)) for number, ring in rows]

    # -- answers ---------------------------------------------------------------------------------

    def log(
        self,
        answer_id: str,
        owner: str,
        asked: str,
        request: GenerationRequest,
        deadline: float | None = None,
    ) -> KeptLog | None:
        """Log of a request, which is kept once it has begun; None when too much is kept. One of the
        same owner and id is forgotten then. `deadline`: in seconds since 1970."""
        prompt = array("i", request.prompt_token_ids).tobytes()
        sampling = _SAMPLING.dump_json(request.sampling).decode()
        size = len(asked) + len(prompt) + len(sampling)
        if sum(self._open_bytes.values()) + size > ANSWERS_BYTES_MAX:
            return None
        number, self._next_number = self._next_number, self._next_number + 1
        figures = request.priority, deadline, size, self._model
        row = (number, answer_id, owner, asked, prompt, sampling, *figures)
        forget = Statement(_FORGET, (owner, answer_id))
        opening = forget, Statement(_BEGIN, (*row, time.time()))
        return KeptLog(number, self._put, self._watch, None, opening, size)

    def _watch(self, number: int, size_bytes: int) -> None:
        """Count what a request under way takes; 0: it has ended."""
        if size_bytes:
            self._open_bytes[number] = size_bytes
        else:
            self._open_bytes.pop(number, None)

    def unfinished(self) -> list[GenerationRequest]:
        """Requests that an earlier coordinator did not end, to be gone on with."""
        with self._reading:
            found = _answers(self._reader, "ended IS NULL ORDER BY number", ())
        talk = self._put, self._watch
        return [replace(one.request, log=KeptLog(one.number, *talk, one)) for one in found]

    def going_on(self, request: GenerationRequest, task: asyncio.Task[None]) -> None:
        """Note the task that goes on with a request of `unfinished`, until it has ended."""
        assert isinstance(request.log, KeptLog), "it is one of ours"
        number = request.log.number
        self._going_on[number] = task
        task.add_done_callback(lambda _: self._going_on.pop(number))

    async def stop(self, number: int) -> bool:
        """End an answer of an earlier coordinator because its client wants that; whether the answer
        with this number was one that is gone on with."""
        task = self._going_on.get(number)
        await cancel(task)
        return task is not None

    async def find(self, owner: str, answer_id: str) -> KeptAnswer | None:
        """A request of this owner's, with what there is of its answer; None: there is none. Raises
        ControlError when the file cannot be read, or is behind."""
        return await asyncio.to_thread(self._find, owner, answer_id)

    def forget(self, owner: str, answer_id: str) -> None:
        """Drop an answer of this owner's."""
        self._put(Statement(_FORGET, (owner, answer_id)))

    def _find(self, owner: str, answer_id: str) -> KeptAnswer | None:
        barrier = Barrier()
        self._writer.put(barrier)
        if not barrier.passed.wait(RETRY_S):
            raise ControlError(f"{self.path} is behind: {self.trouble or 'its disk is slow'}.")
        with self._reading:
            found = _answers(self._reader, "owner = ? AND id = ?", (owner, answer_id))
        return found[0] if found else None

    def _put(self, write: Write) -> None:
        if not self._is_frozen:
            self._writer.put(write)


def _begin_anew(db: sqlite3.Connection, model: str, now: float) -> None:
    """Drop what this coordinator cannot go on with."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        others = db.execute("DELETE FROM answers WHERE model != ?", (model,)).rowcount
        if others:
            db.execute("DELETE FROM rings")
        came = "coalesce((SELECT max(came) FROM tokens WHERE answer = number), created)"
        db.execute(
            f"UPDATE answers SET ended = ?, error = ? WHERE ended IS NULL AND {came} < ?",
            (now, TOO_LATE, now - UNFINISHED_KEPT_S),
        )


def _prune(db: sqlite3.Connection, now: float) -> None:
    """Drop what was kept for long enough, and the oldest of what is too much."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("DELETE FROM answers WHERE ended < ?", (now - ANSWER_KEPT_S,))
        ended = "FROM answers WHERE ended IS NOT NULL ORDER BY ended DESC"
        size, kept, too_many = Counter[str](), 0, []
        for number, owner, size_bytes in db.execute(f"SELECT number, owner, bytes {ended}"):
            size[owner] += size_bytes
            over = size.total() > ANSWERS_BYTES_MAX or (owner and size[owner] > OWNER_BYTES_MAX)
            if kept >= ANSWERS_MAX or over:
                too_many.append((number,))
                size[owner] -= size_bytes
            else:
                kept += 1
        db.executemany("DELETE FROM answers WHERE number = ?", too_many)
        db.execute("DELETE FROM tokens WHERE answer NOT IN (SELECT number FROM answers)")


def _answers(db: sqlite3.Connection, which: str, values: tuple[Any, ...]) -> list[KeptAnswer]:
    rows = db.execute(f"SELECT {ANSWER_COLUMNS} FROM answers WHERE {which}", values).fetchall()
    answers = (_answer(row) for row in rows)
    return [_with_tokens(db, one) for one in answers if one is not None]


def _answer(row: sqlite3.Row) -> KeptAnswer | None:
    """The answer of a row; None for one of another MoLink, with parameters that are none here."""
    try:
        sampling = _SAMPLING.validate_json(row["sampling"])
    except ValidationError:
        return None
    prompt = array("i", row["prompt"])
    owner, deadline = row["owner"], row["deadline"]
    request = GenerationRequest(
        tuple(prompt),
        sampling,
        owner or None,
        row["priority"],
        _loop_time(deadline),
        cache_salt(None, row["id"]),  # What it had chosen is not kept: it shares with nobody.
    )
    place = None
    if row["ring"] is not None:
        place = Place(row["ring"], row["request"], row["submitted_tokens"])
    ending = None
    if row["ended"] is not None:
        stop = None if row["stop_reason"] is None else json.loads(row["stop_reason"])
        ending = Ending(row["ended"], row["finish_reason"], stop, row["error"] or "")
    return KeptAnswer(
        row["number"],
        row["id"],
        owner,
        row["created"],
        row["asked"],
        request,
        place=place,
        ending=ending,
    )


def _with_tokens(db: sqlite3.Connection, answer: KeptAnswer) -> KeptAnswer:
    """The tokens that follow each other without a gap."""
    query = "SELECT first, came, ids, logprobs FROM tokens WHERE answer = ? ORDER BY first"
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    came: list[float] = []
    for first, at, ids, told in db.execute(query, (answer.number,)):
        if first != len(token_ids):
            break
        new = array("i", ids)
        figures = json.loads(told) if told else ()
        logprobs += [
            TokenLogprob(token_id, logprob, tuple((one, value) for one, value in top))
            for token_id, (logprob, top) in zip(new, figures, strict=False)
        ]
        token_ids += new
        came.append(at)
    times = (came[0], came[-1]) if came else None
    return replace(answer, token_ids=tuple(token_ids), logprobs=tuple(logprobs), came_unix_s=times)


def _loop_time(unix_s: float | None) -> float | None:
    """A moment since 1970 by the clock that event loops use."""
    return None if unix_s is None else unix_s - time.time() + time.monotonic()
