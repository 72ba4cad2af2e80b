"""Who asked for how much, and when: a trace of requests, read from a CSV file.

Two headers are understood: `TIMESTAMP,ContextTokens,GeneratedTokens`, as Azure publishes its LLM
inference traces, and our own `start_s,input_tokens,output_tokens`. A trace holds lengths only;
prompts are drawn at random when a plan is made of it. Whatever is wrong with a file is a UserError
with the number of its line: a trace that silently lost rows would be another load.
"""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, pairwise
from pathlib import Path

from molink.errors import UserError

__all__ = ["OWN", "ROWS_MAX", "TraceRequest", "in_order", "read_trace"]

ROWS_MAX = 5_000_000
"""A week of a busy service; more is a mistake, and would fill the memory."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace."""

    start_s: float
    """After the trace's beginning."""
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where a kind of file keeps what we need, and how it writes times."""

    start: str
    input_tokens: str
    output_tokens: str
    seconds: Callable[[str], float]

    def __str__(self) -> str:
        return f"{self.start},{self.input_tokens},{self.output_tokens}"


def read_trace(path: Path) -> list[TraceRequest]:
    """All requests of a file, in its order; its first one starts at 0 where times are dates."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            requests = _parse(csv.DictReader(file), path)
    except OSError as error:
        raise UserError(f"cannot read the trace {path} ({error.strerror})") from error
    except (UnicodeDecodeError, csv.Error):
        raise UserError(f"{path} is no CSV file: give a trace with a line of headers") from None
    if not requests:
        raise UserError(f"the trace {path} holds no requests")
    return requests


def _parse(reader: "csv.DictReader[str]", path: Path) -> list[TraceRequest]:
    columns = _columns(reader.fieldnames or (), path)
    rows = [
        (reader.line_num, _request(row, columns, path, reader.line_num))
        for row in islice(reader, ROWS_MAX + 1)
    ]
    requests = in_order(rows, path)
    return requests if columns is OWN or not requests else _from_zero(requests)


def in_order(rows: Sequence[tuple[int, TraceRequest]], path: Path) -> list[TraceRequest]:
    """The requests of numbered lines, if they are not too many and their times never go back."""
    if len(rows) > ROWS_MAX:
        raise UserError(f"{path} has over {ROWS_MAX} rows: cut the trace")
    for (_, earlier), (line, later) in pairwise(rows):
        if later.start_s < earlier.start_s:
            raise UserError(f"{path}, line {line}: times go back; sort the trace by its times")
    return [request for _, request in rows]


def _columns(names: Iterable[str], path: Path) -> _Columns:
    found = {name.strip() for name in names}
    for columns in (AZURE, OWN):
        if found >= {columns.start, columns.input_tokens, columns.output_tokens}:
            return columns
    raise UserError(f"{path} lacks columns: a trace's first line is {AZURE} or {OWN}")


def _request(
    row: Mapping[str, str | None], columns: _Columns, path: Path, line: int
) -> TraceRequest:
    try:
        values = {name.strip(): (value or "").strip() for name, value in row.items() if name}
        start_s = columns.seconds(values[columns.start])
        lengths = [int(values[name]) for name in (columns.input_tokens, columns.output_tokens)]
        if min(lengths) < 0 or not (math.isfinite(start_s) and start_s >= 0):
            raise ValueError
    except ValueError:
        raise UserError(
            f"{path}, line {line}: {columns} must be a time and two whole numbers, none negative"
        ) from None
    return TraceRequest(start_s, *lengths)


def _from_zero(rows: list[TraceRequest]) -> list[TraceRequest]:
    zero_s = rows[0].start_s
    return [TraceRequest(r.start_s - zero_s, r.input_tokens, r.output_tokens) for r in rows]


def _date_s(text: str) -> float:
    """Dates without a zone are UTC: in local time a clock change would run backwards."""
    date = datetime.fromisoformat(text)
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


AZURE = _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", _date_s)
OWN = _Columns("start_s", "input_tokens", "output_tokens", float)
