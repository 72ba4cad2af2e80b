"""The life of a cluster as a trace: a track for each stage and link, a row for each request.

Stages tell of their steps in their health reports, on their own clocks. Of a report that comes soon
the age is small, so the smallest difference between the two clocks over the first reports is nearly
the true one; until it is known steps are kept back. All tracks of one trace then agree to a tenth
of a second or two, and steps of one stage exactly. NTP's exchange was rejected: it would bring
a message that only a trace needs.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from molink.coordinator.reports.cluster_report import RingLink, ring_links
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.ring.ring import COORDINATOR, AgentStage
from molink.errors import ErrorGuard
from molink.serving.timeline import RequestTimeline, RingAttempt
from molink.serving.trace_file import TraceFile
from molink.stage_protocol.health import StageHealth

__all__ = ["ClusterTrace"]

PERIOD_S = 0.5
"""Between two looks: stages report as often."""

CLOCK_REPORTS = 8
"""Reports after which a stage's clock counts as known."""

STEPS_KEPT_MAX = 4096
"""Of one stage, until its clock is known."""

Step = tuple[int, int, bool, float, float]
"""As in `StageHealth.recent_steps`."""


@dataclass(slots=True)
class _StageTrack:
    """Steps of one stage of one ring, as far as they are told."""

    behind_s: float = float("inf")
    """Our clock less its own, at least."""
    reports: int = 0
    last_report: int = -1
    last_step: int = 0
    kept: list[Step] = field(default_factory=list)

    def take(self, health: StageHealth, heard_at: float) -> None:
        """Take a report into account."""
        if health.progress.reports == self.last_report:
            return
        self.last_report, self.reports = health.progress.reports, self.reports + 1
        if self.reports <= CLOCK_REPORTS:
            self.behind_s = min(self.behind_s, heard_at - health.clock_s)
        new = [step for step in health.recent_steps if step[0] > self.last_step]
        if new:
            self.last_step = new[-1][0]
            self.kept = (self.kept + new)[-STEPS_KEPT_MAX:]

    def ready(self, *, at_the_end: bool) -> list[Step]:
        """Steps that can be told now."""
        if self.reports < CLOCK_REPORTS and not at_the_end:
            return []
        ready, self.kept = self.kept, []
        return ready


@dataclass(slots=True)
class _LinkTrack:
    """What one link had sent at the last look."""

    bytes_sent: int
    at: float


@dataclass(slots=True)
class ClusterTrace:
    """Recorder of what a cluster does into a trace file."""

    service: ClusterService
    trace: TraceFile
    clock: Callable[[], float] = time.monotonic
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Tracing the cluster"))
    _stages: dict[tuple[int, int], _StageTrack] = field(default_factory=dict)
    """By epoch and number of the stage."""
    _links: dict[tuple[int, int, int], _LinkTrack] = field(default_factory=dict)
    """By epoch, source and target."""
    _seq: int = 0

    def __post_init__(self) -> None:
        self.service.request_log.watch(self.request_ended)

    async def run(self) -> None:
        """Record until cancelled, or until the disk is full or the file has its size."""
        try:
            while not self.trace.is_full:
                with self.guard:
                    self.look()
                await asyncio.to_thread(self.trace.write, self.trace.take())
                await asyncio.sleep(PERIOD_S)
            self.service.events.add("trouble", "the trace file has its size and is written no more")
        except OSError as error:
            self._failed(error)

    def close(self) -> None:
        """Write what is left, and end the file; what cannot be written is lost."""
        with self.guard:
            self.look(at_the_end=True)
            for timeline in self.service.request_log.live:
                self.request_ended(timeline)
        try:
            self.trace.close()
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        """Tell it once."""
        if not self.trace.is_full:
            self.trace.is_full = True
            self.service.events.add("trouble", f"the trace cannot be written: {error.strerror}")

    def look(self, *, at_the_end: bool = False) -> None:
        """Take in what stages and links have reported, and what has happened."""
        for ring in self.service.rings:
            client = ring.client
            for index, stage in enumerate(client.ring.stages):
                self._look_at_stage(client.ring.epoch, index, stage, at_the_end=at_the_end)
            for link in ring_links(client.ring, client.links.report):
                self._look_at_link(client.ring.epoch, client.ring.stages, link)
        present = {ring.client.ring.epoch for ring in self.service.rings}
        self._stages = {key: one for key, one in self._stages.items() if key[0] in present}
        self._links = {key: one for key, one in self._links.items() if key[0] in present}
        for event in self.service.events.after(self._seq):
            args = {"kind": event.kind, "node": event.node, "ring": event.ring}
            at = self.clock() - (time.time() - event.unix_s)
            self.trace.instant("cluster", "events", event.text, at, args)
        self._seq = self.service.events.last_seq

    def _look_at_stage(
        self, epoch: int, index: int, stage: AgentStage, *, at_the_end: bool
    ) -> None:
        if (health := stage.health) is None:
            return
        track = self._stages.setdefault((epoch, index), _StageTrack())
        track.take(health, stage.node.heard_at)
        for _, rows, is_decode, ended_at, took_s in track.ready(at_the_end=at_the_end):
            began_at = ended_at - took_s + track.behind_s
            name = f"{'decode' if is_decode else 'prefill'} {rows}"
            self.trace.slice("stages", stage.name, name, began_at, took_s, {"rows": rows})
        busy = {"busy": health.busy_share}
        self.trace.counter("stages", f"{stage.name} busy share", self.clock(), busy)

    def _look_at_link(self, epoch: int, stages: Any, link: RingLink) -> None:
        report, now = link.report, self.clock()
        source, target = (
            "coordinator" if end == COORDINATOR else stages[end].name
            for end in (link.source, link.target)
        )
        track = self._links.setdefault(
            (epoch, link.source, link.target), _LinkTrack(report.bytes_sent, now)
        )
        sent = report.bytes_sent - track.bytes_sent
        name, queued = f"{source} to {target}", report.decode_queued_bytes
        if sent > 0:
            args = {"bytes": sent, "rate_mbps": report.rate_mbps, "rtt_ms": report.rtt_ms}
            self.trace.slice("links", name, f"{sent:,} bytes", track.at, now - track.at, args)
            track.bytes_sent = report.bytes_sent
        track.at = now
        waiting = {"decode": float(queued), "prompts": float(report.prefill_queued_bytes)}
        self.trace.counter("links", f"{name} waiting bytes", now, waiting)

    def request_ended(self, timeline: RequestTimeline) -> None:
        """Tell of a request, from its arrival to its end or to now."""
        row = f"{timeline.arrival.request_id} {timeline.choice} {timeline.arrival.at}"
        end = timeline.finished_at or self.clock()
        name = f"request {timeline.arrival.request_id}"
        told = {
            "prompt_tokens": timeline.prompt_tokens,
            "tokens": timeline.tokens,
            "finish_reason": timeline.finish_reason,
            "error": timeline.error,
        }
        self.trace.begin("requests", row, name, timeline.arrival.at, told)
        for attempt in timeline.attempts:
            self._attempt(row, attempt, end)
        self.trace.end("requests", row, name, end)

    def _attempt(self, row: str, attempt: RingAttempt, end: float) -> None:
        nodes = ", ".join(stage.node for stage in attempt.stages)
        name, end = f"ring {attempt.ring}: {nodes}", attempt.ended_at or end
        why = {"tokens": attempt.tokens, "moved_because": attempt.moved_because}
        self.trace.begin("requests", row, name, attempt.submitted_at, why)
        for part, begins, ends in _parts(attempt, end):
            self.trace.begin("requests", row, part, begins, {})
            for inner, inner_begins, inner_ends in _within(part, attempt, begins, ends):
                self.trace.begin("requests", row, inner, inner_begins, {})
                self.trace.end("requests", row, inner, inner_ends)
            self.trace.end("requests", row, part, ends)
        self.trace.end("requests", row, name, end)


Part = tuple[str, float, float]
"""Name, when it began and when it ended."""


def _within(part: str, attempt: RingAttempt, begins: float, ends: float) -> Iterator[Part]:
    """Pieces of the prompt within prefill, pauses within decode."""
    if part == "prefill":
        pieces = [one for one in attempt.prompt.pieces if begins <= one.at <= ends]
        until = [*(piece.at for piece in pieces[1:]), ends]
        for piece, end in zip(pieces, until, strict=False):
            yield f"tokens {piece.start} to {piece.end}", piece.at, end
    elif part == "decode":
        for pause in attempt.rounds.pauses:
            yield "pause", pause.at, pause.at + pause.length_s


def _parts(attempt: RingAttempt, end: float) -> Iterator[Part]:
    """Wait, prefill and decode of one attempt, as far as it came."""
    first = attempt.first_token_at
    started = attempt.started_at if attempt.started_at is not None else attempt.submitted_at
    if started > attempt.submitted_at:
        yield "wait", attempt.submitted_at, started
    yield "prefill", started, end if first is None else first
    if first is not None:
        yield "decode", first, end
