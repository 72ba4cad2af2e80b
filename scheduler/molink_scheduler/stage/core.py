"""Core of a stage: every decision of its loop, for the live stage and for the simulated one.

A stage takes what has arrived, releases what is over, computes the next batch, stamps it, sends it
on, and learns from the time that this took. A driver owns threads and tensors, or virtual time; it
calls these verbs in this order and carries out what they return, in the order in which it is
returned:

    received(event, now)            a message has arrived
    next_step(rate, now)            the device is free
    between_layers(now)             the prefill step under way has computed one more layer
    computed(run, step_s, rate, now)    a step has ended: where its result goes
    finished(run, elapsed_s, now)   its result has left

What comes next is chosen by a `WorkSource`: on the head by the scheduler that plans the ring's
batches, elsewhere by the queue of what has arrived. Drivers that asked the sources themselves were
rejected: the live loop and the simulated one were the same two hundred lines, kept alike by hand.

Pure: times and measurements are arguments, rows stay with the driver.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from molink_scheduler.batch import DECODE, Admission, Batch
from molink_scheduler.events import (
    BatchArrived,
    BatchReturned,
    BookOrder,
    Decision,
    EventOrder,
    KeepRows,
    Refuse,
    RunBatch,
    SendRows,
    SendTokens,
    StageEvent,
    WaitUntil,
)
from molink_scheduler.kv.capacity import StageRoom
from molink_scheduler.resume import Resume
from molink_scheduler.timing.next_decode import DecodeForecast, Foretold
from molink_scheduler.timing.round_tracker import StageStamp
from molink_scheduler.timing.steps import DecodeClock

__all__ = ["StageCore", "WorkSource"]

WEIGHT_OF_NEWEST = 0.1
"""Weight of a step in the smoothed time: a glance at the dashboard sees the last second."""


class WorkSource(Protocol):
    """Source of a stage's next step."""

    @property
    def clock(self) -> DecodeClock:
        """The rhythm of the micro-batches that pass here."""

    @property
    def room(self) -> StageRoom:
        """Blocks that the stage has places for, and those that it offers to its ring."""

    @property
    def wait_until(self) -> float | None:
        """Time to ask for a batch again although nothing happened; None: only an event helps."""

    @property
    def decode_rows_waiting(self) -> int:
        """Rows of the decode step that could begin now; 0: none could."""

    def computed_tokens(self) -> dict[int, int]:
        """Tokens of each request of which the stage holds KV."""

    def handle(self, event: StageEvent, now: float) -> Sequence[EventOrder]:
        """Take one event into account."""

    def next_batch(
        self, link_bytes_per_s: float, now: float
    ) -> tuple[Sequence[BookOrder], RunBatch | None]:
        """The next batch for a free device, and the releases that go out before it."""

    def next_decode(self, now: float) -> tuple[Sequence[BookOrder], RunBatch | None]:
        """Decode that may interrupt a prefill step, and the releases that go out before it."""

    def computed(self, run: RunBatch, elapsed_s: float, now: float) -> None:
        """A step on the stage's own device took so long."""


@dataclass(slots=True)
class StageCore:
    """Decision maker of one stage's loop."""

    source: WorkSource
    is_tail: bool
    resume: Resume = field(default_factory=Resume)
    """Requests and cached blocks with which the stage came into the ring's epoch."""
    forecast: DecodeForecast = field(init=False, default_factory=DecodeForecast)
    """When its next decode result will want its link."""
    prefill_row_s: float = field(init=False, default=0.0)
    """Smoothed time of one row of a prefill step."""
    busy_s: float = field(init=False, default=0.0)
    """Time that all steps took."""
    steps_count: int = field(init=False, default=0)
    refused_count: int = field(init=False, default=0)
    """Messages that could not be carried out here."""
    rows_in: int = field(init=False, default=0)
    """Rows that were taken in; on the head, that came back."""
    rows_out: int = field(init=False, default=0)
    """Rows that were computed."""

    def received(self, event: StageEvent, now: float) -> Sequence[Decision]:
        """A message has arrived: the releases that follow from it, or its refusal."""
        decisions = self.source.handle(event, now)
        if decisions and isinstance(decisions[0], Refuse):
            self.refused_count += 1
        elif isinstance(event, BatchArrived):
            self.rows_in += event.batch.tokens
        elif isinstance(event, BatchReturned):
            self.rows_in += sum([span.tokens for span in event.spans])
        return decisions

    def next_step(self, link_bytes_per_s: float, now: float) -> Sequence[Decision]:
        """The device is free: releases, then a batch, or until when to wait; neither when only a
        message helps. `link_bytes_per_s` is the rate of the link that leaves, 0 when unknown."""
        releases, run = self.source.next_batch(link_bytes_per_s, now)
        if run is not None:
            return (*releases, self._begun(run, now))
        until = self.source.wait_until
        return releases if until is None else (*releases, WaitUntil(until))

    def between_layers(self, now: float) -> Sequence[Decision]:
        """Decode that goes before the rest of a prefill step; when empty, that goes on."""
        releases, run = self.source.next_decode(now)
        return releases if run is None else (*releases, self._begun(run, now))

    def _begun(self, run: RunBatch, now: float) -> RunBatch:
        """Cases 1 and 2 of T_a: the result of a decode step is due once it has been computed."""
        batch, clock = run.batch, self.source.clock
        if batch.batch_class is not DECODE:
            return run
        due_at = self.forecast.begins(clock, batch.micro_batch, batch.tokens, now)
        return RunBatch(batch, run.token_ids, run.pieces, due_at)

    def computed(
        self, run: RunBatch, step_s: float, link_bytes_per_s: float, now: float
    ) -> SendRows | SendTokens | KeepRows:
        """A step of `step_s` has ended: where its result goes, before anything else is done."""
        batch = run.batch
        self.rows_out += batch.tokens
        if batch.batch_class is DECODE:
            self.forecast.ends()
        if batch.replay and (self.is_tail or not self.resume.next_fresh):
            return KeepRows(batch)
        if batch.batch_class is DECODE:
            batch = batch.stamped(StageStamp(step_s, link_bytes_per_s))
        if self.is_tail:
            return SendTokens(batch)
        fed = self._fed_by(batch) if batch.admissions else ()
        return SendRows(batch, self._next_decode_due_at(now), fed)

    def _fed_by(self, batch: Batch) -> tuple[Admission, ...]:
        """Requests of the batch of which the next stage is sent rows again."""
        feeds = self.resume.feeds_next
        return tuple(one for one in batch.admissions if feeds(one.kept_tokens, begins=one.begins))

    def _next_decode_due_at(self, now: float) -> float | None:
        """Case 3 of T_a: no decode step is under way."""
        source, forecast = self.source, self.forecast
        due_at = forecast.due_at(source.clock, now, source.decode_rows_waiting)
        forecast.errors.round_foretold(None if due_at is None else Foretold(now, due_at))
        return due_at

    def finished(self, run: RunBatch, elapsed_s: float, now: float) -> None:
        """The result of a step has left, `elapsed_s` after the step began: learn from it."""
        batch = run.batch
        self.source.computed(run, elapsed_s, now)
        if batch.batch_class is DECODE:
            self.source.clock.computed(elapsed_s)
            self.forecast.result_left(batch.tokens, elapsed_s, now)
        else:
            row_s = elapsed_s / batch.tokens
            self.prefill_row_s += WEIGHT_OF_NEWEST * (row_s - self.prefill_row_s)
        self.busy_s += elapsed_s
        self.steps_count += 1
