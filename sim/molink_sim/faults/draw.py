"""Faults from a seed, each kind with random numbers of its own: one left out changes no other."""

import random
from collections.abc import Callable, Collection, Sequence

from molink_sim.scenario import (
    DuplicatedMessages,
    FaultSpec,
    LateMessages,
    LinkCut,
    NodeLoss,
    RingSpec,
    SlowNode,
)

__all__ = ["FAULTS", "draw_faults"]

FAULTS_PER_KIND_MAX = 2
"""Of one kind in a run: two may overlap, and there is calm in between."""

BEGIN_SHARE_MAX = 0.7
"""Of the run: what begins later would hardly meet anybody."""

LASTING_SHARE_MAX = 0.25
"""Of the run."""

Where = tuple[int, int, float, float]
"""A ring, a place, a beginning and an end."""

FAULTS: dict[str, Callable[[random.Random, Where], FaultSpec]] = {
    "node-loss": lambda _, where: NodeLoss(*where),
    "link-cut": lambda _, where: LinkCut(*where),
    "slow-node": lambda source, where: SlowNode(*where, factor=source.uniform(2.0, 10.0)),
    "late": lambda source, where: LateMessages(
        *where, share=source.uniform(0.05, 0.5), delay_s=source.uniform(0.05, 2.0)
    ),
    "duplicates": lambda source, where: DuplicatedMessages(
        *where, share=source.uniform(0.05, 1.0), delay_s=source.uniform(0.0, 0.5)
    ),
}
"""How a fault is drawn, by the name that `molink sim swarm --faults` knows."""


def draw_faults(
    seed: int, kinds: Collection[str], rings: Sequence[RingSpec], duration_s: float
) -> tuple[FaultSpec, ...]:
    """None to two of each kind, over before `duration_s` is, in order of beginning."""
    found: list[FaultSpec] = []
    for kind in FAULTS:
        if kind in kinds:
            source = random.Random(f"{seed} faults {kind}")
            for _ in range(source.randint(0, FAULTS_PER_KIND_MAX)):
                found.append(FAULTS[kind](source, _where(source, rings, duration_s)))
    return tuple(sorted(found, key=lambda fault: fault.at_s))


def _where(source: random.Random, rings: Sequence[RingSpec], duration_s: float) -> Where:
    ring = source.randrange(len(rings))
    place = source.randrange(len(rings[ring].stages))
    at_s = source.uniform(0.0, BEGIN_SHARE_MAX * duration_s)
    until_s = at_s + source.uniform(0.01, 1.0) * LASTING_SHARE_MAX * duration_s
    return ring, place, at_s, until_s
