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

from molink_scheduler.batch import DECODE, PREFILL, BatchClass
from molink_scheduler.stage_order import StageOrder
from molink_sim.network.foreseen import ForeseenLink
from molink_sim.network.ideal import IdealLink
from molink_sim.network.link import Link
from molink_sim.ring.messages import Activations, Message
from molink_sim.ring.sources import QueueSource
from molink_sim.ring.stage import Stage
from molink_sim.scenario import RingSpec, SystemSpec

__all__ = ["ForeseeingStage", "can_foresee"]


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
    _free_at: float = field(init=False, default=-math.inf)
    """The device is taken until then by what was computed ahead of time."""
    _is_turn_due: bool = field(init=False, default=False)
    """Whether there is something to look at when it is free."""
    _look_at: float = field(init=False, default=math.inf)
    """The next look at what has arrived; those that were planned for later are void."""

    def __post_init__(self) -> None:
        assert isinstance(self.source, QueueSource) and isinstance(self.link, IdealLink)
        self._order, self._outbound = self.source.order, self.link

    def hear_from(self, link: Link) -> None:
        """This link leads here."""
        assert isinstance(link, ForeseenLink)
        link.far_end, self._inbound = self, link

    def foresee(self, message: Message, at: float) -> bool:
        """As `FarEnd` says: decode that finds the device free and nobody there."""
        if at < self._free_at or self._is_busy or self._inbox or self._order:
            return False
        if not isinstance(message, Activations) or message.batch.batch_class is not DECODE:
            return False
        self._order.take_at_once(message.batch, at)
        self._start(message, at)
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
            arrives = arriving[0][0] if arriving else math.inf
            is_turn = self._is_turn_due and self._free_at <= arrives
            at = self._free_at if is_turn else arrives
            if at > now and not (at < certain_until and self._is_plain(is_turn)):
                break
            if is_turn:
                self._turn(at)
            else:
                self._arrived(arriving.popleft()[1], at)
        self.expect(min(at, self._inbound.next_arrival()))

    def _is_plain(self, is_turn: bool) -> bool:
        """Whether no prefill is about: that begins in its time."""
        if self._is_busy or self._order.prefill_waits:
            return False
        coming = self._inbox if is_turn else [*self._inbox, self._inbound.arriving[0][1]]
        return not any(map(_is_prefill, coming))

    def _arrived(self, message: Message, at: float) -> None:
        if self._is_busy:
            self.receive(message)
            return
        self._inbox.append(message)
        if at < self._free_at:
            self._is_turn_due = True
        else:
            self._turn(at)

    def _turn(self, at: float) -> None:
        self._is_turn_due = False
        self._go_on(at)

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


def _is_prefill(message: Message) -> bool:
    return isinstance(message, Activations) and message.batch.batch_class is PREFILL
