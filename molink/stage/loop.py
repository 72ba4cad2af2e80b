"""The life of a stage: take what has arrived, compute one batch, pass it on.

One thread, blocking. The core decides what to compute: on the head the `HeadScheduler` plans the
next batch when the device is free, elsewhere `StageOrder` picks among the batches that have come.
Decode that comes while a prompt is computed runs between two of its layers.
An event loop beside a compute thread was rejected for this path: each hand-over to an idle core
costs 0.15 to 0.2 ms, twice per hop of every token, while ZeroMQ's own thread reads the network
during a step anyway.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from molink.errors import FrameError
from molink.executor.sampling import DrawnToken
from molink.executor.stage import StageExecutor
from molink.stage.links import StageLinks
from molink.stage.packing import Packing
from molink.stage.tail import EndRules
from molink.stage.work_sources import Pieces, Work, WorkSource
from molink.stage_protocol.messages import StageHealth
from molink.wire.messages import Activations, Forget, Sampled, TokenSample
from molink_scheduler.batch import Batch, BatchClass
from molink_scheduler.events import SendRelease
from molink_scheduler.timing.round_tracker import StageStamp

__all__ = ["StageLoop"]

IDLE_WAIT_S = 0.25
"""How long to sleep when nothing is there: only health reports wait for it, messages wake the
loop."""

STEP_WEIGHT = 0.1
"""Of the newest step in the times that are shown: a glance at the dashboard sees the last
second."""

HEALTH_PERIOD_S = 0.5
"""The dashboard redraws twice a second."""

FREED_REPORT_S = 0.05
"""An idle stage tells this soon that KV was freed: who watches a request end sees its memory go."""


@dataclass(slots=True)
class StageLoop:
    """Runs one stage until its process ends."""

    executor: StageExecutor
    links: StageLinks
    source: WorkSource
    packing: Packing
    end_rules: EndRules
    report: Callable[[StageHealth], None]
    _busy_s: float = 0.0
    _steps: int = 0
    _decode_step_s: float = 0.0
    _prefill_row_s: float = 0.0
    _busy_reported_s: float = 0.0
    _reported_at: float = field(default_factory=time.monotonic)
    _interrupted_s: float = 0.0
    """How long the prefill step under way has stood still for decode."""
    _freed: bool = False
    """Whether KV was freed since the last report."""

    def run(self) -> None:
        """Serve forever; the supervisor ends the process."""
        while True:
            self.take_messages()
            releases, work = self.source.next_work()
            self._release(releases)
            if work is not None:
                self._compute(work)
                self._report_health(HEALTH_PERIOD_S)
            else:
                self._report_health(self._idle_report_s)
                self.links.wait(self._idle_s())

    def _learn_step(self, batch: Batch, elapsed_s: float) -> None:
        """Smooth what GET /cluster shows."""
        if batch.batch_class is BatchClass.DECODE:
            self._decode_step_s += STEP_WEIGHT * (elapsed_s - self._decode_step_s)
        else:
            self._prefill_row_s += STEP_WEIGHT * (elapsed_s / batch.tokens - self._prefill_row_s)

    def _idle_s(self) -> float:
        until = self.source.wait_until
        report_at = self._reported_at + self._idle_report_s
        wake_at = report_at if until is None else min(until, report_at)
        return min(IDLE_WAIT_S, max(0.0, wake_at - time.monotonic()))

    @property
    def _idle_report_s(self) -> float:
        return FREED_REPORT_S if self._freed else HEALTH_PERIOD_S

    def take_messages(self) -> None:
        """Take in everything that has arrived; what cannot be read or carried out is
        dropped."""
        for message in self.links.receive():
            try:
                releases = self.source.take(message)
            except FrameError as error:
                self.links.refuse(error)
            else:
                self._release(releases)

    def _release(self, releases: list[SendRelease]) -> None:
        for command in releases:
            self.executor.release(command.release)
            self._freed = True
            self.end_rules.forget(command.release.request_id)
            if not self.executor.is_tail:
                self.links.send_next(Forget(command.release))

    def _compute(self, work: Work) -> None:
        started = time.monotonic()
        hidden_TD = _input_rows(work.pieces) if work.pieces else None
        is_prefill = work.batch.batch_class is BatchClass.PREFILL
        interrupt = self._interrupt if is_prefill else None
        self._interrupted_s = 0.0
        if not is_prefill:
            self.links.set_decode_result_due(started + self._decode_step_s)
        output = self.executor.step(work.batch, work.token_ids, hidden_TD, interrupt)
        started += self._interrupted_s
        batch = self._stamped(work.batch, time.monotonic() - started)
        if output.hidden_TD is not None:
            self._send_activations(batch, output.hidden_TD)
        else:
            self._send_sampled(batch, output.drawn)
        elapsed_s = time.monotonic() - started
        self.source.computed(work.batch, elapsed_s)
        self._learn_step(work.batch, elapsed_s)
        self._busy_s += elapsed_s
        self._steps += 1

    def _interrupt(self) -> None:
        """Between two layers of a prefill step: compute the decode that has come meanwhile."""
        began, before_s = time.monotonic(), self._interrupted_s
        self.take_messages()
        while True:
            releases, work = self.source.next_decode()
            self._release(releases)
            if work is None:
                break
            self._compute(work)
        self._interrupted_s = before_s + time.monotonic() - began

    def _stamped(self, batch: Batch, step_s: float) -> Batch:
        if batch.batch_class is not BatchClass.DECODE:
            return batch
        stamp = StageStamp(step_s, self.links.next_rate_bytes_per_s)
        return replace(batch, stamps=(*batch.stamps, stamp))

    def _send_activations(self, batch: Batch, hidden_TD: torch.Tensor) -> None:
        self._forecast_decode()
        header, buffer = self.packing.pack(hidden_TD, batch.codec)
        self.links.send_next(Activations(batch, header, buffer), batch.batch_class)

    def _forecast_decode(self) -> None:
        """When the next stage's link will carry decode again: its arrival here and one step."""
        due_at = self.source.clock.due_at(time.monotonic())
        self.links.set_next_decode_due(None if due_at is None else due_at + self._decode_step_s)

    def _send_sampled(self, batch: Batch, drawn: Sequence[DrawnToken]) -> None:
        """To the head, which starts the next round, then a copy to the coordinator."""
        self.end_rules.admit(batch.admissions)
        samples = tuple(
            TokenSample(
                token.request_id,
                token.token_id,
                self.end_rules.judge(token.request_id, token.token_id),
                token.logprob,
                token.top,
            )
            for token in drawn
        )
        bare = tuple(TokenSample(s.request_id, s.token_id, s.finish) for s in samples)
        self.links.send_next(
            Sampled(batch.batch_class, batch.micro_batch, batch.spans, bare, batch.stamps)
        )
        if samples:
            copy = Sampled(batch.batch_class, batch.micro_batch, (), samples)
            self.links.send_coordinator(copy)

    def _report_health(self, period_s: float) -> None:
        """Report, unless the last report is less than `period_s` ago."""
        now = time.monotonic()
        if now - self._reported_at < period_s:
            return
        self._freed = False
        busy_share = (self._busy_s - self._busy_reported_s) / (now - self._reported_at)
        self._reported_at, self._busy_reported_s = now, self._busy_s
        running, waiting = self.source.counts or (None, None)
        self.report(
            StageHealth(
                kv_tokens_used=self.executor.kv.tokens_used,
                busy_s=self._busy_s,
                busy_share=round(busy_share, 3),
                steps=self._steps,
                requests_running=running,
                requests_waiting=waiting,
                frames_refused=self.links.frames_refused,
                packed=self.packing.packed,
                unpacked=self.packing.unpacked,
                bytes_saved=self.packing.bytes_saved,
                decode_round_s=self.source.clock.round_s,
                micro_batch_count=self.source.micro_batch_count,
                decode_step_s=self._decode_step_s,
                prefill_row_s=self._prefill_row_s,
                links=self.links.reports(),
            )
        )


def _input_rows(pieces: Pieces) -> torch.Tensor:
    """[T, D] of the pieces laid end to end."""
    rows = [piece.work[piece.start : piece.end] for piece in pieces]
    return rows[0] if len(rows) == 1 else torch.cat(rows)
