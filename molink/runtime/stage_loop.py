"""The life of a stage: take what has arrived, compute one batch, pass it on.

One thread, blocking. The core decides what to compute: on the head the `HeadScheduler` plans the
next batch when the device is free, elsewhere `StageOrder` picks among the batches that have come.
An event loop beside a compute thread was rejected for this path: each hand-over to an idle core
costs 0.15 to 0.2 ms, twice per hop of every token, while ZeroMQ's own thread reads the network
during a step anyway.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from molink.executor.sampling import DrawnToken
from molink.executor.stage import StageExecutor
from molink.runtime.stage_links import StageLinks
from molink.runtime.supervision import StageHealth
from molink.runtime.tail import EndRules
from molink.runtime.tensor_buffers import tensor_from_buffer, tensor_to_buffer
from molink.wire.messages import (
    Activations,
    Cancel,
    FinishReason,
    Forget,
    Hello,
    Message,
    Sampled,
    Submit,
    TokenSample,
)
from molink_scheduler.batch import Batch
from molink_scheduler.events import (
    BatchReturned,
    HeadEvent,
    RequestCancelled,
    RequestSubmitted,
    SampledToken,
    SendRelease,
)
from molink_scheduler.head import HeadScheduler
from molink_scheduler.stage_order import StageOrder

__all__ = ["StageLoop", "Work", "WorkSource"]

IDLE_WAIT_S = 0.25
"""How long to sleep when nothing is there: only health reports wait for it, messages wake the
loop."""

HEALTH_PERIOD_S = 0.5
"""The dashboard redraws twice a second."""


@dataclass(frozen=True, slots=True)
class Work:
    """A batch ready to compute, with its input: token ids on the head, activations elsewhere."""

    batch: Batch
    token_ids: tuple[int, ...] | None = None
    activations: Activations | None = None


class WorkSource(Protocol):
    """What feeds the device: the head's scheduler, or the queue of what neighbours sent."""

    def take(self, message: Message) -> list[SendRelease]:
        """Take a message into account; releases to be carried out come back."""

    def next_work(self) -> tuple[list[SendRelease], Work | None]:
        """What to compute now, and the releases that go out before it."""

    @property
    def counts(self) -> tuple[int, int] | None:
        """Requests running and waiting, where they are known."""


@dataclass(slots=True)
class HeadSource:
    """Plans batches with the core; hears from the coordinator and the tail."""

    scheduler: HeadScheduler

    def take(self, message: Message) -> list[SendRelease]:
        """Turn a message into the core's event."""
        match message:
            case Submit(request):
                return self._handle(RequestSubmitted(request))
            case Cancel(request_id):
                return self._handle(RequestCancelled(request_id))
            case Sampled(batch_class, micro_batch, spans, tokens):
                sampled = tuple(
                    SampledToken(t.request_id, t.token_id, t.finish is not FinishReason.NONE)
                    for t in tokens
                )
                return self._handle(BatchReturned(batch_class, micro_batch, spans, sampled))
            case Activations() | Forget() | Hello():
                return []
            case _:
                assert_never(message)

    def next_work(self) -> tuple[list[SendRelease], Work | None]:
        """The core's next batch."""
        releases, run = self.scheduler.next_batch()
        return releases, Work(run.batch, token_ids=run.token_ids) if run else None

    @property
    def counts(self) -> tuple[int, int] | None:
        """Requests running and waiting."""
        return self.scheduler.running_count, self.scheduler.waiting_count

    def _handle(self, event: HeadEvent) -> list[SendRelease]:
        return self.scheduler.handle(event)


@dataclass(slots=True)
class QueueSource:
    """Computes what the previous stage sent, in the core's order."""

    order: StageOrder[Work] = field(default_factory=StageOrder)

    def take(self, message: Message) -> list[SendRelease]:
        """Queue activations; a release comes back at once."""
        match message:
            case Activations(batch):
                self.order.push(batch.batch_class, Work(batch, activations=message))
            case Forget(release):
                return [SendRelease(release)]
            case _:
                pass
        return []

    def next_work(self) -> tuple[list[SendRelease], Work | None]:
        """Decode first."""
        return [], self.order.pop()

    @property
    def counts(self) -> tuple[int, int] | None:
        """Unknown here."""
        return None


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
                self.links.wait(IDLE_WAIT_S)
            self._report_health()

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
        hidden_TD = None
        if work.activations is not None:
            hidden_TD = tensor_from_buffer(work.activations.tensor, work.activations.buffer)
        output = self.executor.step(work.batch, work.token_ids, hidden_TD)
        if output.hidden_TD is not None:
            header, buffer = tensor_to_buffer(output.hidden_TD)
            self.links.send_next(Activations(work.batch, header, buffer))
        else:
            self._send_sampled(work.batch, output.drawn)
        self._busy_s += time.monotonic() - started
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
