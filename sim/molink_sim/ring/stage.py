"""A stage in virtual time: carries out what the core decides, as `molink.stage.loop` does.

When its ring has lost another stage it enters the next epoch between two steps, as
`molink.stage.loop` does; what still comes of the epoch before is dropped.

A prefill step is as many equal parts as the stage has layers. Decode that comes meanwhile runs
where one part ends and the next begins; only then is an event planned for it.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, assert_never

from molink_scheduler.batch import DECODE, PREFILL, Admission, Batch, BatchClass, Release
from molink_scheduler.drafting.asks import AskDrafts
from molink_scheduler.events import (
    BatchArrived,
    BlocksRead,
    CacheChanged,
    Decision,
    FetchArrived,
    KeepRows,
    Refuse,
    ReleaseArrived,
    RunBatch,
    SendCacheChange,
    SendCapacity,
    SendFetched,
    SendRelease,
    SendRows,
    SendTokens,
    StageEvent,
    WaitUntil,
)
from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.kv.changes import CacheChange, FetchBlocks, Fetched
from molink_scheduler.resume import Resume
from molink_scheduler.stage.core import StageCore
from molink_scheduler.stage.extension import Extension
from molink_scheduler.stage.queue import StageQueue
from molink_scheduler.stage.replay_log import ReplayLog
from molink_scheduler.stage.sent_rows import SentRows
from molink_sim.clock import Clock
from molink_sim.network.link import Link, Sent
from molink_sim.outcome import BusyTimes
from molink_sim.ring.device import Device, PrefillStep
from molink_sim.ring.drafter import Drafter
from molink_sim.ring.messages import FORGET_BYTES, activations_bytes, change_bytes, sampled_bytes
from molink_sim.ring.simulated_store import SimulatedStore
from molink_sim.ring.tail import Tail
from molink_sim.ring.taken_layers import SumCost, TakenLayers, batch_s, missing_of
from molink_sim.scenario import StageSpec, StepCost
from molink_sim.stage_profile import Curve

NewCore = Callable[[Resume, frozenset[int]], StageCore]
"""Maker of a survivor's core from what it keeps, and what it cannot go on with."""


@dataclass(slots=True)
class Stage:
    """Simulated driver of one stage's core: its device and its links."""

    clock: Clock
    device: Device
    cost: StepCost
    core: StageCore
    link: Link
    """Link to the next stage; from the tail to the head."""
    row_bytes: float
    """Bytes of one row as the system packs it."""
    usage: BusyTimes
    layers: int
    """Parts of a prefill step that can be told apart; 1: nothing interrupts it."""
    tail: Tail
    """Draws tokens on the last stage; idle elsewhere."""
    send_copy: Callable[[Sent], None]
    """Sends the coordinator a copy of the tail's tokens."""
    admitted: Callable[[tuple[Admission, ...]], None]
    """Tells the coordinator whom the head has begun, and with what."""
    epoch: int
    log: ReplayLog | None
    """Log of the rows that it has sent, a byte for each; None: no stage is ever replaced."""
    parts: range
    """Stages of the ring as it began whose layers it has."""
    lower: SimulatedStore
    """Memory below its device's, in this epoch."""
    drafter: Drafter
    """Answers a head's questions, or drafts on the tail; idle elsewhere."""
    after_idle: Curve | None = None
    """Seconds by which a step is longer, over the idle time before it."""
    is_lost: bool = field(init=False, default=False)
    taken: list[TakenLayers] = field(init=False, default_factory=list)
    """Layers that it has taken beside its own, the latest last."""
    _asleep_until: float = field(init=False, default=-math.inf)
    _when_free: Callable[[], None] | None = field(init=False, default=None)
    _idle_since: float = field(init=False, default=-math.inf)
    _inbox: list[StageEvent] = field(init=False, default_factory=list)
    _is_busy: bool = field(init=False, default=False)
    _prefill: PrefillStep | None = field(init=False, default=None)
    _wake_at: float | None = field(init=False, default=None)

    @property
    def is_idle(self) -> bool:
        """Whether it neither computes nor has a message to take."""
        return not (self._is_busy or self._inbox)

    def receive(self, sent: Sent) -> None:
        """A message has arrived; a busy device takes it after its step, or its layer."""
        assert sent.epoch <= self.epoch, "nothing moves before all stages are in an epoch"
        if self.is_lost or sent.epoch < self.epoch:
            return
        self._inbox.append(sent.what)
        if self.clock.now < self._asleep_until:
            return
        if not self._is_busy:
            self._go_on()
        elif self._prefill and self._prefill.stop_after_layer(self.device.now, self.layers):
            self.device.at(self._prefill.stop_at, self._layer_ended, self._prefill)

    def lose(self) -> None:
        """End the stage: its process is gone."""
        self.is_lost = True
        if self._is_busy:
            self.device.end()

    def suspend(self, until: float) -> None:
        """Begin no step until then: the stage's host sleeps."""
        self._asleep_until = max(self._asleep_until, until)
        self.clock.at(until, self._woken)

    def when_free(self, action: Callable[[], None]) -> None:
        """Do something before the next step, in place of what was to be done then."""
        self._when_free = action
        if not (self._is_busy or self.is_lost or self.clock.now < self._asleep_until):
            self._go_on()

    def extend(self, lost: range, added: StageSpec, *, is_behind: bool) -> None:
        """Take the layers of lost stages beside its own; they hold nothing yet."""
        assert self.log is not None, "a stage takes layers where all log their rows"
        if is_behind:
            extension = Extension(self.log, {})
            self.log = ReplayLog(self.log.bytes_max)
        else:
            extension = Extension(None, self.core.source.computed_tokens())
        self.taken.append(TakenLayers(added.cost, extension))
        self.cost, self.layers = SumCost((self.cost, added.cost)), self.layers + added.layers
        start, stop = min(self.parts.start, lost.start), max(self.parts.stop, lost.stop)
        self.parts = range(start, stop)

    def enter(self, epoch: int, resume: Resume, new_core: NewCore) -> tuple[int, ...]:
        """Enter the ring's next epoch; the requests with which it cannot go on."""
        has_rows = self.log.has if self.log is not None else _has_none
        computed = self.core.source.computed_tokens()
        missing = missing_of(self.taken, resume, computed, has_rows)
        kept = resume.without(missing)
        if self.log is not None:
            self.log.begin_epoch(kept)
        self.tail.keep_only(dict(kept.requests))
        self._inbox.clear()
        self.lower = SimulatedStore(self.lower.tiers)  # Nothing stays cached.
        self.epoch, self.core = epoch, new_core(kept, frozenset(missing))
        return missing

    def _go_on(self) -> None:
        """The device is free."""
        if (action := self._when_free) is not None:
            self._when_free = None
            action()
        now = self.clock.now
        self._take_messages(now)
        if decisions := self.core.next_step(self.link.rate_bytes_per_s, now):
            self._carry_out(decisions, now)

    def _take_messages(self, now: float) -> None:
        if self._inbox:
            messages, self._inbox = self._inbox, []
            for message in messages:
                if decisions := self.core.received(message, now):
                    self._carry_out(decisions, now)

    def _carry_out(self, decisions: Iterable[Decision], now: float) -> bool:
        """Do what the core decided; whether a step was begun."""
        begun = False
        for decision in decisions:
            match decision:
                case RunBatch():
                    self._begin(decision, now)
                    begun = True
                case SendRelease(release):
                    self._release(release)
                case SendCacheChange(change):
                    self._change_cache(change, now)
                case SendFetched(fetched):
                    self._send(FetchArrived(fetched), DECODE, FORGET_BYTES, 0)
                case SendCapacity():
                    pass  # Places of simulated stages are as many for good.
                case WaitUntil(at):
                    self._sleep(at, now)
                case AskDrafts(asks):
                    after_s, drafted = self.drafter.answer(asks)
                    self.clock.at(now + after_s, self.receive, Sent(self.epoch, drafted))
                case Refuse():
                    pass  # The core counts them.
                case _:
                    assert_never(decision)
        return begun

    def _change_cache(self, change: CacheChange, now: float) -> None:
        if not self.core.is_tail:
            self._send(CacheChanged(change), DECODE, change_bytes(change), 0)
        read_at = self.lower.change(change, now)
        if read_at is not None and isinstance(change, FetchBlocks):
            blocks = sum(count for _, count in change.runs)
            read = BlocksRead(Fetched(change.fetch_id, blocks))
            self.clock.at(read_at, self.receive, Sent(self.epoch, read))

    def _release(self, release: Release) -> None:
        if self.log is not None:
            self.log.forget(release.request_id)
        for taken in self.taken:
            taken.extension.released(release.request_id)
        if self.core.is_tail:
            self.tail.forget(release.request_id)
        else:
            self._send(ReleaseArrived(release), DECODE, FORGET_BYTES, 0)

    def _begin(self, run: RunBatch, now: float) -> None:
        batch = run.batch
        if batch.admissions:
            self.admitted(batch.admissions)
        if run.result_due_at is not None:
            self.link.set_decode_result_due(run.result_due_at)
        step_s = batch_s(self.cost, batch) if not self.taken else self._extended_s(batch)
        if self.core.is_tail:
            step_s += self.drafter.passes_s(batch)
        if not self._is_busy:
            self.device.begin()
            if self.after_idle is not None:
                step_s += self.after_idle.at(min(now - self._idle_since, self.after_idle.xs[-1]))
        self._is_busy = True
        if batch.batch_class is PREFILL and self.layers > 1:
            self._prefill = PrefillStep(run, step_s, self.device.now)
            self._interrupt_layers(self._prefill)
            return
        self.device.at(self.device.now + step_s, self._step_ended, (run, step_s, now))

    def _extended_s(self, batch: Batch) -> float:
        """Seconds of a step in which layers that were taken compute first what they lack."""
        if self._is_for_taken(batch):
            return batch_s(self.taken[-1].cost, batch)
        fed_s = [taken.fed_s(batch, self._keep) for taken in self.taken]
        return sum(fed_s) + batch_s(self.cost, batch)

    def _is_for_taken(self, batch: Batch) -> bool:
        """Whether a batch is for the layers that it took last, and for them alone."""
        return batch.replay and bool(self.taken) and self.taken[-1].extension.begins(batch)

    def _is_away(self, action: Callable[[Any], None], argument: Any) -> bool:
        """Whether it is lost, or its host sleeps: then `action` comes when it wakes up."""
        if self.clock.now < self._asleep_until and not self.is_lost:
            self.clock.at(self._asleep_until, action, argument)
            return True
        return self.is_lost

    def _step_ended(self, step: tuple[RunBatch, float, float]) -> None:
        if self._is_away(self._step_ended, step):
            return
        (run, step_s, began), now = step, self.clock.now
        self.usage.add(began, now, run.batch.batch_class, run.batch.tokens)
        self._ended(run, self.device.elapsed_s(step_s, now - began), now)

    def _layer_ended(self, prefill: PrefillStep) -> None:
        if self._is_away(self._layer_ended, prefill):
            return
        if prefill is self._prefill and prefill.stop_at == self.device.now:
            prefill.done_s += self.device.now - prefill.resumed_at
            prefill.count(self.clock.now, self.usage)
            self._interrupt_layers(prefill)

    def _interrupt_layers(self, prefill: PrefillStep) -> None:
        """Decode that waits runs first, else the prefill step goes on."""
        now = self.clock.now
        self._take_messages(now)
        if self._carry_out(self.core.between_layers(now), now):
            prefill.resumed_at = math.inf
            return
        prefill.resumed_at, prefill.resumed_real = self.device.now, now
        self.device.at(prefill.ends_at, self._prefill_ended, (prefill, prefill.ends_at))

    def _prefill_ended(self, what: tuple[PrefillStep, float]) -> None:
        if self._is_away(self._prefill_ended, what):
            return
        prefill, ends_at = what
        if prefill is self._prefill and ends_at == prefill.ends_at:
            self._prefill = None
            prefill.count(self.clock.now, self.usage)
            step_s = self.device.elapsed_s(prefill.step_s, prefill.real_s)
            self._ended(prefill.run, step_s, self.clock.now)

    def _ended(self, run: RunBatch, step_s: float, now: float) -> None:
        self._pass_on(self.core.computed(run, step_s, self.link.rate_bytes_per_s, now))
        self.core.finished(run, step_s, now)
        if self._prefill is not None:
            self._interrupt_layers(self._prefill)
            return
        self._is_busy, self._idle_since = False, now
        self.device.end()
        if not self._has_nothing():
            self._go_on()

    def _has_nothing(self) -> bool:
        """Whether asking the core for a step is known to be in vain: half of all asking was. A core
        whose calls are logged is asked all the same."""
        source = self.core.source if type(self.core) is StageCore else None
        is_idle = type(source) is StageQueue and not (source.order or self._inbox)
        return is_idle and self._when_free is None

    def _pass_on(self, decision: SendRows | SendTokens | KeepRows) -> None:
        match decision:
            case KeepRows(batch):
                if not self._is_for_taken(batch):
                    self._keep(batch)
            case SendRows(batch, due_at, replays):
                self.link.set_next_decode_due(due_at)
                for admission in replays:
                    assert self.log is not None, "a stage is replaced where all log their rows"
                    for piece, _ in self.log.batches(batch, admission, SPAN_TOKENS):
                        self._send_rows(piece)
                self._send_rows(batch)
                self._keep(batch)
            case SendTokens(batch):
                returned = self.drafter.with_drafts(self.tail.returned(batch))
                self._send(returned, DECODE, sampled_bytes(returned), 0)
                if returned.sampled:
                    self.send_copy(Sent(self.epoch, returned.sampled))
            case _:
                assert_never(decision)

    def _send_rows(self, batch: Batch) -> None:
        size_bytes = activations_bytes(batch, self.row_bytes)
        self._send(BatchArrived(batch), batch.batch_class, size_bytes, batch.tokens)

    def _send(self, event: StageEvent, batch_class: BatchClass, size_bytes: int, rows: int) -> None:
        self.link.offer(Sent(self.epoch, event), batch_class, size_bytes, rows)

    def _keep(self, batch: Batch) -> None:
        """Log the rows of a batch for the stage behind, should that be replaced."""
        if self.log is not None and not self.core.is_tail:
            for span in batch.spans:
                sent = SentRows(span.start, span.end, bytes(span.tokens))
                self.log.add(span.request_id, sent, guesses=len(span.drafts))

    def _sleep(self, until: float, now: float) -> None:
        if until > now and until != self._wake_at:
            self._wake_at = until
            self.clock.at(until, self._woken)

    def _woken(self, _: None) -> None:
        if not (self._is_busy or self._is_away(self._woken, None)):
            self._go_on()


def _has_none(request_id: int, tokens: int) -> bool:
    return False
