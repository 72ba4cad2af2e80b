"""The traces that Mooncake (FAST'25) published: one JSON object a line, times in milliseconds.

The conversation trace was recorded with a clock that ticks every 3 s: its requests come ten at a
time. Played as it is, it would measure how a system takes ten prompts at once, which nobody sent;
so each request of such a trace comes up to 3 s later than it says, by a fixed seed. The synthetic
trace has times of its own and keeps them. Lengths only: the hashes of prefix blocks are not read.
"""

import json
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any

from molink.errors import UserError
from molink.workload.trace import ROWS_MAX, TraceRequest, in_order

__all__ = ["read_mooncake"]

FIELDS = ("timestamp", "input_length", "output_length")

BATCH_S = 3.0
"""How often the conversation trace's clock ticks."""

BATCH_REQUESTS_MIN = 2.0
"""Requests for each distinct time from which on a trace came in batches: 5 in the conversation
trace, 1 in the synthetic one."""


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
