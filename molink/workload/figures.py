"""Figures of what users saw. Pure.

Many values become five: mean, p50, p90, p95 and p99 (`spread`). A request that is compared between
a real ring and a simulated one has `ttft_s`, from when it was asked to its first token, and
`tpot_s`, the mean time between its tokens after the first; then come mean, p50 and p95 over the
requests of one load, and over all (`ALL`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TIME_LABELS = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "gap_s": "gap between tokens",
    "latency_s": "whole answer",
}
"""Names of a load's times in a table."""

PERCENTILES = (50, 90, 95, 99)
SPREAD = ("mean", *(f"p{percent}" for percent in PERCENTILES))
"""Figures of many values."""

ALL = "all"
TIMES = ("ttft_s", "tpot_s")
COLUMNS = ("mean", "p50", "p95")

Figures = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""Figures by load, time and column; None where no request has such a time."""


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """Times of one request as its user saw them, in seconds of one clock."""

    load: str
    input_tokens: int
    output_tokens: int
    asked_s: float
    token_times_s: Sequence[float]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "SeenRequest":
        """Read a request as the real half writes it."""
        return cls(*(data[name] for name in cls.__slots__))

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.token_times_s[0] - self.asked_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time between tokens; None when there is but one."""
        times = self.token_times_s
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def figures_of(requests: Sequence[SeenRequest]) -> Figures:
    """Figures of all requests and of each load; every request has at least one token."""
    loads = dict.fromkeys(request.load for request in requests)
    found = {ALL: _times(requests)}
    if len(loads) > 1:
        found |= {
            load: _times([request for request in requests if request.load == load])
            for load in loads
        }
    return found


def _times(requests: Sequence[SeenRequest]) -> dict[str, dict[str, float | None]]:
    tpots = [request.tpot_s for request in requests]
    values = {
        "ttft_s": [request.ttft_s for request in requests],
        "tpot_s": [tpot for tpot in tpots if tpot is not None],
    }
    spreads = {name: spread(values[name]) for name in TIMES}
    return {name: {column: found[column] for column in COLUMNS} for name, found in spreads.items()}


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` of `ordered` (ascending, not empty) lie, linear between
    neighbours."""
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and percentiles (`SPREAD`); null for all when there is no value."""
    if not values:
        return dict.fromkeys(SPREAD)
    ordered = sorted(values)
    percentiles = {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    return {"mean": sum(ordered) / len(ordered), **percentiles}
