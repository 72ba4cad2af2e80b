"""Progress of a stage, and of the shadow of another one, as a stage process reports them."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import MaxLen

SHADOWED_MAX = 256
"""Requests in a shadow's report, 4 KB; of more the others are replayed from their first token."""


@dataclass(frozen=True, slots=True)
class StageProgress:
    """Figures that show whether a stage moves on, and where rows are if the ring does not.

    Rows are counted, not batches, which stages cut and join.
    """

    reports: int = 0
    """Number of this report: an agent that repeats an old one does not make it rise."""
    stalled_s: float = 0.0
    """Seconds since computing moved on: a step began or ended, or came to another layer."""
    rows_in: int = 0
    """Rows that were taken in since the start; on the head, that came back."""
    rows_out: int = 0
    """Rows that were computed since the start."""
    dropped: int = 0
    """Messages of the previous stage that could not be read, or not be carried out."""
    round_waits_s: float = 0.0
    """Seconds since the oldest micro-batch under way has left; 0: none is. Only on the head."""
    prompt_waits_s: float = 0.0
    """Longest time that rows of a prompt are under way and none has come back; 0: none are. Only on
    the head."""
    previous_silent_s: float = 0.0
    """Seconds that nothing has come from the previous stage, idle links included; 0: not for too
    long."""
    next_silent_s: float = 0.0
    """Seconds that nothing has come from the next stage; 0: not for too long."""


@dataclass(frozen=True, slots=True)
class ShadowProgress:
    """Progress of a shadow: tokens of each request of which it holds KV."""

    epoch: int
    """Epoch of the ring one of whose stages it covers."""
    held: Annotated[tuple[tuple[int, int], ...], MaxLen(SHADOWED_MAX)] = ()
    """Pairs (request, its first tokens of which it holds KV)."""


@dataclass(frozen=True, slots=True)
class ShadowLag:
    """Lag of a shadow behind the stage that sends it rows."""

    tokens: int
    """Rows of running requests that were not sent to it."""
    seconds: float
    """Seconds that it has lacked some of the request that is behind longest."""
