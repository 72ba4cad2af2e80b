"""Loads that a scenario puts on a ring, and the requests that each stands for.

    streams   answers that decode all the time: `count`, `output_tokens`; `input_tokens` (16)
    prompts   one every so often: `count`, `period_s`, `input_tokens`; `output_tokens` (2)
    poisson   of one length, at random times: `rate`, `duration_s`, `input_tokens`, `output_tokens`
    trace     the mix of `molink bench --trace generated`: `rate`, `duration_s`; `input_scale` and
              `output_scale` (1)

All take `start_s` (0), and those that draw take `seed` (0). Every request has its time and its
lengths before anything runs, so that both halves are asked the very same. A closed loop (who is
answered asks again) would not do: the slower half would be asked less.

Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from molink.config.toml_tables import number, refuse_unknown, text, whole
from molink.errors import UserError
from molink.workload.trace import TraceRequest, generate_trace, scaled

TOKENS_MAX = 1_000_000
"""Most tokens of a prompt or an answer; the model's own limit is lower."""

REQUESTS_MAX = 10_000
"""A real run of so many takes hours."""

SECONDS_MAX = 24 * 3600.0
RATE_MAX = 1000.0
STREAM_EVERY_S = 0.1
"""Streams begin one after the other: prompts that arrive at one moment would be one batch or two by
the accident of a millisecond."""

WARM_UP_PROMPT_TOKENS = 600
"""A second of prefill on a slow link: the estimates stand before anything is counted."""

WARM_UP_OUTPUT_TOKENS = 8
"""The head has seen a few rounds of decode."""


@dataclass(frozen=True, slots=True)
class ScenarioRequest:
    """Request of a scenario: its load, when it is asked, and its lengths."""

    load: str
    start_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """Kind of users, and the requests that they make."""

    name: str
    requests: tuple[TraceRequest, ...]


def requests_of(loads: Sequence[Load]) -> list[ScenarioRequest]:
    """The requests of all loads in order of time."""
    found = [
        ScenarioRequest(load.name, request.start_s, request.input_tokens, request.output_tokens)
        for load in loads
        for request in load.requests
    ]
    return sorted(found, key=lambda request: request.start_s)


def warm_up_tokens(longest: int) -> int:
    """Length of the prompt that warms a ring up, the same in both halves.

    No longer than the longest one to come, which the model can hold.
    """
    return min(WARM_UP_PROMPT_TOKENS, longest)


def read_load(where: str, table: Mapping[str, Any]) -> Load:
    """Read a [[load]]. Raises UserError for the first thing that is wrong."""
    kind = text(where, table, "kind", "")
    if kind not in _KINDS:
        raise UserError(f"A load of {where} has kind = {kind!r}: take one of {', '.join(_KINDS)}.")
    keys, read = _KINDS[kind]
    place = f"the load {kind} of {where}"
    refuse_unknown(place, table, {*keys, "kind", "name", "start_s"})
    start_s = number(place, table, "start_s", 0.0, most=SECONDS_MAX)
    requests = read(place, table)
    if not 1 <= len(requests) <= REQUESTS_MAX:
        raise UserError(f"{place} makes {len(requests)} requests: it must be 1 to {REQUESTS_MAX}.")
    shifted = [
        TraceRequest(start_s + request.start_s, request.input_tokens, request.output_tokens)
        for request in requests
    ]
    return Load(text(place, table, "name", kind), tuple(shifted))


def _streams(where: str, table: Mapping[str, Any]) -> list[TraceRequest]:
    lengths = _lengths(where, table, input_tokens=16)
    count = _count(where, table)
    return [TraceRequest(STREAM_EVERY_S * number, *lengths) for number in range(count)]


def _prompts(where: str, table: Mapping[str, Any]) -> list[TraceRequest]:
    lengths = _lengths(where, table, output_tokens=2)
    period_s = number(where, table, "period_s", most=SECONDS_MAX)
    return [TraceRequest(period_s * place, *lengths) for place in range(_count(where, table))]


def _poisson(where: str, table: Mapping[str, Any]) -> list[TraceRequest]:
    lengths = _lengths(where, table)
    rate, duration_s, random = _random_times(where, table)
    requests: list[TraceRequest] = []
    at_s = random.expovariate(rate)
    while at_s < duration_s and len(requests) <= REQUESTS_MAX:
        requests.append(TraceRequest(at_s, *lengths))
        at_s += random.expovariate(rate)
    return requests


def _trace(where: str, table: Mapping[str, Any]) -> list[TraceRequest]:
    rate, duration_s, random = _random_times(where, table)
    if rate * duration_s > REQUESTS_MAX:
        raise UserError(f"{where} makes more than {REQUESTS_MAX} requests: lower its rate.")
    scales = (number(where, table, f"{key}_scale", 1.0, most=100.0) for key in ("input", "output"))
    return scaled(generate_trace(random, rate, duration_s), *scales)


def _count(where: str, table: Mapping[str, Any]) -> int:
    return whole(where, table, "count", least=1, most=REQUESTS_MAX)


def _lengths(where: str, table: Mapping[str, Any], **defaults: int) -> tuple[int, int]:
    """Tokens in and out; without a default they must be given."""

    def length(key: str) -> int:
        return whole(where, table, key, defaults.get(key), least=1, most=TOKENS_MAX)

    return length("input_tokens"), length("output_tokens")


def _random_times(where: str, table: Mapping[str, Any]) -> tuple[float, float, Random]:
    rate = number(where, table, "rate", least=1e-6, most=RATE_MAX)
    duration_s = number(where, table, "duration_s", most=SECONDS_MAX)
    return rate, duration_s, Random(f"truth {whole(where, table, 'seed', 0, most=2**31)}")


_KINDS = {
    "streams": ({"count", "input_tokens", "output_tokens"}, _streams),
    "prompts": ({"count", "period_s", "input_tokens", "output_tokens"}, _prompts),
    "poisson": ({"rate", "duration_s", "seed", "input_tokens", "output_tokens"}, _poisson),
    "trace": ({"rate", "duration_s", "seed", "input_scale", "output_scale"}, _trace),
}
"""Fields that each kind has, and the reader of those."""
