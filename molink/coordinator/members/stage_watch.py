"""Deadlines of one member's progress: while it loads, and while its stage serves.

A heartbeat shows that an agent lives, not that its stage does anything. So what counts is progress:
of a download or of loading a fraction that rises, of a stage that serves a report of its own that
is new and says that computing moves on. A deadline for all of loading was rejected: a download over
a home line honestly takes half an hour, and one that hangs would be waited for as long.

Pure: times are arguments, in seconds on a clock that never jumps.
"""

import math
from dataclasses import dataclass, field

from molink.control.messages.payloads import Profile, StageFact
from molink.stage_protocol.messages import StageHealth
from molink_scheduler.head.prompt_queue import SPAN_TOKENS

__all__ = ["LoadLimits", "LoadWatch", "ReportWatch", "stall_max_s"]

RISE_MIN = 0.01
"""Of a fraction within its deadline: who is slower takes longer than the hour that a ring's members
have to load."""

REPORT_AGE_MAX_S = 10.0
"""A stage reports twice a second, also while it is within a step."""

STALL_MIN_S, STALL_MAX_S = 10.0, 60.0
"""For which a stage may be within one layer of one step: at least, for a PC that swaps, or whose
owner has started a game; and at most, whatever its node has told of its speed."""

STALL_FACTOR = 8.0
"""Times what a layer of a span takes by the node's own measurement."""


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """Longest times without progress while a member loads."""

    download_s: float = 60.0
    """A router that restarts takes less."""
    load_s: float = 120.0
    """A file of several GB on an old disk takes less, as do starting torch and checking what is
    already there."""
    lagging_s: float = 10.0
    """Of one member without which the others could serve, when all of them have loaded."""


@dataclass(slots=True)
class LoadWatch:
    """Watch over one member's loading: how long ago it last made progress."""

    limits: LoadLimits
    began_at: float
    _kind: str = ""
    _fraction: float = 0.0
    """As it was when it last counted as progress..."""
    _progressed_at: float = field(init=False)
    _latest: tuple[str, float] = ("", 0.0)
    """...and as it is now."""
    _rose_at: float = field(init=False)
    """However little."""
    _waited_at: float = -math.inf
    """When the coordinator last made it wait."""

    def __post_init__(self) -> None:
        self._progressed_at = self._rose_at = self.began_at

    def update(self, fact: StageFact | None, now: float) -> None:
        """Take in how far the node is with its present assignment."""
        if fact is None:
            return
        if (fact.kind, fact.fraction) != self._latest:
            self._latest, self._rose_at = (fact.kind, fact.fraction), now
        if fact.kind != self._kind or fact.fraction >= self._fraction + RISE_MIN:
            self._kind, self._fraction, self._progressed_at = fact.kind, fact.fraction, now

    def excuse(self, until: float) -> None:
        """It could not make progress until then: another device of its PC was downloading."""
        self._progressed_at = max(self._progressed_at, until)

    def made_wait(self, until: float) -> None:
        """It could not download until then, or not with the whole line, because of the coordinator:
        it was computing checksums, or was sending to others, or has capped what it sends."""
        if self._kind != "loading":
            self._waited_at = max(self._waited_at, until)
            self.excuse(until)

    def due_at(self) -> float:
        """When it has failed unless there is progress before."""
        is_download = self._kind == "downloading" and self._fraction < 1.0 - RISE_MIN
        limits = self.limits
        return self._progressed_at + (limits.download_s if is_download else limits.load_s)

    def is_lagging(self, now: float) -> bool:
        """Whether nothing at all has risen for so long that others should not wait."""
        if now - self._waited_at < self.limits.download_s:
            return False
        return now - self._rose_at >= self.limits.lagging_s

    def sentence(self, now: float) -> str:
        """What has not gone on, for people."""
        what = "downloaded" if self._kind == "downloading" else "loaded"
        return f"it has {what} nothing for {now - self._progressed_at:.0f} s"


@dataclass(slots=True)
class ReportWatch:
    """Watch over the reports of one stage that serves."""

    stall_max_s: float
    _reports: int | None = None
    _new_at: float = 0.0
    """When the heartbeat arrived that first had the present report."""

    def trouble(self, health: StageHealth | None, heard_at: float) -> str:
        """What is wrong with a stage, as a clause; empty: nothing. `heard_at`: when its node's
        latest heartbeat arrived. Only these age a report: while the broker is away nothing does."""
        reports = health.progress.reports if health is not None else 0
        if reports != self._reports:
            self._reports, self._new_at = reports, heard_at
        age_s = heard_at - self._new_at
        if age_s > REPORT_AGE_MAX_S:
            return f"its stage has reported nothing for {age_s:.0f} s"
        stalled_s = health.progress.stalled_s if health is not None else 0.0
        if stalled_s > self.stall_max_s:
            return f"its stage has computed nothing for {stalled_s:.0f} s"
        return ""


def stall_max_s(profile: Profile | None, span_tokens: int | None) -> float:
    """For how long a stage may be within one layer of one step."""
    if profile is None or profile.steps is None:
        return STALL_MAX_S
    layer_s = profile.steps.prefill_row_s * (span_tokens or SPAN_TOKENS)
    return min(STALL_MAX_S, max(STALL_MIN_S, STALL_FACTOR * layer_s))
