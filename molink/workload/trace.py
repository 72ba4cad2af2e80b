"""Traces of requests, who asked for how much and when: read from a CSV file or made here.

Two headers are understood: `TIMESTAMP,ContextTokens,GeneratedTokens`, as Azure publishes its LLM
inference traces, and our own `start_s,input_tokens,output_tokens`. A trace holds lengths only;
prompts are drawn at random when a plan is made of it. Whatever is wrong with a file is a UserError
with the number of its line: a trace that silently lost rows would be another load.

Traces are then made to fit: to a model's length, to a small model's scale, to a rate. One that is
busier than wanted is thinned (each request stays with one probability), so that its bursts stay as
they are; one that is not busy enough is played faster.
"""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice, pairwise
from pathlib import Path
from random import Random

from molink.errors import UserError

ROWS_MAX = 5_000_000
"""A week of a busy service; more is a mistake, and would fill the memory."""

INPUT_TOKENS_MAX = 2048
OUTPUT_TOKENS_MAX = 1024
"""The published comparison's cut of the trace, kept so that loads can be compared."""

INPUT_LOG_MEAN, INPUT_LOG_DEVIATION = 6.610, 0.83
OUTPUT_LOG_MEAN, OUTPUT_LOG_DEVIATION = 5.278, 0.84
CORRELATION = 0.46
"""Deviations and correlation are the cut trace's; the log means are those that give its means of
763 and 232 once pairs over a limit are drawn again."""

START_S = 300.0
"""Second at which a trace begins for us, if it is long enough: in Azure's of 2023 the minutes
before are slow."""

START_SHARE_MAX = 0.1
"""Long enough: these minutes are no more than a tenth of it."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Request of a trace: when it comes, and its lengths."""

    start_s: float
    """Seconds after the trace's beginning."""
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of one kind of trace file, and how it writes times."""

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


# -- made here -------------------------------------------------------------------------------------


def generate_trace(random: Random, rate_per_s: float, duration_s: float) -> list[TraceRequest]:
    """A trace made here: lengths like those of a public chat service, arrivals at random.

    Azure's conversation trace of 2023, cut to 2,048 tokens in and 1,024 out, has means of 763 and
    232, and long questions get longer answers (0.46 between the logarithms). A pair of correlated
    lognormal lengths, drawn again while one is over its limit, has the same means; arrivals are
    Poisson. What it does not have is that trace's shape in detail (a hump at 1,000 tokens in,
    another at 400 out) and its bursts. It ships because the trace itself is not ours to ship.
    """
    requests: list[TraceRequest] = []
    start_s = random.expovariate(rate_per_s)
    while start_s < duration_s:
        requests.append(TraceRequest(start_s, *_lengths(random)))
        start_s += random.expovariate(rate_per_s)
    return requests


def _lengths(random: Random) -> tuple[int, int]:
    while True:
        first, second = random.gauss(0, 1), random.gauss(0, 1)
        # The second Gaussian is mixed with the first, which gives the pair its correlation.
        second = CORRELATION * first + math.sqrt(1 - CORRELATION**2) * second
        input_tokens = round(math.exp(INPUT_LOG_MEAN + INPUT_LOG_DEVIATION * first))
        output_tokens = round(math.exp(OUTPUT_LOG_MEAN + OUTPUT_LOG_DEVIATION * second))
        if 1 <= input_tokens <= INPUT_TOKENS_MAX and 1 <= output_tokens <= OUTPUT_TOKENS_MAX:
            return input_tokens, output_tokens


# -- made to fit -----------------------------------------------------------------------------------


def within(requests: Sequence[TraceRequest], model_len_max: int) -> list[TraceRequest]:
    """The requests that can be served: something in, something out, within model and mix."""
    return [
        request
        for request in requests
        if 1 <= request.input_tokens <= INPUT_TOKENS_MAX
        and 1 <= request.output_tokens <= OUTPUT_TOKENS_MAX
        and request.input_tokens + request.output_tokens <= model_len_max
    ]


def scaled(
    requests: Sequence[TraceRequest], input_scale: float, output_scale: float
) -> list[TraceRequest]:
    """Lengths times a scale, at least 1 where there was something at all."""

    def length(tokens: int, scale: float) -> int:
        return max(1, round(tokens * scale)) if tokens else 0

    return [
        replace(
            request,
            input_tokens=length(request.input_tokens, input_scale),
            output_tokens=length(request.output_tokens, output_scale),
        )
        for request in requests
    ]


def at_rate(
    random: Random, requests: Sequence[TraceRequest], rate_per_s: float, duration_s: float | None
) -> list[TraceRequest]:
    """The requests thinned, or played faster, to `rate_per_s`, cut at `duration_s`."""
    requests = _without_beginning(requests)
    span_s = requests[-1].start_s if requests else 0.0
    if span_s == 0:
        return list(requests)
    own_rate = (len(requests) - 1) / span_s
    if own_rate >= rate_per_s:
        requests = [request for request in requests if random.random() < rate_per_s / own_rate]
    else:
        factor = own_rate / rate_per_s
        requests = [replace(request, start_s=request.start_s * factor) for request in requests]
    return [request for request in requests if duration_s is None or request.start_s < duration_s]


def _without_beginning(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    if not requests:
        return []
    is_long = START_SHARE_MAX * requests[-1].start_s >= START_S
    skip_s = START_S if is_long else 0.0
    return [
        replace(request, start_s=request.start_s - skip_s)
        for request in requests
        if request.start_s >= skip_s
    ]
