"""When requests come: a trace brought to a rate, or Poisson arrivals.

Thinning keeps each request of a busy trace with one probability, so its bursts stay as they are.
Stretching it instead would make every burst last longer, and the first minutes of a recorded
service, slow and short, would fill the whole run: a trace begins 300 s into its file
(`molink.workload.trace_fit`). Poisson arrivals have no bursts beyond chance.
"""

import math
from collections.abc import Iterable, Sequence
from random import Random

from molink.errors import UserError
from molink.workload.trace import TraceRequest
from molink.workload.trace_fit import at_rate
from molink.workload.trace_mix import generate_trace
from molink_sim.scenario import Arrival

__all__ = ["generate", "thin"]

ARRIVALS_MAX = 5_000_000
"""Of one run: 14 hours at 100 requests per second, and about 1 GB of them."""

UNCOVERED_SHARE_MAX = 0.1
UNCOVERED_REQUESTS_MAX = 5.0
"""How much of a run a trace may leave empty at its end: a tenth, or the time of five requests where
they are few; beyond that the load would not be the one asked for."""


def thin(
    arrivals: Sequence[Arrival], rate_per_s: float, duration_s: float, seed: int
) -> list[Arrival]:
    """`duration_s` seconds of a trace at `rate_per_s`, the same requests as the live benchmark's.

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


def generate(rate_per_s: float, duration_s: float, seed: int) -> list[Arrival]:
    """Poisson arrivals with the lengths that ship with the project, as the live benchmark's
    `--trace generated` makes them (`molink.workload.trace_mix`)."""
    _check(rate_per_s, duration_s)
    return _arrivals(generate_trace(Random(f"trace {seed}"), rate_per_s, duration_s))


def _arrivals(requests: Iterable[TraceRequest]) -> list[Arrival]:
    return [Arrival(one.start_s, one.input_tokens, one.output_tokens) for one in requests]


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
