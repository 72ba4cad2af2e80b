"""A trace made here: lengths like those of a public chat service, arrivals at random.

Azure's conversation trace of 2023, cut to 2,048 tokens in and 1,024 out, has means of 763 and 232,
and long questions get longer answers (0.46 between the logarithms). A pair of correlated lognormal
lengths, drawn again while one is over its limit, has the same means; arrivals are Poisson. What it
does not have is that trace's shape in detail (a hump at 1,000 tokens in, another at 400 out) and
its bursts. It ships because the trace itself is somebody else's data.
"""

import math
from random import Random

from molink.workload.trace import TraceRequest

__all__ = ["INPUT_TOKENS_MAX", "OUTPUT_TOKENS_MAX", "generate_trace"]

INPUT_TOKENS_MAX = 2048
OUTPUT_TOKENS_MAX = 1024
"""The published comparison's cut of the trace, kept so that loads can be compared."""

INPUT_LOG_MEAN, INPUT_LOG_DEVIATION = 6.610, 0.83
OUTPUT_LOG_MEAN, OUTPUT_LOG_DEVIATION = 5.278, 0.84
CORRELATION = 0.46
"""Deviations and correlation are the cut trace's; the log means are those that give its means of
763 and 232 once pairs over a limit are drawn again."""


def generate_trace(random: Random, rate_per_s: float, duration_s: float) -> list[TraceRequest]:
    """Poisson arrivals at `rate_per_s` until `duration_s`."""
    requests: list[TraceRequest] = []
    start_s = random.expovariate(rate_per_s)
    while start_s < duration_s:
        requests.append(TraceRequest(start_s, *_lengths(random)))
        start_s += random.expovariate(rate_per_s)
    return requests


def _lengths(random: Random) -> tuple[int, int]:
    while True:
        first, second = random.gauss(0, 1), random.gauss(0, 1)
        second = CORRELATION * first + math.sqrt(1 - CORRELATION**2) * second
        input_tokens = round(math.exp(INPUT_LOG_MEAN + INPUT_LOG_DEVIATION * first))
        output_tokens = round(math.exp(OUTPUT_LOG_MEAN + OUTPUT_LOG_DEVIATION * second))
        if 1 <= input_tokens <= INPUT_TOKENS_MAX and 1 <= output_tokens <= OUTPUT_TOKENS_MAX:
            return input_tokens, output_tokens
