"""Slow nodes, and late or duplicated messages on a wire, in a ring that was just built.

Bytes come late as TCP's do: what left after them waits behind them. What comes twice is dropped at
the far end of a link that numbers its chunks, but acknowledged twice; the head gets returned
batches twice, because the core promises to stand that (`HeadScheduler`).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from molink_scheduler.batch import BatchClass
from molink_scheduler.events import BatchReturned
from molink_scheduler.head.scheduler import HeadScheduler
from molink_sim.clock import Clock
from molink_sim.network.link import Deliver
from molink_sim.ring.build import Ring
from molink_sim.scenario import DuplicatedMessages, FaultSpec, LateMessages, SlowNode, StepCost

__all__ = ["disturb"]


def disturb(number: int, ring: Ring, faults: Sequence[FaultSpec], clock: Clock, seed: int) -> None:
    """Wrap the slow nodes and troubled wires of a ring; cuts are in its links already."""
    for place in range(len(ring.stages)):
        here = [fault for fault in faults if (fault.ring, fault.place) == (number, place)]
        if here:
            _disturb_place(ring, place, here, clock, f"{seed} ring {number} wire {place}")


def _disturb_place(
    ring: Ring, place: int, faults: Sequence[FaultSpec], clock: Clock, seed: str
) -> None:
    stage = ring.stages[place]
    slow = [fault for fault in faults if isinstance(fault, SlowNode)]
    late = [fault for fault in faults if isinstance(fault, LateMessages)]
    duplicated = [fault for fault in faults if isinstance(fault, DuplicatedMessages)]
    if slow:
        stage.cost = SlowCost(stage.cost, clock, slow)
    if late or duplicated:
        trouble = WireTrouble(late, duplicated, random.Random(seed))
        ring.lines[place].trouble = trouble
        if duplicated and stage.core.is_tail and _stands_copies(ring):
            stage.link.deliver = Repeated(stage.link.deliver, clock, trouble)


def _stands_copies(ring: Ring) -> bool:
    """Our head does; the heads of compared systems never get a copy."""
    return isinstance(ring.stages[0].core.source, HeadScheduler)


@dataclass(frozen=True, slots=True)
class SlowCost:
    """A stage's cost, times the factors of the faults during which a step begins."""

    cost: StepCost
    clock: Clock
    faults: Sequence[SlowNode]

    def step_s(self, batch_class: BatchClass, rows: int, kv_tokens: int, sequences: int) -> float:
        """Seconds of one step that begins now, see `StepCost`."""
        step_s = self.cost.step_s(batch_class, rows, kv_tokens, sequences)
        for fault in self.faults:
            if fault.at_s <= self.clock.now < fault.until_s:
                step_s *= fault.factor
        return step_s


@dataclass(frozen=True, slots=True)
class WireTrouble:
    """Late and duplicated messages of one wire: a `Trouble` of `molink_sim.network.line`."""

    late: Sequence[LateMessages]
    duplicated: Sequence[DuplicatedMessages]
    random: random.Random

    def late_s(self, now: float) -> float:
        """Seconds by which what leaves now is late."""
        return sum(self._drawn_s(fault) or 0.0 for fault in self.late if _is_on(fault, now))

    def again_s(self, now: float) -> float | None:
        """Seconds after which what arrives now arrives again; None: it does not."""
        found = (self._drawn_s(fault) for fault in self.duplicated if _is_on(fault, now))
        return next((again_s for again_s in found if again_s is not None), None)

    def _drawn_s(self, fault: LateMessages | DuplicatedMessages) -> float | None:
        if self.random.random() >= fault.share:
            return None
        return self.random.uniform(0.0, fault.delay_s)


@dataclass(frozen=True, slots=True)
class Repeated:
    """Delivery to the head in which some of the returned batches come twice."""

    deliver: Deliver
    clock: Clock
    trouble: WireTrouble

    def __call__(self, message: Any) -> None:
        """Deliver a message."""
        self.deliver(message)
        again_s = self.trouble.again_s(self.clock.now)
        if again_s is not None and isinstance(message, BatchReturned):
            self.clock.at(self.clock.now + again_s, self.deliver, message)


def _is_on(fault: LateMessages | DuplicatedMessages, now: float) -> bool:
    return fault.at_s <= now < fault.until_s
