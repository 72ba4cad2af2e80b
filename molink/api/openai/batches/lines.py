"""Lines of a batch: its input read as a stream, its answers appended to two files.

What has been answered is read from these two files, so that a line is asked once whatever ends in
between. A line's number is part of the id of its answer.
"""

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from molink.api.body import parse_json_object
from molink.api.errors import NAME_CHARS_SHOWN, ApiError
from molink.json_object import JsonObject
from molink_scheduler.request import PRIORITY_MAX

LINE_BYTES_MAX = 2**20
"""Bytes of a line: a prompt of 128k tokens is 0.6 MB of text."""

CUSTOM_ID_CHARS_MAX = 512

DUPLICATE = "duplicate_custom_id"


class LineError(Exception):
    """Raised for a line that cannot be asked; its text is a sentence for its owner."""

    def __init__(self, code: str, sentence: str, custom_id: str | None = None) -> None:
        super().__init__(sentence)
        self.code, self.custom_id = code, custom_id


@dataclass(frozen=True, slots=True)
class Line:
    """Line that can be asked."""

    number: int
    """Its place in the input, from 1."""
    custom_id: str
    body: JsonObject


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each line that is not blank; of a longer one than LINE_BYTES_MAX one byte
    more than these. Raises OSError."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            rest = raw
            while len(rest) > LINE_BYTES_MAX and not rest.endswith(b"\n"):
                rest = file.readline(LINE_BYTES_MAX + 1)
            if raw.strip():
                yield number, raw.rstrip(b"\r\n")


def parse_line(number: int, raw: bytes, endpoint: str, seen: set[str]) -> Line:
    """The line as it can be asked, in the lowest class. Raises LineError, also for an id in
    `seen`, to which the line's is added."""
    if len(raw) > LINE_BYTES_MAX:
        raise LineError("line_too_long", f"Line {number} is over {LINE_BYTES_MAX} bytes: cut it.")
    try:
        fields = parse_json_object(raw)
    except ApiError as error:
        raise LineError("invalid_json_line", f"Line {number}: {error}") from None
    name = fields.get("custom_id")
    if not isinstance(name, str) or not 0 < len(name) <= CUSTOM_ID_CHARS_MAX:
        raise LineError(
            "invalid_custom_id",
            f"Line {number} needs a 'custom_id' of 1 to {CUSTOM_ID_CHARS_MAX} characters: add it.",
        )
    if name in seen:
        what = f"Line {number} repeats the 'custom_id' {name[:NAME_CHARS_SHOWN]!r}"
        raise LineError(DUPLICATE, f"{what} of an earlier one: change it.", name)
    body = fields.get("body")
    if fields.get("method") != "POST" or fields.get("url") != endpoint:
        what = f"Line {number} must have the 'method' \"POST\" and the batch's endpoint as 'url'"
        raise LineError("mismatched_endpoint", f"{what}: send '{endpoint}'.", name)
    if not isinstance(body, dict) or body.get("stream"):
        what = f"Line {number} needs a 'body' that is an object without 'stream'"
        raise LineError("invalid_body", f"{what}: correct it.", name)
    seen.add(name)
    return Line(number, name, body | {"priority": PRIORITY_MAX})


@dataclass(slots=True)
class AnswerFile:
    """File to which answers are appended, each a line of JSON."""

    path: Path

    def append(self, answer: JsonObject) -> None:
        """Add a line, whole or not at all. Raises OSError, as when the disk is full."""
        left = memoryview(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
        with self.path.open("ab", buffering=0) as file:
            at = file.seek(0, os.SEEK_END)
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(at)
                raise

    def mended(self) -> Iterator[JsonObject]:
        """The answers so far; what a power cut has left of another is cut off."""
        if not self.path.exists():
            return
        whole = 0
        with self.path.open("r+b") as file:
            for raw in file:
                try:
                    answer = json.loads(raw) if raw.endswith(b"\n") else None
                except ValueError:
                    answer = None
                if not isinstance(answer, dict):
                    file.truncate(whole)
                    return
                whole += len(raw)
                yield answer


@dataclass(slots=True)
class Answers:
    """What has been answered of a batch: its output, and what has failed."""

    prefix: str
    """Beginning of the ids of its answers."""
    output: AnswerFile
    errors: AnswerFile
    done: set[int] = field(default_factory=set)
    """Numbers of the lines that have an answer or an error."""
    custom_ids: set[str] = field(default_factory=set)
    """Their ids, but of lines that repeat another's."""
    completed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, batch_id: str, output: Path, errors: Path) -> "Answers":
        """The answers of a batch, as its files have them. Raises OSError."""
        prefix = f"batch_req_{batch_id.removeprefix('batch_')}_"
        answers = cls(prefix, AnswerFile(output), AnswerFile(errors))
        for file in (answers.output, answers.errors):
            for answer_line in file.mended():
                answers._count(answer_line)
        return answers

    @property
    def failed(self) -> int:
        """How many lines have failed."""
        return len(self.done) - self.completed

    def answered(self, line: Line, status: int, request_id: str, body: JsonObject) -> None:
        """Keep what a line was answered. Raises OSError, having kept nothing."""
        response = {"status_code": status, "request_id": request_id, "body": body}
        answer_line = self._answer_line(line.number, line.custom_id) | {"response": response}
        self._keep(answer_line, self.output if status == 200 else self.errors)

    def refused(self, number: int, error: LineError) -> None:
        """Keep why a line has no answer. Raises OSError, having kept nothing."""
        reason = {"code": error.code, "message": str(error)}
        self._keep(self._answer_line(number, error.custom_id) | {"error": reason}, self.errors)

    def _keep(self, answer_line: JsonObject, file: AnswerFile) -> None:
        """Write an answer down, unless its line has one: the first counts. For any thread."""
        with self._lock:
            if _number(answer_line) not in self.done:
                file.append(answer_line)
                self._count(answer_line)

    def _answer_line(self, number: int, custom_id: str | None) -> JsonObject:
        return {
            "id": f"{self.prefix}{number}",
            "custom_id": custom_id,
            "response": None,
            "error": None,
        }

    def _count(self, answer_line: JsonObject) -> None:
        self.done.add(_number(answer_line))
        response, error = answer_line["response"] or {}, answer_line["error"] or {}
        self.completed += response.get("status_code") == 200
        if answer_line["custom_id"] is not None and error.get("code") != DUPLICATE:
            self.custom_ids.add(answer_line["custom_id"])


def _number(answer_line: JsonObject) -> int:
    return int(answer_line["id"].rpartition("_")[2])
