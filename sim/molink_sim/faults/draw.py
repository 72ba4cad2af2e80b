"""Faults from a seed, each kind with random numbers of its own: one left out changes no other."""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from molink_sim.scenario import (
    AcksCut,
    ConnectionReset,
    DuplicatedMessages,
    FaultSpec,
    HostSuspended,
    LateMessages,
    LinkCut,
    NodeLoss,
    RingSpec,
    SlowNode,
)

FAULTS_PER_KIND_MAX = 2
"""Faults of one kind in a run: two may overlap, and there is calm in between."""

LOSSES_MAX = 3
"""Losses of nodes: a second one while the first is replaced, and a third that is lost again."""

NEIGHBOUR_SHARE = 0.2
"""Share of losses after which only a neighbour has room for the layers."""

BEGIN_SHARE_MAX = 0.7
"""Share of the run in which faults begin: what begins later would hardly meet anybody."""

LASTING_SHARE_MAX = 0.25
"""Longest share of the run that a fault lasts."""

CUTS_S = (0.5, 2.0, 10.0)
"""A stall of a home's Wi-Fi, a router that changes its channel, one that restarts."""

Where = tuple[int, int, float, float]
"""A ring, a place, a beginning and an end."""


def _loss(source: random.Random, where: Where) -> NodeLoss:
    """Loaded again in time, or a few times too late for the ring to wait."""
    ring, place, at_s, until_s = where
    return NodeLoss(ring, place, at_s, until_s + source.choice([0.0] * 9 + [70.0]))


def _sleep(source: random.Random, where: Where) -> HostSuspended:
    """Noticed or not."""
    ring, place, at_s, _ = where
    silent_s = source.choice([source.uniform(0.5, 5.0), 60.0])
    until_s = at_s + source.choice([2.0, 20.0])
    return HostSuspended(ring, place, at_s, until_s, silent_s, load_s=source.uniform(0.5, 10.0))


def _lasting(source: random.Random, where: Where) -> Where:
    ring, place, at_s, _ = where
    return ring, place, at_s, at_s + source.choice(CUTS_S)


FAULTS: dict[str, Callable[[random.Random, Where], FaultSpec]] = {
    "node-loss": _loss,
    "suspended": _sleep,
    "link-cut": lambda _, where: LinkCut(*where),
    "one-way-cut": lambda source, where: source.choice([AcksCut, LinkCut])(
        *_lasting(source, where)
    ),
    "reset": lambda source, where: ConnectionReset(*where[:3], where[2] + source.uniform(0.01, 1)),
    "slow-node": lambda source, where: SlowNode(*where, factor=source.uniform(2.0, 10.0)),
    "late": lambda source, where: LateMessages(
        *where, share=source.uniform(0.05, 0.5), delay_s=source.uniform(0.05, 2.0)
    ),
    "jitter": lambda source, where: LateMessages(*where, share=1.0, delay_s=0.2),
    "duplicates": lambda source, where: DuplicatedMessages(
        *where, share=source.uniform(0.05, 1.0), delay_s=source.uniform(0.0, 0.5)
    ),
}
"""How a fault is drawn, by the name that `molink sim swarm --faults` knows."""


def draw_faults(
    seed: int, kinds: Collection[str], rings: Sequence[RingSpec], duration_s: float
) -> tuple[FaultSpec, ...]:
    """Faults: none to two of each kind, three of losses, in order of beginning."""
    found: list[FaultSpec] = []
    for kind in FAULTS:
        if kind in kinds:
            source = random.Random(f"{seed} faults {kind}")
            count_max = LOSSES_MAX if kind == "node-loss" else FAULTS_PER_KIND_MAX
            for _ in range(source.randint(0, count_max)):
                found.append(FAULTS[kind](source, _where(source, rings, duration_s)))
    taking = random.Random(f"{seed} neighbours")
    found = [_perhaps_taken(taking, fault) for fault in found]
    return tuple(sorted(found, key=lambda fault: fault.at_s))


def _perhaps_taken(source: random.Random, fault: FaultSpec) -> FaultSpec:
    if isinstance(fault, NodeLoss) and source.random() < NEIGHBOUR_SHARE:
        return replace(fault, neighbour_takes=True)
    return fault


def _where(source: random.Random, rings: Sequence[RingSpec], duration_s: float) -> Where:
    ring = source.randrange(len(rings))
    place = source.randrange(len(rings[ring].stages))
    at_s = source.uniform(0.0, BEGIN_SHARE_MAX * duration_s)
    until_s = at_s + source.uniform(0.01, 1.0) * LASTING_SHARE_MAX * duration_s
    return ring, place, at_s, until_s
