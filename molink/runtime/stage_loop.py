"""The life of a stage: take what has arrived, compute one batch, pass it on.

One thread, blocking. The core decides what to compute: on the head the `HeadScheduler` plans the
next batch when the device is free, elsewhere `StageOrder` picks among the batches that have come.
An event loop beside a compute thread was rejected for this path: each hand-over to an idle core
costs 0.15 to 0.2 ms, twice per hop of every token, while ZeroMQ's own thread reads the network
during a step anyway.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from molink.executor.sampling import DrawnToken
from molink.executor.stage import StageExecutor
from molink.runtime.stage_links import StageLinks
from molink.runtime.supervision import StageHealth
from molink.runtime.tail import EndRules
from molink.runtime.tensor_buffers import tensor_from_buffer, tensor_to_buffer
from molink.runtime.work_sources import Pieces, Work, WorkSource
from molink.wire.messages import Activations, Forget, Sampled, TokenSample
from molink_scheduler.batch import Batch
from molink_scheduler.events import SendRelease

__all__ = ["StageLoop"]

IDLE_WAIT_S = 0.25
"""How long to sleep when nothing is there: only health reports wait for it, messages wake the
loop."""

HEALTH_PERIOD_S = 0.5
"""The dashboard redraws twice a second."""


@dataclass(slots=True)
class StageLoop:
    """Runs one stage until its process ends."""

    executor: StageExecutor
    links: StageLinks
    source: WorkSource
    end_rules: EndRules
    report: Callable[[StageHealth], None]
    _busy_s: float = 0.0
    _steps: int = 0
    _reported_at: float = 0.0

    def run(self) -> None:
        """Serve forever; the supervisor ends the process."""
        while True:
            self.take_messages()
            releases, work = self.source.next_work()
            self._release(releases)
            if work is not None:
                self._compute(work)
            else:
                self.links.wait(self._idle_s())
            self._report_health()

    def _idle_s(self) -> float:
        until = self.source.wait_until
        if until is None:
            return IDLE_WAIT_S
        return min(IDLE_WAIT_S, max(0.0, until - time.monotonic()))

    def take_messages(self) -> None:
        """Take in everything that has arrived."""
        for message in self.links.receive():
            self._release(self.source.take(message))

    def _release(self, releases: list[SendRelease]) -> None:
        for command in releases:
            self.executor.release(command.release)
            self.end_rules.forget(command.release.request_id)
            if not self.executor.is_tail:
                self.links.send_next(Forget(command.release))

    def _compute(self, work: Work) -> None:
        started = time.monotonic()
        hidden_TD = _input_rows(work.pieces) if work.pieces else None
        output = self.executor.step(work.batch, work.token_ids, hidden_TD)
        if output.hidden_TD is not None:
            header, buffer = tensor_to_buffer(output.hidden_TD)
            self.links.send_next(Activations(work.batch, header, buffer))
        else:
            self._send_sampled(work.batch, output.drawn)
        elapsed_s = time.monotonic() - started
        self.source.computed(work.batch, elapsed_s)
        self._busy_s += elapsed_s
        self._steps += 1

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
        self.links.send_next(Sampled(batch.batch_class, batch.micro_batch, batch.spans, bare))
        if samples:
            copy = Sampled(batch.batch_class, batch.micro_batch, (), samples)
            self.links.send_coordinator(copy)

    def _report_health(self) -> None:
        now = time.monotonic()
        if now - self._reported_at < HEALTH_PERIOD_S:
            return
        self._reported_at = now
        running, waiting = self.source.counts or (None, None)
        self.report(
            StageHealth(
                kv_tokens_used=self.executor.kv.tokens_used,
                busy_s=self._busy_s,
                steps=self._steps,
                requests_running=running,
                requests_waiting=waiting,
                frames_refused=self.links.frames_refused,
                links=self.links.health(),
            )
        )


def _input_rows(pieces: Pieces) -> torch.Tensor:
    """[T, D] of the pieces laid end to end."""
    rows = [
        tensor_from_buffer(piece.work.tensor, piece.work.buffer)[piece.start : piece.end]
        for piece in pieces
    ]
    return rows[0] if len(rows) == 1 else torch.cat(rows)
