"""Deadlines of one member's progress: while it loads, and while its stage serves; and its silence.

A heartbeat shows that an agent lives, not that its stage does anything. So what counts is progress:
of a download or of loading a fraction that rises, of a stage that serves a report of its own that
is new and says that computing moves on. A deadline for all of loading was rejected: a download over
a home line honestly takes half an hour, and one that hangs would be waited for as long. But nobody
waits for one that creeps where others would serve sooner: that is told by the rate that it has
shown.

A stage that says nothing any more is silent when two see it that know nothing of each other: a
neighbour, from whom its link gets no answer, and the coordinator, whom none of its own reports
reaches. A neighbour alone may lie, or have a dead line of its own; the coordinator alone may have
lost the broker.

Pure: times are arguments, in seconds on a clock that never jumps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from molink.control.messages.payloads import Profile, StageFact
from molink.stage_protocol.health import RoomOffer, StageHealth
from molink_scheduler.head.prompt_queue import SPAN_TOKENS

RISE_MIN = 0.01
"""Least rise of a loading fraction within its deadline: who is slower takes longer than the hour
that a ring's members have to load."""

REPORT_AGE_MAX_S = 10.0
"""A stage reports twice a second, also while it is within a step."""

REPORTS_MISSED_S = 1.0
"""Two of its reports in a row: for so long the coordinator has got none of a stage that is silent,
and has got one of the neighbour that says so."""

STALL_MIN_S, STALL_MAX_S = 5.0, 60.0
"""For which a stage may be within one layer of one step: at least, for a PC that swaps, whose owner
has started a game, or that compiles a kernel; and at most, whatever its node has told of its
speed."""

STALL_FACTOR = 8.0
"""Times what a layer of a span takes by the node's own measurement."""


@dataclass(frozen=True, slots=True)
class StageFailure:
    """Failure of one stage, as it is held against its node."""

    node_id: str
    reason: str
    """A sentence."""
    about: str = ""
    """Id of the neighbour with which it failed; empty: it failed by itself."""


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """Longest times without progress while a member loads."""

    download_s: float = 60.0
    """A router that restarts takes less."""
    load_s: float = 120.0
    """A file of several GB on an old disk takes less, as do starting torch and checking what is
    already there."""
    lagging_s: float = 10.0
    """Longest wait for one member without which the others, all loaded, could serve."""


@dataclass(slots=True)
class LoadWatch:
    """Watch over one member's loading: how long ago it last made progress."""

    limits: LoadLimits
    began_at: float
    _kind: str = ""
    _fraction: float = 0.0
    """Fraction when it last counted as progress."""
    _progressed_at: float = field(init=False)
    _latest: tuple[str, float] = ("", 0.0)
    """Kind and fraction as last reported."""
    _rose_at: float = field(init=False)
    """However little."""
    _first: tuple[float, float] = (0.0, math.inf)
    """Fraction of the present kind when it had begun to rise, and when that was seen."""
    _waited_at: float = -math.inf
    """When the coordinator last made it wait."""

    def __post_init__(self) -> None:
        self._progressed_at = self._rose_at = self.began_at

    def update(self, fact: StageFact | None, now: float) -> None:
        """Take in how far the node is with its present assignment."""
        if fact is None:
            return
        if fact.kind != self._latest[0] or not self._first[0]:
            self._first = fact.fraction, now
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
        """Time when it has failed unless there is progress before."""
        is_download = self._kind == "downloading" and self._fraction < 1.0 - RISE_MIN
        limits = self.limits
        return self._progressed_at + (limits.download_s if is_download else limits.load_s)

    def is_lagging(self, now: float) -> bool:
        """Whether nothing at all has risen for so long that others should not wait. Who has not
        begun to rise reads files or starts torch: that is for the deadlines."""
        if not 0.0 < self._latest[1] < 1.0:
            return False
        if now - self._waited_at < self.limits.download_s:
            return False
        return now - self._rose_at >= self.limits.lagging_s

    def needs_s(self, now: float) -> float:
        """How much longer it takes at the rate that it has shown; infinite: it goes on no more, 0:
        that is not known, or the coordinator makes it wait."""
        if self.is_lagging(now):
            return math.inf
        fraction, since = self._first
        rose, elapsed_s = self._latest[1] - fraction, now - since
        is_short = elapsed_s < self.limits.lagging_s or not 0.0 < self._latest[1] < 1.0
        if is_short or now - self._waited_at < self.limits.download_s:
            return 0.0
        return (1.0 - self._latest[1]) * elapsed_s / rose if rose > 0 else math.inf

    def sentence(self, now: float) -> str:
        """What has not gone on, for people."""
        what = "downloaded" if self._kind == "downloading" else "loaded"
        return f"it has {what} nothing for {now - self._progressed_at:.0f} s"


@dataclass(slots=True)
class ReportWatch:
    """Watch over the reports of one stage that serves."""

    stall_max_s: float
    _reports: int | None = None
    _first: int | None = None
    """The report that there was when the watch began: of the stage while it joined."""
    new_at: float = 0.0
    """When the heartbeat arrived that first had the present report."""
    joined: tuple[RoomOffer, StageHealth | None] | None = None
    """Offer of room with which it has joined, and its latest report by then, perhaps of the process
    before; None: it has not joined yet."""

    def trouble(self, health: StageHealth | None, heard_at: float) -> str:
        """What is wrong with a stage, as a clause; empty: nothing. `heard_at`: when its node's
        latest heartbeat arrived. Only these age a report: while the broker is away nothing does."""
        reports = health.progress.reports if health is not None else 0
        if self._first is None:
            self._first = reports
        if reports != self._reports:
            self._reports, self.new_at = reports, heard_at
        age_s = heard_at - self.new_at
        if age_s > REPORT_AGE_MAX_S:
            return f"its stage has reported nothing for {age_s:.0f} s"
        stalled_s = health.progress.stalled_s if health is not None else 0.0
        if stalled_s > self.stall_max_s and reports != self._first:
            return f"its stage has computed nothing for {stalled_s:.0f} s"
        return ""


@dataclass(frozen=True, slots=True)
class StageSeen:
    """What is known of one stage of a ring that serves: when, and whom it misses."""

    reported_at: float
    """When its latest report arrived."""
    previous_silent_s: float = 0.0
    next_silent_s: float = 0.0
    """By that report."""

    def missed_for_s(self, silent_s: float, now: float) -> float:
        """Seconds for which it has missed a neighbour; 0: it does not, or is not there itself."""
        age_s = now - self.reported_at
        return silent_s + age_s if silent_s > 0 and age_s < REPORTS_MISSED_S else 0.0


def silences_s(stages: Sequence[StageSeen], now: float) -> list[float]:
    """Seconds for which each stage of a ring was silent, as a neighbour and the coordinator both
    see it; 0: it is not."""
    found = []
    for place, own in enumerate(stages):
        before, behind = stages[place - 1], stages[(place + 1) % len(stages)]
        missed_s = max(
            before.missed_for_s(before.next_silent_s, now),
            behind.missed_for_s(behind.previous_silent_s, now),
        )
        unreported_s = now - own.reported_at
        found.append(min(missed_s, unreported_s) if unreported_s >= REPORTS_MISSED_S else 0.0)
    return found


def stall_max_s(profile: Profile | None, span_tokens: int | None) -> float:
    """Seconds for which a stage may be within one layer of one step."""
    if profile is None or profile.steps is None:
        return STALL_MAX_S
    layer_s = profile.steps.prefill_row_s * (span_tokens or SPAN_TOKENS)
    return min(STALL_MAX_S, max(STALL_MIN_S, STALL_FACTOR * layer_s))
