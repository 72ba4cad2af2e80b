"""What a simulation yields: every request's tokens in time, and how busy stages and links were."""

from dataclasses import dataclass, field

__all__ = ["Activity", "LinkOutcome", "Outcome", "RequestOutcome", "StageOutcome"]


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


@dataclass(frozen=True, slots=True)
class Activity:
    """One bar of the Gantt picture."""

    lane: str
    """`ring 0 stage 1`, `ring 0 link 0`."""
    kind: str
    """`decode` or `prefill`."""
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
    """What left on the link."""


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
