"""Series of the last minutes of a cluster, and the figures that one look cannot give.

Rates come from differences between looks: tokens of the requests, bytes of the links. A stage's
usual step time is learned here as well, so that one which has become slower is seen even where it
never told how long its steps should take.

Pure: time is that of the observations, so that a recording gives the same as the live cluster.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from molink.report.cluster import ClusterReport, RingReport
from molink.report.events import ClusterEvent
from molink.report.plain import from_plain
from molink.report.requests import RequestReport

HISTORY_S = 300.0
"""Five minutes: long enough for a p95, short enough that what is shown is now."""

SAMPLES_MAX = 3000
"""Ten a second over all of it; a clock that stands still must not fill the memory."""

GAP_S = 15.0
"""Seconds between two looks beyond which their difference is no present rate."""

RECENT_S = 5.0
"""A stage's step time is the median of so long: where a PC does other things as well, single looks
differ by a factor of two."""

USUAL_SAMPLES_MIN = 20
"""Looks at a stage before its usual step time is one: ten seconds."""

USUAL_PERIOD_S = 5.0
"""Seconds between two computations of what is usual: sorting five minutes of a hundred stages takes
milliseconds."""

USUAL_QUANTILE = 0.2
"""Quantile of a stage's step times that counts as usual: for a stage that is slow most of the time
it is the time from before."""

USUAL_LOOKS_MAX = 100
"""Most looks of which what is usual is computed, evenly over all of them: of a thousand stages more
would take a tenth of a second."""

ENDED_MAX = 1000
"""Ended requests that are kept: three a second over all of it."""

EVENTS_MAX = 2000
"""Events that are kept: an evening's, read by a person."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of one look."""

    at_s: float
    tokens_per_s: float | None
    running: int
    waiting: int
    steps_s: Mapping[str, float]
    """Decode step of each stage that has computed, by `stage_key`."""
    link_busy: Mapping[tuple[str, str], float]
    """Part of each link's rate that was used since the look before, 0 to 1."""


@dataclass(slots=True)
class Series:
    """Last minutes of one cluster."""

    state: ClusterReport = field(default_factory=lambda: from_plain(ClusterReport, {}))
    """State as of the last look that succeeded."""
    requests: tuple[RequestReport, ...] | None = None
    """Live ones, then those that have ended, the newest first; None: this server does not list
    them."""
    events: deque[ClusterEvent] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))
    knows_events: bool = False
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    at_s: float = 0.0
    """Time of the last look."""
    answered_at_s: float | None = None
    """Time of the last look that succeeded."""
    trouble: str = ""
    """Reason why the last look failed; empty: it did not."""
    lost_at_s: dict[str, float] = field(default_factory=dict)
    """When each node that is lost was first seen so, by id; nodes that were never seen here are not
    in it."""
    _recent_steps: dict[str, float] = field(default_factory=dict)
    _usual: dict[str, float] = field(default_factory=dict)
    _usual_period: int = -1
    _here: set[str] = field(default_factory=set)
    _ended: deque[tuple[float, RequestReport]] = field(
        default_factory=lambda: deque(maxlen=ENDED_MAX)
    )
    """Ended requests, oldest first, each with when its end was seen."""
    _tokens: dict[tuple[str, int], int] = field(default_factory=dict)
    _bytes: dict[tuple[str, str], int] = field(default_factory=dict)

    def note(
        self,
        at_s: float,
        report: ClusterReport,
        requests: Sequence[RequestReport] | None = None,
        events: Iterable[ClusterEvent] | None = None,
    ) -> None:
        """Take one look into account. `requests` are those that are live or have ended since the
        look before, `events` those since; None: they are not told."""
        self.at_s, self.trouble = at_s, ""
        before_s, self.answered_at_s = self.answered_at_s, at_s
        elapsed_s = None if before_s is None else at_s - before_s
        if elapsed_s is not None and not 0 < elapsed_s <= GAP_S:
            elapsed_s = None
        self.state = report
        if requests is not None:
            self._take_requests(at_s, requests)
        self._take_events(events)
        self._take_losses(at_s)
        self.samples.append(self._sample(at_s, elapsed_s))
        while self.samples[0].at_s < at_s - HISTORY_S:
            self.samples.popleft()
        self._learn_recent(at_s)
        self._learn_usual(at_s)

    def failed(self, at_s: float, trouble: str) -> None:
        """Take into account that a look has failed, and why."""
        self.at_s, self.trouble = at_s, trouble

    @property
    def now_unix_s(self) -> float:
        """Time of the last look by the coordinator's clock, which events have; by the looker's
        where it does not tell."""
        return self.state.unix_s or self.at_s

    def _take_requests(self, at_s: float, seen: Sequence[RequestReport]) -> None:
        known = {one.key for _, one in self._ended}
        ended = [one for one in seen if not one.is_live and one.key not in known]
        # The newest comes first.
        self._ended.extend((at_s, one) for one in reversed(ended))
        live = [one for one in seen if one.is_live]
        self.requests = (*live, *(one for _, one in reversed(self._ended)))

    def _take_events(self, events: Iterable[ClusterEvent] | None) -> None:
        if events is None:
            return
        self.knows_events = True
        for event in events:
            last = self.events[-1] if self.events else None
            # A coordinator that was started anew counts from 1 again; its clock may be set back.
            if last is None or event.seq > last.seq or event.unix_s > last.unix_s:
                self.events.append(event)

    def _take_losses(self, at_s: float) -> None:
        lost = {node.id for node in self.state.nodes if node.state == "lost"}
        self.lost_at_s = {
            one: self.lost_at_s.get(one, at_s)
            for one in lost
            if one in self._here or one in self.lost_at_s
        }
        self._here = {node.id for node in self.state.nodes if node.state not in ("lost", "left")}

    def _sample(self, at_s: float, elapsed_s: float | None) -> Sample:
        steps = {
            stage_key(ring, index): stage.decode_step_s
            for ring in self.state.rings
            for index, stage in enumerate(ring.stages)
            if stage.decode_step_s
        }
        return Sample(
            at_s=at_s,
            tokens_per_s=self._tokens_per_s(elapsed_s),
            running=self.state.running,
            waiting=self.state.waiting,
            steps_s=steps,
            link_busy=self._link_busy(elapsed_s),
        )

    def _tokens_per_s(self, elapsed_s: float | None) -> float | None:
        """Rate of all requests together; a request that was not seen before has begun since."""
        if self.requests is None:
            return None
        before = self._tokens
        self._tokens = {one.key: one.tokens for one in self.requests}
        if elapsed_s is None:
            return None
        new = sum(max(0, n - before.get(key, 0)) for key, n in self._tokens.items())
        return new / elapsed_s

    def _link_busy(self, elapsed_s: float | None) -> dict[tuple[str, str], float]:
        links = [link for ring in self.state.rings for link in ring.links]
        before, self._bytes = self._bytes, {link.ends: link.bytes_sent for link in links}
        if elapsed_s is None:
            return {}
        return {
            link.ends: min(1.0, max(0.0, 8e-6 * sent / elapsed_s / link.rate_mbps))
            for link in links
            if link.rate_mbps and (sent := link.bytes_sent - before.get(link.ends, 1 << 62)) >= 0
        }

    # -- figures ---------------------------------------------------------------------------------

    def tokens_per_s(self) -> list[float]:
        """Rate at each look, oldest first."""
        return [one.tokens_per_s for one in self.samples if one.tokens_per_s is not None]

    def ttfts_s(self) -> list[float]:
        """Seconds to first tokens in the last minutes, in the order in which requests came."""
        return [one.first_token_s for one in self.recent() if one.first_token_s is not None]

    def tpots_s(self) -> list[float]:
        """Mean of each request of the last minutes, in the order in which they came."""
        return [one.tpot_s for one in self.recent() if one.tpot_s is not None]

    def recent(self) -> list[RequestReport]:
        """Requests that came in the last minutes, in that order."""
        ended = [(one.age_s + self.at_s - seen_s, one) for seen_s, one in self._ended]
        live = [(one.age_s, one) for one in self.requests or () if one.is_live]
        aged = [(age_s, one) for age_s, one in (*ended, *live) if age_s <= HISTORY_S]
        return [one for _, one in sorted(aged, key=lambda two: -two[0])]

    def link_busy(self, ends: tuple[str, str]) -> float | None:
        """Part of a link's rate that is used now."""
        return self.samples[-1].link_busy.get(ends) if self.samples else None

    def recent_step_s(self, key: str) -> float | None:
        """Decode step of a stage, now; None: it computes nothing."""
        return self._recent_steps.get(key)

    def usual_step_s(self, key: str) -> float | None:
        """Usual decode step of a stage; None: it was not seen long enough."""
        return self._usual.get(key)

    def _learn_recent(self, at_s: float) -> None:
        times: dict[str, list[float]] = {}
        for sample in reversed(self.samples):
            if sample.at_s < at_s - RECENT_S:
                break
            for key, step_s in sample.steps_s.items():
                times.setdefault(key, []).append(step_s)
        self._recent_steps = {key: statistics.median(seen) for key, seen in times.items()}

    def _learn_usual(self, at_s: float) -> None:
        period = int(at_s // USUAL_PERIOD_S)
        if period == self._usual_period:
            return
        self._usual_period = period
        times: dict[str, list[float]] = {}
        every = 1 + len(self.samples) // USUAL_LOOKS_MAX
        for sample in islice(self.samples, 0, None, every):
            for key, step_s in sample.steps_s.items():
                times.setdefault(key, []).append(step_s)
        self._usual = {
            key: sorted(seen)[int(USUAL_QUANTILE * len(seen))]
            for key, seen in times.items()
            if len(seen) >= USUAL_SAMPLES_MIN
        }


def stage_key(ring: RingReport, index: int) -> str:
    """Key of a stage with its layers, whichever ring it is in."""
    stage = ring.stages[index]
    return f"{stage.node} {stage.layers}"


def percentile(values: Iterable[float], part: float) -> float | None:
    """The value below which this part of the others lies (nearest rank); None of none."""
    ordered: Sequence[float] = sorted(values)
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
