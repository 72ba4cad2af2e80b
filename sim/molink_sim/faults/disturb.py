"""Slow nodes, and late or duplicated messages on a wire, in a ring that was just built.

Bytes come late as TCP's do: what left after them waits behind them. What comes twice is dropped at
the far end of a link that numbers its chunks, but acknowledged twice; the head gets returned
batches twice, because the core promises to stand that (`HeadScheduler`).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from molink_scheduler.batch import BatchClass
from molink_scheduler.events import BatchReturned
from molink_sim.clock import Clock
from molink_sim.network.link import Deliver, Sent
from molink_sim.network.paced import PacedLink
from molink_sim.ring.baselines import IterationHead
from molink_sim.ring.build import Ring
from molink_sim.scenario import (
    AcksCut,
    ConnectionReset,
    DuplicatedMessages,
    FaultSpec,
    LateMessages,
    Scenario,
    SlowNode,
    StepCost,
)


def disturb(ring: Ring, scenario: Scenario, clock: Clock) -> None:
    """Wrap the slow nodes and troubled wires of a ring; cuts are in its links already."""
    for place in range(len(ring.stages)):
        disturb_stage(ring, place, scenario, clock)
        disturb_link(ring, place, scenario, clock)


def disturb_stage(ring: Ring, place: int, scenario: Scenario, clock: Clock) -> None:
    """Make a stage slow whose node is."""
    stage = ring.stages[place]
    stage.cost = slowed(stage.cost, ring, place, scenario, clock)


def slowed(cost: StepCost, ring: Ring, place: int, scenario: Scenario, clock: Clock) -> StepCost:
    """The cost of layers on the node in a place, slow if it is."""
    slow = [fault for fault in _here(ring, place, scenario) if isinstance(fault, SlowNode)]
    return SlowCost(cost, clock, slow) if slow else cost


def disturb_link(ring: Ring, place: int, scenario: Scenario, clock: Clock) -> None:
    """Trouble the wire of a link that was just opened."""
    here = _here(ring, place, scenario)
    late = [fault for fault in here if isinstance(fault, LateMessages)]
    duplicated = [fault for fault in here if isinstance(fault, DuplicatedMessages)]
    deaf = [fault for fault in here if isinstance(fault, AcksCut)]
    link = ring.links[place]
    if late or duplicated or deaf:
        origin = ring.nodes[place].origin
        source = random.Random(f"{scenario.seed} ring {ring.number} wire {origin}")
        trouble = WireTrouble(late, duplicated, deaf, source)
        ring.lines[place].trouble = trouble
        if duplicated and place == len(ring.spec.stages) - 1 and _stands_copies(ring):
            link.deliver = Repeated(link.deliver, clock, trouble)
    for fault in here:
        resets = isinstance(fault, ConnectionReset) and fault.at_s >= clock.now
        if resets and isinstance(link, PacedLink):
            clock.at(fault.at_s, link.reset, fault.until_s)


def _here(ring: Ring, place: int, scenario: Scenario) -> list[FaultSpec]:
    where = ring.number, ring.nodes[place].origin
    return [fault for fault in scenario.faults if (fault.ring, fault.place) == where]


def _stands_copies(ring: Ring) -> bool:
    """Our head does; the heads of compared systems never get a copy."""
    return not isinstance(ring.stages[0].core.source, IterationHead)


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
    deaf: Sequence[AcksCut]
    random: random.Random

    def late_s(self, now: float) -> float:
        """Seconds by which what leaves now is late."""
        return sum(self._drawn_s(fault) or 0.0 for fault in self.late if _is_on(fault, now))

    def again_s(self, now: float) -> float | None:
        """Seconds after which what arrives now arrives again; None: it does not."""
        found = (self._drawn_s(fault) for fault in self.duplicated if _is_on(fault, now))
        return next((again_s for again_s in found if again_s is not None), None)

    def acknowledged_at(self, when: float) -> float:
        """Return of an acknowledgement that without this trouble would be back at `when`."""
        return max([when, *(fault.until_s for fault in self.deaf if _is_on(fault, when))])

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

    def __call__(self, message: Sent) -> None:
        """Deliver a message."""
        self.deliver(message)
        again_s = self.trouble.again_s(self.clock.now)
        if again_s is not None and isinstance(message.what, BatchReturned):
            self.clock.at(self.clock.now + again_s, self.deliver, message)


def _is_on(fault: FaultSpec, now: float) -> bool:
    return fault.at_s <= now < fault.until_s
