"""The life of a stage in virtual time: take what has arrived, compute one batch, pass it on.

As `molink.stage.loop`, step for step; what it asks of the core, and when, is the same. A
prefill step is as many equal parts as the stage has layers. Decode that comes meanwhile runs where
one part ends and the next begins; only then is an event planned for it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from molink_scheduler.batch import DECODE, PREFILL, BatchClass
from molink_scheduler.events import BatchReturned, SampledToken, SendRelease
from molink_scheduler.timing.round_tracker import StageStamp
from molink_sim.clock import Clock
from molink_sim.hardware.interpolation import Curve
from molink_sim.network.link import Link
from molink_sim.ring.device import Device
from molink_sim.ring.messages import (
    FORGET_BYTES,
    Activations,
    Message,
    activations_bytes,
    sampled_bytes,
)
from molink_sim.ring.prefill_step import PrefillStep
from molink_sim.ring.sources import WorkSource
from molink_sim.ring.tail import Tail
from molink_sim.scenario import StepCost
from molink_sim.usage import Usage

__all__ = ["Forecasts", "Stage", "TellCoordinator"]

STEP_WEIGHT = 0.1
"""Of the newest step in the decode time that forecasts use, as in the live loop."""

TellCoordinator = Callable[[tuple[SampledToken, ...], float], None]


class Forecasts(Enum):
    """What the link is told of the decode to come; only the just-in-time rule listens."""

    NONE = "none"
    ROUNDS = "rounds"
    """The round's rhythm, as the live loop does: the paper's case 3."""
    STEPS = "steps"
    """Also when a decode step has begun here: cases 1 and 2."""


@dataclass(slots=True)
class Stage:
    """One stage's device and loop."""

    clock: Clock
    device: Device
    cost: StepCost
    source: WorkSource
    link: Link
    """To the next stage; from the tail to the head."""
    row_bytes: float
    """Of one row as the system packs it."""
    usage: Usage
    layers: int
    """Of a prefill step so many parts can be told apart; 1: nothing interrupts it."""
    forecasts: Forecasts = Forecasts.NONE
    tail: Tail | None = None
    """Only the last stage has one..."""
    tell_coordinator: TellCoordinator = lambda tokens, now: None
    """...and sends copies of its tokens."""
    after_idle: Curve | None = None
    """By how many seconds a step is longer, over the idle time before it."""
    _idle_since: float = field(init=False, default=-math.inf)
    _inbox: list[Message] = field(init=False, default_factory=list)
    _is_busy: bool = field(init=False, default=False)
    _prefill: PrefillStep | None = field(init=False, default=None)
    _decode_step_s: float = field(init=False, default=0.0)
    _wake_at: float | None = field(init=False, default=None)

    @property
    def is_idle(self) -> bool:
        """Whether it neither computes nor has anything to look at."""
        return not (self._is_busy or self._inbox)

    def receive(self, message: Message) -> None:
        """A message has arrived; a busy device looks at it after its step, or its layer."""
        self._inbox.append(message)
        if not self._is_busy:
            self._go_on(self.clock.now)
        elif self._prefill is not None:
            self._look_after_layer(self._prefill)

    def _go_on(self, now: float) -> None:
        """The device is free: what now?"""
        if self._inbox:
            self._take_messages(now)
        releases, work = self.source.next_work(now)
        if releases:
            self._release(releases, now)
        if work is not None:
            self._start(work, now)
        else:
            self._sleep(now)

    def _take_messages(self, now: float) -> None:
        messages, self._inbox = self._inbox, []
        for message in messages:
            if releases := self.source.take(message, now):
                self._release(releases, now)

    def _release(self, releases: list[SendRelease], now: float) -> None:
        for command in releases:
            if self.tail is None:
                self._send(command, DECODE, FORGET_BYTES, 0, now)
            else:
                self.tail.forget(command.release.request_id)

    def _start(self, work: Activations, now: float) -> None:
        batch = work.batch
        if batch.batch_class is DECODE:
            self.link.set_decode_result_due(now + self._decode_step_s)
            if self.forecasts is Forecasts.STEPS:
                self.link.set_next_decode_due(now + self._decode_step_s)
        step_s = self.cost.step_s(batch.batch_class, work.rows, work.kv_tokens, len(batch.spans))
        if not self._is_busy:
            step_s += self._awake_s(now)
        self._is_busy = True
        if batch.batch_class is PREFILL and self.layers > 1:
            self._prefill = PrefillStep(work, step_s, self.device.now)
            self._look(self._prefill)
            return
        self.device.at(self.device.now + step_s, self._step_ended, (work, step_s, now))

    def _awake_s(self, now: float) -> float:
        """Begin to compute; what the step costs more because the device was idle."""
        self.device.begin()
        if self.after_idle is None:
            return 0.0
        return self.after_idle.at(min(now - self._idle_since, self.after_idle.xs[-1]))

    def _step_ended(self, step: tuple[Activations, float, float]) -> None:
        work, step_s, began = step
        now = self.clock.now
        self.usage.add(began, now, work.batch.batch_class, work.rows)
        self._computed(work, self.device.elapsed_s(step_s, now - began), now)

    def _look_after_layer(self, prefill: PrefillStep) -> None:
        """Decode may have come: look when the present layer is done."""
        now = self.device.now
        if prefill.resumed_at <= now and prefill.look_at < now:
            look_at = prefill.part_ends_at(now, prefill.step_s / self.layers)
            if look_at < prefill.ends_at:
                prefill.look_at = look_at
                self.device.at(look_at, self._layer_ended, prefill)

    def _layer_ended(self, prefill: PrefillStep) -> None:
        if prefill is self._prefill and prefill.look_at == self.device.now:
            prefill.done_s += self.device.now - prefill.resumed_at
            self._draw(prefill)
            self._look(prefill)

    def _look(self, prefill: PrefillStep) -> None:
        """Between two layers: decode that waits runs first, else the prefill step goes on."""
        now = self.clock.now
        if self._inbox:
            self._take_messages(now)
        releases, work = self.source.next_decode(now)
        if releases:
            self._release(releases, now)
        if work is not None:
            prefill.resumed_at = math.inf
            self._start(work, now)
            return
        prefill.resumed_at, prefill.resumed_real = self.device.now, now
        self.device.at(prefill.ends_at, self._prefill_ended, (prefill, prefill.ends_at))

    def _prefill_ended(self, what: tuple[PrefillStep, float]) -> None:
        prefill, ends_at = what
        if prefill is self._prefill and ends_at == prefill.ends_at:
            self._prefill = None
            self._draw(prefill)
            step_s = self.device.elapsed_s(prefill.step_s, prefill.real_s)
            self._computed(prefill.work, step_s, self.clock.now)

    def _draw(self, prefill: PrefillStep) -> None:
        """Count the time since it was resumed."""
        since, now = prefill.resumed_real, self.clock.now
        if now > since:
            prefill.real_s += now - since
            is_new, prefill.is_counted = not prefill.is_counted, True
            self.usage.add(since, now, PREFILL, prefill.work.rows, is_new=is_new)

    def _computed(self, work: Activations, step_s: float, now: float) -> None:
        self._pass_on(work, step_s, now)
        if self._prefill is not None:
            self._look(self._prefill)
            return
        self._is_busy, self._idle_since = False, now
        self.device.end()
        self._go_on(now)

    def _pass_on(self, work: Activations, step_s: float, now: float) -> None:
        """What was computed leaves the stage, and it learns from the time that this took."""
        if work.batch.batch_class is DECODE:
            work.stamps.append(StageStamp(step_s, self.link.rate_bytes_per_s))
            self._send_onward(work, now)
            self._decode_step_s += STEP_WEIGHT * (step_s - self._decode_step_s)
        else:
            self._send_onward(work, now)
            self.source.prefill_computed(work, step_s, now)

    def _send_onward(self, work: Activations, now: float) -> None:
        if self.tail is None:
            self._send_activations(work, now)
        else:
            self._send_sampled(work, self.tail, now)

    def _send_activations(self, work: Activations, now: float) -> None:
        if self.forecasts is not Forecasts.NONE:
            due_at = self.source.clock.due_at(now)
            self.link.set_next_decode_due(None if due_at is None else due_at + self._decode_step_s)
        size_bytes = activations_bytes(work, self.row_bytes)
        self._send(work, work.batch.batch_class, size_bytes, work.rows, now)

    def _send_sampled(self, work: Activations, tail: Tail, now: float) -> None:
        """To the head, which starts the next round, then a copy to the coordinator."""
        batch = work.batch
        tail.admit(batch.admissions)
        tokens = tail.draw(batch.spans)
        returned = BatchReturned(
            batch.batch_class, batch.micro_batch, batch.spans, tokens, tuple(work.stamps)
        )
        self._send(returned, DECODE, sampled_bytes(returned), 0, now)
        if tokens:
            self.tell_coordinator(tokens, now)

    def _send(
        self, message: Message, batch_class: BatchClass, size_bytes: int, rows: int, now: float
    ) -> None:
        """`now` is the present moment here; `molink_sim.ring.foresight` is ahead of it."""
        self.link.offer(message, batch_class, size_bytes, rows)

    def _sleep(self, now: float) -> None:
        until = self.source.wait_until
        if until is not None and until > now and until != self._wake_at:
            self._wake_at = until
            self.clock.at(until, self._woken)

    def _woken(self, _: None) -> None:
        if not self._is_busy:
            self._go_on(self.clock.now)
