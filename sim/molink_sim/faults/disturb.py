"""Let a ring's nodes and wires suffer what the scenario says."""

import random
from collections.abc import Sequence

from molink_scheduler.head.scheduler import HeadScheduler
from molink_sim.clock import Clock
from molink_sim.faults.slow_node import SlowCost
from molink_sim.faults.wire_trouble import Repeated, WireTrouble
from molink_sim.ring.build import Ring
from molink_sim.ring.sources import HeadSource
from molink_sim.scenario import DuplicatedMessages, FaultSpec, LateMessages, SlowNode

__all__ = ["disturb"]


def disturb(number: int, ring: Ring, faults: Sequence[FaultSpec], clock: Clock, seed: int) -> None:
    """Slow nodes and troubled wires of a ring that was just built; cuts are in its links."""
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
        if duplicated and stage.tail is not None and _stands_copies(ring):
            stage.link.deliver = Repeated(stage.link.deliver, clock, trouble)


def _stands_copies(ring: Ring) -> bool:
    """Our head does; the heads of compared systems never hear of a copy."""
    source = ring.stages[0].source
    return isinstance(source, HeadSource) and isinstance(source.scheduler, HeadScheduler)
