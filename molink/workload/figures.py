"""What users saw, as numbers, of either half. Pure.

Of every request `ttft_s` from when it was asked to its first token, and `tpot_s` the mean time
between its tokens after the first; then mean, p50 and p95 over the requests of one load, and over
all (`ALL`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from molink.workload.spread import spread

__all__ = ["ALL", "COLUMNS", "TIMES", "Figures", "SeenRequest", "figures_of"]

ALL = "all"
TIMES = ("ttft_s", "tpot_s")
COLUMNS = ("mean", "p50", "p95")

Figures = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""By load, time and column; None where no request has such a time."""


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request as its user saw it, in seconds of one clock."""

    load: str
    input_tokens: int
    output_tokens: int
    asked_s: float
    token_times_s: Sequence[float]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "SeenRequest":
        """As the real half writes it."""
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
    """Of all requests and of each load; every request has at least one token."""
    loads = dict.fromkeys(one.load for one in requests)
    found = {ALL: _times(requests)}
    if len(loads) > 1:
        found |= {load: _times([one for one in requests if one.load == load]) for load in loads}
    return found


def _times(requests: Sequence[SeenRequest]) -> dict[str, dict[str, float | None]]:
    tpots = [one.tpot_s for one in requests]
    values = {
        "ttft_s": [one.ttft_s for one in requests],
        "tpot_s": [tpot for tpot in tpots if tpot is not None],
    }
    spreads = {name: spread(values[name]) for name in TIMES}
    return {name: {column: found[column] for column in COLUMNS} for name, found in spreads.items()}
