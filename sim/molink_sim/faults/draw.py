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

Draw = Callable[[random.Random, int, int, float, float], FaultSpec]
"""From a source, a ring, a place, a beginning and an end."""


def _node_loss(
    source: random.Random, ring: int, place: int, at_s: float, until_s: float
) -> FaultSpec:
    return NodeLoss(ring, place, at_s, until_s)


def _link_cut(
    source: random.Random, ring: int, place: int, at_s: float, until_s: float
) -> FaultSpec:
    return LinkCut(ring, place, at_s, until_s)


def _slow_node(
    source: random.Random, ring: int, place: int, at_s: float, until_s: float
) -> FaultSpec:
    return SlowNode(ring, place, at_s, until_s, factor=source.uniform(2.0, 10.0))


def _late(source: random.Random, ring: int, place: int, at_s: float, until_s: float) -> FaultSpec:
    share, delay_s = source.uniform(0.05, 0.5), source.uniform(0.05, 2.0)
    return LateMessages(ring, place, at_s, until_s, share, delay_s)


def _duplicates(
    source: random.Random, ring: int, place: int, at_s: float, until_s: float
) -> FaultSpec:
    share, delay_s = source.uniform(0.05, 1.0), source.uniform(0.0, 0.5)
    return DuplicatedMessages(ring, place, at_s, until_s, share, delay_s)


FAULTS: dict[str, Draw] = {
    "node-loss": _node_loss,
    "link-cut": _link_cut,
    "slow-node": _slow_node,
    "late": _late,
    "duplicates": _duplicates,
}
"""By the name that `molink sim swarm --faults` knows."""


def draw_faults(
    seed: int, kinds: Collection[str], rings: Sequence[RingSpec], duration_s: float
) -> tuple[FaultSpec, ...]:
    """None to two of each kind, over before `duration_s` is, in order of beginning."""
    found: list[FaultSpec] = []
    for kind in FAULTS:
        if kind in kinds:
            source = random.Random(f"{seed} faults {kind}")
            for _ in range(source.randint(0, FAULTS_PER_KIND_MAX)):
                found.append(_drawn(FAULTS[kind], source, rings, duration_s))
    return tuple(sorted(found, key=lambda fault: fault.at_s))


def _drawn(
    draw: Draw, source: random.Random, rings: Sequence[RingSpec], duration_s: float
) -> FaultSpec:
    ring = source.randrange(len(rings))
    place = source.randrange(len(rings[ring].stages))
    at_s = source.uniform(0.0, BEGIN_SHARE_MAX * duration_s)
    until_s = at_s + source.uniform(0.01, 1.0) * LASTING_SHARE_MAX * duration_s
    return draw(source, ring, place, at_s, until_s)
