"""Make a trace fit: to a model's length, to a small model's scale, to a rate. Pure.

A trace that is busier than wanted is thinned (each request stays with one probability), so that
its bursts stay as they are; one that is not busy enough is played faster. The first minutes of a
recorded service are often slow and short, so a long trace starts after them.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from molink.workload.trace import TraceRequest
from molink.workload.trace_mix import INPUT_TOKENS_MAX, OUTPUT_TOKENS_MAX

__all__ = ["at_rate", "scaled", "within"]

START_S = 300.0
"""Where a trace begins for us, if it is long enough: in Azure's of 2023 the minutes before are
slow."""

START_SHARE_MAX = 0.1
"""Long enough: these minutes are no more than a tenth of it."""


def within(requests: Sequence[TraceRequest], model_len_max: int) -> list[TraceRequest]:
    """The requests that can be served: something in, something out, within model and mix."""
    return [
        one
        for one in requests
        if 1 <= one.input_tokens <= INPUT_TOKENS_MAX
        and 1 <= one.output_tokens <= OUTPUT_TOKENS_MAX
        and one.input_tokens + one.output_tokens <= model_len_max
    ]


def scaled(
    requests: Sequence[TraceRequest], input_scale: float, output_scale: float
) -> list[TraceRequest]:
    """Lengths times a scale, at least 1 where there was something at all."""

    def length(tokens: int, scale: float) -> int:
        return max(1, round(tokens * scale)) if tokens else 0

    return [
        replace(
            one,
            input_tokens=length(one.input_tokens, input_scale),
            output_tokens=length(one.output_tokens, output_scale),
        )
        for one in requests
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
        requests = [one for one in requests if random.random() < rate_per_s / own_rate]
    else:
        factor = own_rate / rate_per_s
        requests = [replace(one, start_s=one.start_s * factor) for one in requests]
    return [one for one in requests if duration_s is None or one.start_s < duration_s]


def _without_beginning(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    if not requests:
        return []
    long_enough = START_SHARE_MAX * requests[-1].start_s >= START_S
    skip_s = START_S if long_enough else 0.0
    return [replace(one, start_s=one.start_s - skip_s) for one in requests if one.start_s >= skip_s]
