"""Outcome of a simulation: every request's tokens in time, and how busy stages and links were."""

import math
from dataclasses import dataclass, field

from molink_scheduler.batch import BatchClass

__all__ = ["Activity", "BusyTimes", "LinkOutcome", "Outcome", "RequestOutcome", "StageOutcome"]


@dataclass(slots=True)
class RequestOutcome:
    """Tokens of one request; times are seconds of virtual time at the coordinator."""

    number: int
    ring: int
    arrived_s: float
    input_tokens: int
    output_tokens: int
    """Number asked for."""
    token_times_s: list[float] = field(default_factory=list)
    finished: bool = False
    refused: bool = False
    """Whether it could never fit the ring's KV; the coordinator turns such a request away."""
    failed: bool = False
    """Whether it ended with an error: its ring was lost, or none was there to take it."""
    losses: int = 0
    """Losses of a stage after which its ring has gone on, or ended."""
    cached_tokens: int = 0
    """Tokens of its prompt that were cached when it began, on the ring that began it last."""
    session: int | None = None
    """Number of the session that it is a turn of."""

    @property
    def ttft_s(self) -> float:
        """Time to its first token; infinite while there is none."""
        return self.token_times_s[0] - self.arrived_s if self.token_times_s else math.inf


@dataclass(frozen=True, slots=True)
class Activity:
    """Bar of the Gantt picture."""

    lane: str
    """Name such as `ring 0 stage 1` or `ring 0 link 0`."""
    kind: str
    """Class of the batch: `decode` or `prefill`."""
    start_s: float
    end_s: float
    rows: int


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """Steps and busy share of one stage over the counted time."""

    ring: int
    stage: int
    busy_share: float
    steps: int


@dataclass(frozen=True, slots=True)
class LinkOutcome:
    """Bytes and busy share of one link over the counted time."""

    ring: int
    link: int
    busy_share: float
    bytes: int
    """Bytes that left on the link."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Requests, stages and links of a run, as they came out."""

    requests: tuple[RequestOutcome, ...]
    """Counted ones: arrived after the warm-up, in order of arrival."""
    stages: tuple[StageOutcome, ...]
    links: tuple[LinkOutcome, ...]
    duration_s: float
    """Counted time: from the warm-up's end to the end of arrivals."""
    events: int
    timeline: tuple[Activity, ...] = ()


@dataclass(slots=True)
class BusyTimes:
    """Busy time of a stage or a link over the counted time, and its bars of the Gantt picture."""

    lane: str
    """Name such as `ring 0 stage 1`."""
    counted_from_s: float
    counted_until_s: float
    timeline: list[Activity] | None = None
    """List where bars are collected, shared by all; None: they are not wanted."""
    busy_s: float = field(init=False, default=0.0)
    count: int = field(init=False, default=0)
    """Steps, or what went over the wire in one piece."""
    size_bytes: int = field(init=False, default=0)

    def add(
        self,
        start_s: float,
        end_s: float,
        batch_class: BatchClass,
        rows: int,
        size_bytes: int = 0,
        *,
        is_new: bool = True,
    ) -> None:
        """It was busy with one thing; counted is what began within the counted time.

        Not `is_new` is the rest of something that was interrupted: busy time, but no further one.
        """
        if self.counted_from_s <= start_s < self.counted_until_s:
            until_s = self.counted_until_s
            self.busy_s += (end_s if end_s < until_s else until_s) - start_s
            self.count += is_new
            self.size_bytes += size_bytes
        if self.timeline is not None:
            self._draw(start_s, end_s, batch_class.name.lower(), rows)

    @property
    def busy_share(self) -> float:
        """Busy share of the counted time."""
        counted_s = self.counted_until_s - self.counted_from_s
        return self.busy_s / counted_s if counted_s > 0 else 0.0

    def _draw(self, start_s: float, end_s: float, kind: str, rows: int) -> None:
        assert self.timeline is not None
        self.timeline.append(Activity(self.lane, kind, start_s, end_s, rows))
