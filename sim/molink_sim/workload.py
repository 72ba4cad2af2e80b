"""Workload of a simulated world: who asks for how much, and when.

Traces are read (Azure's CSV, Mooncake's JSONL, our own CSV) with the live benchmark's reader, so
that both refuse the same mistakes. A trace is brought to a rate by thinning it; without one,
arrivals are Poisson's, with no bursts beyond chance. The same seed gives the live benchmark's
requests too (`molink bench --trace FILE --rate R --seed S`), which is what makes the two
comparable.

Thinning keeps each request of a busy trace with one probability, so its bursts stay as they are.
Stretching it instead would make every burst last longer, and the first minutes of a recorded
service, slow and short, would fill the whole run: a trace begins 300 s into its file
(`molink.workload.trace`).

Mooncake (FAST'25) published one JSON object a line, times in milliseconds. Its conversation trace
was recorded with a clock that ticks every 3 s: its requests come ten at a time. Played as it is, it
would measure how a system takes ten prompts at once, which nobody sent; so each request of such a
trace comes up to 3 s later than it says, by a fixed seed. The synthetic trace has times of its own
and keeps them. Lengths only: the hashes of prefix blocks are not read.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any

from molink.errors import UserError
from molink.workload.trace import (
    INPUT_TOKENS_MAX,
    OUTPUT_TOKENS_MAX,
    ROWS_MAX,
    TraceRequest,
    at_rate,
    generate_trace,
    in_order,
    read_trace,
)
from molink_sim.scenario import RequestArrival

__all__ = ["generate", "load_trace", "read_mooncake", "thin"]

ARRIVALS_MAX = 5_000_000
"""Arrivals of one run: 14 hours at 100 requests per second, and about 1 GB of them."""

UNCOVERED_SHARE_MAX = 0.1
UNCOVERED_REQUESTS_MAX = 5.0
"""How much of a run a trace may leave empty at its end: a tenth, or the time of five requests where
they are few; beyond that the load would not be the one asked for."""

FIELDS = ("timestamp", "input_length", "output_length")

BATCH_S = 3.0
"""How often the conversation trace's clock ticks."""

BATCH_REQUESTS_MIN = 2.0
"""Requests for each distinct time from which on a trace came in batches: 5 in the conversation
trace, 1 in the synthetic one."""


def thin(
    arrivals: Sequence[RequestArrival], rate_per_s: float, duration_s: float, seed: int
) -> list[RequestArrival]:
    """Arrivals in `duration_s` seconds of a trace at `rate_per_s`, as the live benchmark has them.

    A trace that is less busy than that is played faster.

    Raises:
        UserError: if the trace ends before the duration, or the rate or duration is no load.
    """
    _check(rate_per_s, duration_s)
    trace = [TraceRequest(one.at_s, one.input_tokens, one.output_tokens) for one in arrivals]
    found = _arrivals(at_rate(Random(f"trace {seed}"), trace, rate_per_s, None))
    ends_s = found[-1].at_s if found else 0.0
    uncovered_s = max(UNCOVERED_SHARE_MAX * duration_s, UNCOVERED_REQUESTS_MAX / rate_per_s)
    if ends_s < duration_s - uncovered_s:
        raise UserError(
            f"the trace lasts {ends_s:.0f} s at {rate_per_s:g} requests/s and not "
            f"{duration_s:g} s: shorten the duration, lower the rate, or draw Poisson arrivals"
        )
    return [one for one in found if one.at_s < duration_s]


def stretch(
    arrivals: Sequence[RequestArrival], rate_per_s: float, duration_s: float
) -> list[RequestArrival]:
    """A trace from its beginning, played so much slower that the whole of it had `rate_per_s`.

    Raises:
        UserError: if the rate or duration is no load.
    """
    _check(rate_per_s, duration_s)
    factor = len(arrivals) / max(1.0, arrivals[-1].at_s) / rate_per_s
    slower = (replace(one, at_s=one.at_s * factor) for one in arrivals)
    return [one for one in slower if one.at_s < duration_s]


def generate(rate_per_s: float, duration_s: float, seed: int) -> list[RequestArrival]:
    """Poisson arrivals with the lengths that ship with the project, as the live benchmark's
    `--trace generated` makes them (`molink.workload.trace`)."""
    _check(rate_per_s, duration_s)
    return _arrivals(generate_trace(Random(f"trace {seed}"), rate_per_s, duration_s))


def _arrivals(requests: Iterable[TraceRequest]) -> list[RequestArrival]:
    return [RequestArrival(one.start_s, one.input_tokens, one.output_tokens) for one in requests]


def _check(rate_per_s: float, duration_s: float) -> None:
    if not (_positive(rate_per_s) and _positive(duration_s)):
        raise UserError(
            f"the rate and the duration must be above 0, not {rate_per_s:g} requests/s for "
            f"{duration_s:g} s"
        )
    if rate_per_s * duration_s > ARRIVALS_MAX:
        raise UserError(
            f"{rate_per_s:g} requests/s for {duration_s:g} s are more than {ARRIVALS_MAX} "
            "requests: lower one of the two"
        )


def _positive(value: float) -> bool:
    return value > 0 and math.isfinite(value)


def load_trace(
    path: Path,
    *,
    input_tokens_max: int = INPUT_TOKENS_MAX,
    output_tokens_max: int = OUTPUT_TOKENS_MAX,
    jitter_seed: int = 0,
) -> list[RequestArrival]:
    """The requests of a trace whose lengths are from 1 to the given limits, in order of time.

    A name that ends in `.jsonl` is Mooncake's format, all else is CSV: Azure's columns or ours.
    `jitter_seed` spreads the arrivals of a Mooncake trace that came in batches.

    Raises:
        UserError: for a file that is no trace, with the number of the line that is wrong, and for
            one that holds no request within the limits.
    """
    mooncake = path.suffix == ".jsonl"
    requests = read_mooncake(path, jitter_seed) if mooncake else read_trace(path)
    found = [
        RequestArrival(one.start_s, one.input_tokens, one.output_tokens)
        for one in requests
        if 1 <= one.input_tokens <= input_tokens_max and 1 <= one.output_tokens <= output_tokens_max
    ]
    if not found:
        raise UserError(_nothing_left(path, requests, input_tokens_max, output_tokens_max))
    return found


def _nothing_left(
    path: Path, requests: Sequence[TraceRequest], input_max: int, output_max: int
) -> str:
    return (
        f"none of the {len(requests)} requests of {path} has 1 to {input_max} tokens in and 1 to "
        f"{output_max} out: raise the limits"
    )


def read_mooncake(path: Path, jitter_seed: int) -> list[TraceRequest]:
    """All requests of a file, in order of time, batches spread by `jitter_seed`."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = enumerate(islice(file, ROWS_MAX + 1), start=1)
            rows = [
                (number, _request(line, path, number)) for number, line in lines if line.strip()
            ]
    except OSError as error:
        raise UserError(f"cannot read the trace {path} ({error.strerror})") from error
    except UnicodeDecodeError:
        raise UserError(f"{path} is no JSONL file: give one JSON object a line") from None
    if not rows:
        raise UserError(f"the trace {path} holds no requests")
    requests = in_order(rows, path)
    return _spread(requests, Random(f"jitter {jitter_seed}")) if _batched(requests) else requests


def _request(line: str, path: Path, number: int) -> TraceRequest:
    try:
        row = json.loads(line)
        timestamp_ms, input_tokens, output_tokens = (_whole(row, name) for name in FIELDS)
    except (ValueError, RecursionError):
        raise UserError(
            f"{path}, line {number}: must be a JSON object in which {', '.join(FIELDS)} are whole "
            "numbers, none negative"
        ) from None
    return TraceRequest(timestamp_ms / 1000, input_tokens, output_tokens)


def _whole(row: Any, name: str) -> int:
    value = row.get(name) if isinstance(row, dict) else None
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(name)
    return value


def _batched(requests: Sequence[TraceRequest]) -> bool:
    times = {one.start_s for one in requests}
    return len(requests) >= BATCH_REQUESTS_MIN * len(times) and len(times) > 1


def _spread(requests: Sequence[TraceRequest], random: Random) -> list[TraceRequest]:
    later = [
        TraceRequest(one.start_s + random.uniform(0, BATCH_S), one.input_tokens, one.output_tokens)
        for one in requests
    ]
    return sorted(later, key=attrgetter("start_s"))
