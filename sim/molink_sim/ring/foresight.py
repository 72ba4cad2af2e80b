"""A stage that works ahead of time where nothing can change what it does.

On ideal links most is certain beforehand. A decode step ends when it ends, and its result may be
sent ahead of time, as the stage alone offers on its link. If nothing is on its way to the next
stage ahead of it and nobody waits there, that stage may compute it ahead of time too; so a
micro-batch passes whole stretches of its ring within one event. And when a stage has an event,
whatever arrives within one delay of the link that leads there is known: it works all of it off.
Prefill, which decode may interrupt, begins in its time, and ends ahead of it if nothing arrives in
between.

What comes out is the same to the bit (`tests/sim/ring/test_foresight.py`) with a third of the
events. Not where somebody looks on, or where something goes wrong of which no stage knows
beforehand: there all happens in its time (`can_foresee`).
"""

import math
from dataclasses import dataclass, field
from typing import TypeGuard

from molink_scheduler.batch import DECODE, PREFILL, BatchClass
from molink_scheduler.stage.order import StageOrder
from molink_scheduler.timing.round_tracker import StageStamp
from molink_sim.network.foreseen import ForeseenLink
from molink_sim.network.ideal import IdealLink
from molink_sim.network.link import Link
from molink_sim.ring.messages import Activations, Message, activations_bytes
from molink_sim.ring.sources import QueueSource
from molink_sim.ring.stage import Stage
from molink_sim.scenario import RingSpec, SystemSpec

__all__ = ["ForeseeingStage", "can_foresee"]

NOTHING: tuple[float, None] = (math.inf, None)
"""What arrives where nothing is on its way."""


def can_foresee(system: SystemSpec, ring: RingSpec) -> bool:
    """Whether the ring's stages may: ideal links that stay as they are, a PC for each stage."""
    if system.link_model != "ideal" or not system.paced or system.prefill_blocks_decode:
        return False
    if ring.on_one_pc is not None or any(stage.after_idle for stage in ring.stages):
        return False
    return not any(link.jitter_s or link.loss or link.changes for link in ring.links)


@dataclass(slots=True)
class ForeseeingStage(Stage):
    """Any stage but the head, whose plans hang on whoever comes next: a `FarEnd`."""

    _order: StageOrder[Activations] = field(init=False)
    _inbound: ForeseenLink = field(init=False)
    _outbound: IdealLink = field(init=False)
    _onward: ForeseenLink | None = field(init=False)
    """The same where a stage that looks ahead follows."""
    _rate: float = field(init=False)
    """Of the outbound link."""
    _is_clear: bool = field(init=False, default=True)
    """Whether it neither computes in its time nor has anything to look at."""
    _free_at: float = field(init=False, default=-math.inf)
    """The device is taken until then by what was computed ahead of time."""
    _is_turn_due: bool = field(init=False, default=False)
    """Whether there is something to look at when it is free."""
    _look_at: float = field(init=False, default=math.inf)
    """The next look at what has arrived; those that were planned for later are void."""

    def __post_init__(self) -> None:
        assert isinstance(self.source, QueueSource) and isinstance(self.link, IdealLink)
        self._order, self._outbound = self.source.order, self.link
        self._onward = self.link if isinstance(self.link, ForeseenLink) else None
        self._rate = self.link.rate_bytes_per_s

    def hear_from(self, link: Link) -> None:
        """This link leads here."""
        assert isinstance(link, ForeseenLink)
        link.far_end, self._inbound = self, link

    def foresee(self, message: Message, at: float) -> bool:
        """As `FarEnd` says: decode that finds the device free and nobody there."""
        if at < self._free_at or not self._is_clear or not _is_decode(message):
            return False
        self._pass(message, at)
        return True

    def expect(self, at: float) -> None:
        """As `FarEnd` says."""
        if at < self._look_at:
            self._look_at = at
            self.clock.at(at, self._look_around, at)

    def _look_around(self, planned_at: float) -> None:
        if planned_at == self._look_at:
            self._look_at = math.inf
            self._advance(planned_at)

    def _advance(self, now: float) -> None:
        """Take whatever arrives by now, and beyond it what is certain."""
        certain_until = self._inbound.settle(now)
        arriving = self._inbound.arriving
        while True:
            at, message = arriving[0] if arriving else NOTHING
            if self._is_turn_due and self._free_at <= at:
                at, message = self._free_at, None
            if at > now and (at >= certain_until or not self._is_plain(message)):
                break
            if message is None:
                self._turn(at)
            else:
                arriving.popleft()
                self._take(message, at, certain_until)
        self._is_clear = not (self._is_busy or self._inbox or self._order)
        self.expect(min(at, self._inbound.next_arrival()))

    def _is_plain(self, message: Message | None) -> bool:
        """Whether decode alone is about: prefill begins in its time."""
        if self._is_busy or self._order.prefill_waits or _is_prefill(message):
            return False
        return not (self._is_turn_due and any(map(_is_prefill, self._inbox)))

    def _turn(self, at: float) -> None:
        """The device is free for what arrived while it was taken."""
        self._is_turn_due = False
        self._go_on(at)

    def _take(self, message: Message, at: float, certain_until: float) -> None:
        if self._is_busy:
            self.receive(message)
        elif self._is_turn_due:
            self._inbox.append(message)
        elif not self._order and _is_decode(message) and self._is_next(at, certain_until):
            self._pass(message, max(at, self._free_at))
        else:
            self._inbox.append(message)
            if at < self._free_at:
                self._is_turn_due = True
            else:
                self._go_on(at)

    def _is_next(self, at: float, certain_until: float) -> bool:
        """Whether nothing else arrives before the device is free for what arrives at `at`."""
        if at >= self._free_at:
            return True
        following, _ = self._inbound.arriving[0] if self._inbound.arriving else NOTHING
        return self._free_at < min(following, certain_until)

    def _pass(self, work: Activations, now: float) -> None:
        """Decode begins on a device that is free, where nobody waits, and ends."""
        rows = work.rows
        self._order.take_at_once(work.batch, now)
        step_s = self.cost.step_s(DECODE, rows, work.kv_tokens, len(work.batch.spans))
        self._free_at = ends_at = now + step_s
        self.usage.add(now, ends_at, DECODE, rows)
        work.stamps.append(StageStamp(step_s, self._rate))
        if self._onward is not None:
            size_bytes = activations_bytes(work, self.row_bytes)
            self._onward.send_decode(ends_at, work, size_bytes, rows)
        else:
            self._send_onward(work, ends_at)

    def _start(self, work: Activations, now: float) -> None:
        batch = work.batch
        step_s = self.cost.step_s(batch.batch_class, work.rows, work.kv_tokens, len(batch.spans))
        ends_at = now + step_s
        if self._is_busy or not self._is_certain(batch.batch_class, now, ends_at):
            Stage._start(self, work, now)
            return
        self.usage.add(now, ends_at, batch.batch_class, work.rows)
        self._free_at = ends_at
        self._pass_on(work, step_s, ends_at)
        self._is_turn_due = len(self._order) > 0

    def _is_certain(self, batch_class: BatchClass, now: float, ends_at: float) -> bool:
        """Whether nothing interrupts a step."""
        if batch_class is not PREFILL or self.layers == 1:
            return True
        if self._order.decode_waits:
            return False
        certain_until = self._inbound.settle(now)
        return ends_at < min(certain_until, self._inbound.next_arrival())

    def _send(
        self, message: Message, batch_class: BatchClass, size_bytes: int, rows: int, now: float
    ) -> None:
        self._outbound.offer_at(now, message, batch_class, size_bytes, rows)

    def _computed(self, work: Activations, step_s: float, now: float) -> None:
        Stage._computed(self, work, step_s, now)
        self._advance(now)

    def _woken(self, _: None) -> None:
        now = self.clock.now
        if now >= self._free_at:
            Stage._woken(self, None)
            self._advance(now)


def _is_decode(message: Message) -> TypeGuard[Activations]:
    return isinstance(message, Activations) and message.batch.batch_class is DECODE


def _is_prefill(message: Message | None) -> bool:
    return isinstance(message, Activations) and message.batch.batch_class is PREFILL
