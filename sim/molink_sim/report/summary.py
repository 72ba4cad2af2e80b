"""From an outcome to numbers. Pure.

The names mean what they mean in the live benchmark (`molink.bench.report`) and in the paper's
tables: `ttft_s` from a request's arrival to its first token; `tpot_s` of one request the time from
its first to its last token over the tokens after the first, then averaged over requests, so that a
long answer counts as much as a short one; `gap_s` every single gap between neighbouring tokens of
all requests; `latency_s` from arrival to the last token; `tokens_per_s` the tokens of all counted
requests over the time from the first arrival to the last token.

A run ends, and an overloaded system leaves requests behind. To drop them would flatter it, so an
unfinished request counts for what it got: its first token for TTFT, its tokens for TPOT, gaps and
tokens per second. It has no latency, and one that got nothing has no TTFT: `unfinished` and
`without_token` say how many there are, and where they are many the means above are too low.

A `Sweep` is many runs, each with what it was made with: what curves, heat maps and tables are drawn
from. It is a flat list and not a grid: runs may be missing, several seeds may share a point, and
published values stand beside simulated ones as runs of another `system`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from molink.workload.figures import spread
from molink_sim.outcome import Outcome, RequestOutcome

GAPS_MAX = 1_000_000
"""Gaps that are sorted. Of more only those of every second (third, ...) request count. Their 99th
percentile is as good as known, and 1,000 nodes make 14 million in ten minutes."""

DIGITS = 6
"""Microseconds; what is beyond is noise of the arithmetic."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The single values, in seconds, that the spreads are made of."""

    ttft_s: list[float]
    tpot_s: list[float]
    gap_s: list[float]
    latency_s: list[float]


def samples(outcome: Outcome) -> Samples:
    """The values of all counted requests, in order of arrival."""
    begun = [one for one in outcome.requests if one.token_times_s]
    return Samples(
        ttft_s=[one.token_times_s[0] - one.arrived_s for one in begun],
        tpot_s=[_tpot_s(one.token_times_s) for one in begun if len(one.token_times_s) > 1],
        gap_s=_gaps_s(begun),
        latency_s=[one.token_times_s[-1] - one.arrived_s for one in begun if one.finished],
    )


def _tpot_s(times_s: Sequence[float]) -> float:
    return (times_s[-1] - times_s[0]) / (len(times_s) - 1)


def _gaps_s(begun: Sequence[RequestOutcome]) -> list[float]:
    gaps_count = sum(len(one.token_times_s) - 1 for one in begun)
    step = 1 + gaps_count // GAPS_MAX
    return [
        later - earlier for one in begun[::step] for earlier, later in pairwise(one.token_times_s)
    ]


def summary(outcome: Outcome) -> dict[str, Any]:
    """All numbers of a run, rounded to microseconds, ready for `to_json`.

    `busy_share` is of the counted time, `bytes` what left on the link in it.
    """
    requests, values = outcome.requests, samples(outcome)
    finished = sum(one.finished for one in requests)
    tokens = sum(len(one.token_times_s) for one in requests)
    wall_s = _wall_s(requests)
    found = {
        "ttft_s": spread(values.ttft_s),
        "tpot_s": spread(values.tpot_s),
        "gap_s": spread(values.gap_s),
        "latency_s": spread(values.latency_s),
        "tokens_per_s": tokens / wall_s if wall_s > 0 else 0.0,
        "requests": len(requests),
        "finished": finished,
        "unfinished": len(requests) - finished,
        "without_token": sum(not one.token_times_s for one in requests),
        "generated_tokens": tokens,
        "wall_s": wall_s,
        "duration_s": outcome.duration_s,
        "offered": _offered(outcome),
        "stages": [asdict(one) for one in outcome.stages],
        "links": [asdict(one) for one in outcome.links],
        "events": outcome.events,
    }
    rounded: dict[str, Any] = _rounded(found)
    return rounded


def _wall_s(requests: Sequence[RequestOutcome]) -> float:
    """Seconds from the first arrival to the last token."""
    ends = [one.token_times_s[-1] for one in requests if one.token_times_s]
    return max(ends) - min(one.arrived_s for one in requests) if ends else 0.0


def _offered(outcome: Outcome) -> dict[str, float]:
    """Load that was asked for."""
    count = len(outcome.requests)
    return {
        "rate_per_s": count / outcome.duration_s if outcome.duration_s > 0 else 0.0,
        "input_tokens_mean": sum(one.input_tokens for one in outcome.requests) / max(1, count),
        "output_tokens_mean": sum(one.output_tokens for one in outcome.requests) / max(1, count),
    }


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return round(value, DIGITS)
        case dict():
            return {key: _rounded(one) for key, one in value.items()}
        case list():
            return [_rounded(one) for one in value]
        case _:
            return value


def to_json(value: Any) -> str:
    """The same text for the same value, whatever order its keys were made in."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


Parameter = str | int | float


@dataclass(frozen=True, slots=True)
class Run:
    """Parameters and summary of one run."""

    parameters: Mapping[str, Parameter]
    summary: Mapping[str, Any]
    """Summary that `summary` makes, or a part of it."""

    def figure(self, name: str) -> float | None:
        """A number of the summary by its path, like `ttft_s.mean`; None where there is none."""
        value: Any = self.summary
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return None if value is None else float(value)


@dataclass(frozen=True, slots=True)
class Point:
    """A figure at one value of a parameter, over all runs that have it (several seeds)."""

    x: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """Runs in the order in which they were made."""

    runs: Sequence[Run]

    def values(self, parameter: str) -> list[Parameter]:
        """Values that occur, in the order in which they first do."""
        found = (run.parameters[parameter] for run in self.runs if parameter in run.parameters)
        return list(dict.fromkeys(found))

    def only(self, **wanted: Parameter) -> "Sweep":
        """The runs with these parameters."""
        return Sweep([run for run in self.runs if wanted.items() <= dict(run.parameters).items()])

    def line(self, x: str, figure: str) -> list[Point]:
        """A figure over a numeric parameter, ascending; runs without the figure are left out."""
        found: dict[float, list[float]] = {}
        for run in self.runs:
            value = run.figure(figure)
            if value is not None and x in run.parameters:
                found.setdefault(float(run.parameters[x]), []).append(value)
        return [Point(at, sum(v) / len(v), min(v), max(v)) for at, v in sorted(found.items())]

    def as_json(self) -> list[dict[str, Any]]:
        """Parameters and summary of every run, ready for `to_json`."""
        return [{"parameters": dict(r.parameters), "summary": dict(r.summary)} for r in self.runs]
