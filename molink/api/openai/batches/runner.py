"""Runner of batches: their lines are asked one after the other, the first deadline first.

A batch ends when each of its lines is in its output or its error file: answered, refused, or not
asked in time. A coordinator that is started again reads both files and goes on behind them.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from molink.api.callers import Caller
from molink.api.openai.batches.idle_room import LINES_MAX
from molink.api.openai.batches.lines import Answers, Line, LineError, parse_line, read_lines
from molink.api.openai.batches.store import KEPT_S, BatchStore, StoredBatch, StoredFile
from molink.errors import ErrorGuard
from molink.json_object import JsonObject
from molink.tasks import cancel, spawn

STEP_S = 0.02
"""Seconds between two steps: a line begins as soon as one before it has."""

RETRY_S = 5.0
"""Seconds until something is written or asked again that failed."""

CHECKED_S = 5.0
"""Seconds between two looks at whether the owner's key still opens something and has tokens."""

ASKED_MAX = 5
"""How often a line is asked that the server refuses for want of room (429, 503)."""

Ask = Callable[[str, JsonObject, Caller], Awaitable[tuple[int, str, JsonObject]]]
"""Asks an endpoint with a body for a caller: status, request id, body."""

UNASKED = {
    "expired": ("batch_expired", "The batch's completion window was over before this line."),
    "cancelled": ("batch_cancelled", "The batch was cancelled before this line was answered."),
    "failed": ("batch_failed", "The key of the batch's owner opens nothing any more."),
}
"""What becomes of lines without an answer, by the status in which their batch ends."""


logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class OpenBatch:
    """Batch whose lines are asked."""

    record: StoredBatch
    caller: Caller | None
    """None: its owner may ask no more."""
    answers: Answers
    lines: Iterator[tuple[int, bytes]]
    """Lines that were not looked at since it was opened."""
    checked_at: float
    """When the owner's right was looked at."""
    asked: set[asyncio.Task[None]] = field(default_factory=set)
    is_read: bool = False
    """Whether there is no further line."""
    rests_until: float = 0.0
    """When its input is read again, after its disk failed."""
    _held: tuple[int, bytes] | None = None
    """A line that was read and is not dealt with, as its refusal could not be written."""

    @property
    def endpoint(self) -> str:
        """Path to which its lines go."""
        return str(self.record.api_object["endpoint"])

    @property
    def expires_at(self) -> float:
        """When its completion window is over."""
        return float(self.record.api_object["expires_at"])

    def next_line(self) -> Line | None:
        """The next line to ask; those that cannot be asked are noted. None: there is none. Raises
        OSError when that cannot be written; the line comes again then."""
        while (held := self._held or next(self.lines, None)) is not None:
            self._held, (number, raw) = held, held
            line = None
            if number not in self.answers.done:
                try:
                    line = parse_line(number, raw, self.endpoint, self.answers.custom_ids)
                except LineError as error:
                    self.answers.refused(number, error)
            self._held = None
            if line is not None:
                return line
        self.is_read = True
        return None

    def refuse_rest(self, status: str) -> None:
        """Note of each line without an answer why it has none. Raises OSError."""
        code, sentence = UNASKED[status]
        path = self.answers.output.path.with_name(self.record.api_object["input_file_id"])
        for number, raw in read_lines(path) if path.exists() else ():
            if number not in self.answers.done:
                name = _custom_id(number, raw, self.endpoint)
                self.answers.refused(number, LineError(code, sentence, name))


def _custom_id(number: int, raw: bytes, endpoint: str) -> str | None:
    try:
        return parse_line(number, raw, endpoint, set()).custom_id
    except LineError as error:
        return error.custom_id


@dataclass(slots=True)
class BatchRunner:
    """Runner of all batches of a store."""

    store: BatchStore
    ask: Ask
    caller_of: Callable[[str], Caller | None]
    """The owner of this id as a caller; None: he may ask no more."""
    wants_more: Callable[[], bool]
    """Whether another line would soon have room."""
    clock: Callable[[], float] = time.time
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever changes the record of a batch that has not ended."""
    _open: dict[str, OpenBatch] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Running batches"))

    def __post_init__(self) -> None:
        self._changed.set()

    def changed(self) -> None:
        """A batch was made, or is to be cancelled."""
        self._changed.set()

    def api_object(self, batch: StoredBatch) -> JsonObject:
        """The batch as its owner reads it, with the lines done so far."""
        opened = self._open.get(batch.batch_id)
        return batch.api_object if opened is None else batch.api_object | _counted(opened)

    async def run(self) -> None:
        """Go on until cancelled; what is under way then is asked again at the next start."""
        try:
            while True:
                pause_s = RETRY_S  # After a full disk, for example.
                with self._guard:
                    await self.step()
                    pause_s = STEP_S
                if not self._open:
                    await self._changed.wait()
                await asyncio.sleep(pause_s)
        finally:
            await cancel(*(task for one in self._open.values() for task in one.asked))

    async def step(self) -> None:
        """Do what is due, and ask at most one line. Raises OSError or sqlite3.Error when something
        cannot be read or written; nothing is lost then."""
        async with self.lock:
            if self._changed.is_set():
                for record in await asyncio.to_thread(self.store.unfinished):
                    await self._take(record)
                self._changed.clear()
            for opened in list(self._open.values()):
                if (status := await self._ending(opened)) is not None:
                    await self._end(opened, status)
        under_way = sum(len(one.asked) for one in self._open.values())
        if under_way < LINES_MAX and self.wants_more():
            await self._ask_next()

    async def _take(self, record: StoredBatch) -> None:
        """Open a batch, or take in what its owner has changed."""
        if (known := self._open.get(record.batch_id)) is not None:
            known.record = record
            return
        path, input_file = self.store.path, record.api_object["input_file_id"]
        outputs = path(output_id(record)), path(error_id(record))
        answers = await asyncio.to_thread(Answers.of, record.batch_id, *outputs)
        caller = await asyncio.to_thread(self.caller_of, record.owner)
        now = self.clock()
        if record.api_object["status"] == "validating":
            record = record.changed(status="in_progress", in_progress_at=int(now))
            await asyncio.to_thread(self.store.save, record)
        lines = read_lines(path(input_file))
        self._open[record.batch_id] = OpenBatch(record, caller, answers, lines, now)

    async def _ending(self, opened: OpenBatch) -> str | None:
        """The status in which a batch ends now; None: it goes on."""
        now = self.clock()
        if opened.record.api_object["status"] == "cancelling":
            return "cancelled"
        if now >= opened.expires_at:
            return "expired"
        if now - opened.checked_at >= CHECKED_S:
            opened.caller = await asyncio.to_thread(self.caller_of, opened.record.owner)
            opened.checked_at = now
        if opened.caller is None:
            return "failed"
        return "completed" if opened.is_read and not opened.asked else None

    async def _ask_next(self) -> None:
        """Ask the next line of the batch that ends first, of owners who have tokens left today."""
        now = self.clock()
        for opened in sorted(self._open.values(), key=lambda one: one.expires_at):
            caller = opened.caller
            if caller is None or not caller.has_tokens:
                continue
            if opened.is_read or opened.rests_until > now:
                continue
            line, opened.rests_until = None, now + RETRY_S
            with self._guard:
                line = await asyncio.to_thread(opened.next_line)
                opened.rests_until = now
            if line is not None:
                task = spawn(self._answered(opened, caller, line))
                opened.asked.add(task)
                task.add_done_callback(opened.asked.discard)
                return

    async def _answered(self, opened: OpenBatch, caller: Caller, line: Line) -> None:
        keep = await self._answer(opened, caller, line)
        while True:  # An answer waits here while the disk is full.
            with self._guard:
                await asyncio.to_thread(keep)
                return
            await asyncio.sleep(RETRY_S)

    async def _answer(self, opened: OpenBatch, caller: Caller, line: Line) -> Callable[[], None]:
        """What keeps the answer to a line."""
        for tries in range(ASKED_MAX):
            try:
                status, name, body = await self.ask(opened.endpoint, line.body, caller)
            except Exception:  # A bug is one line's failure.
                logger.exception("a line of a batch failed unexpectedly")
                failure = LineError("internal_error", "The server failed on it.", line.custom_id)
                return partial(opened.answers.refused, line.number, failure)
            if status not in (429, 503) or tries == ASKED_MAX - 1:
                break
            await asyncio.sleep(RETRY_S)
        return partial(opened.answers.answered, line, status, name, body)

    async def _end(self, opened: OpenBatch, status: str) -> None:
        """Write down what is left, and end the batch."""
        await cancel(*opened.asked)
        if status != "completed":
            await asyncio.to_thread(opened.refuse_rest, status)
        record, now = opened.record, int(self.clock())
        expires = now + (record.api_object.get("output_expires_after") or {}).get("seconds", KEPT_S)
        files, answers = {}, opened.answers
        for name, file, lines in (
            ("output_file_id", answers.output, answers.completed),
            ("error_file_id", answers.errors, answers.failed),
        ):
            if file.path.exists():
                file_id, size = file.path.name, file.path.stat().st_size
                stored = StoredFile(
                    file_id,
                    record.owner,
                    filename=f"{file_id}.jsonl",
                    purpose="batch_output",
                    size=size,
                    lines=lines,
                    created=now,
                    expires=expires,
                )
                await asyncio.to_thread(self.store.add, stored)
                files[name] = file_id
        ended = record.changed(status=status, **{f"{status}_at": now}, **files, **_counted(opened))
        await asyncio.to_thread(self.store.save, ended)
        del self._open[record.batch_id]


def output_id(batch: StoredBatch) -> str:
    """Id of the file with a batch's answers."""
    return f"file-{batch.batch_id.removeprefix('batch_')}-output"


def error_id(batch: StoredBatch) -> str:
    """Id of the file with the lines that a batch has no answer for."""
    return f"file-{batch.batch_id.removeprefix('batch_')}-error"


def _counted(opened: OpenBatch) -> JsonObject:
    total = opened.record.api_object["request_counts"]["total"]
    done = {"completed": opened.answers.completed, "failed": opened.answers.failed}
    return {"request_counts": {"total": total, **done}}
