"""Traces in files."""

from collections.abc import Sequence
from pathlib import Path

from molink.errors import UserError
from molink.workload.trace import TraceRequest, read_trace
from molink.workload.trace_mix import INPUT_TOKENS_MAX, OUTPUT_TOKENS_MAX
from molink_sim.scenario import Arrival
from molink_sim.workload.mooncake import read_mooncake

__all__ = ["load_trace"]


def load_trace(
    path: Path,
    *,
    input_tokens_max: int = INPUT_TOKENS_MAX,
    output_tokens_max: int = OUTPUT_TOKENS_MAX,
    jitter_seed: int = 0,
) -> list[Arrival]:
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
        Arrival(one.start_s, one.input_tokens, one.output_tokens)
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
