"""Neighbours of a hole, which take the layers that were lost beside their own.

Where no other node can hold a lost stage's layers, its ring goes on with one place less. The stage
before the hole takes them, because it has sent all rows that they need (`stage.extension`). For a
lost head, and where that stage has no room, the one behind the hole does; it is fed like a fresh
stage. Stages that are lost side by side are one hole. A stage that is fresh itself takes nothing:
it would have two things to load while users wait.

Rejected: to divide a hole among both neighbours where neither has room for all of it. What is left
of the model then hangs on memory that is all but full, and a plan finds better.

Pure: says who takes what.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace

from molink.control.messages.assignment import Extend
from molink.control.messages.payloads import AssignedWork
from molink.coordinator.ring.ring import AgentStage, Ring
from molink.coordinator.upkeep.ring_building import micro_batch_candidates

WorkBeside = Callable[[AgentStage, tuple[int, int]], AssignedWork | None]
"""Work of a stage that takes these layers beside its own; None: it cannot in time."""


def without_holes(
    stages: Sequence[AgentStage], holes: Set[int], fresh: Set[int], beside: WorkBeside
) -> tuple[list[AgentStage], set[int]] | None:
    """The stages that go on without those at `holes`, and the places among them that are fed by
    the stage before, as those at `fresh` are; None: some hole's neighbours cannot take it."""
    taken: dict[int, AssignedWork] = {}
    fed = set(fresh)
    for first, last in _runs(holes):
        layers = stages[first].layers[0], stages[last].layers[1]
        able = (
            (place, work)
            for place in (first - 1, last + 1)
            if 0 <= place < len(stages) and place not in holes | fresh | taken.keys()
            if _may_take(stages[place]) and (work := beside(stages[place], layers)) is not None
        )
        place, work = next(able, (None, None))
        if place is None or work is None:
            return None
        taken[place] = work
        fed |= {place} if place > last else set()
    left = [place for place in range(len(stages)) if place not in holes]
    going_on = [
        _extended(stages[place], taken[place]) if place in taken else stages[place]
        for place in left
    ]
    return going_on, {index for index, place in enumerate(left) if place in fed}


def _extended(stage: AgentStage, work: AssignedWork) -> AgentStage:
    """The same stage with more layers, which its process is to load beside what it holds."""
    assignment = stage.assignment.model_copy(update={"command": Extend(work=work)})
    return replace(stage, assignment=assignment, loaded=None, _loading=None)


def has_grown(stage: AgentStage) -> bool:
    """Whether a stage has taken layers beside its own, or is to, in the process that goes on."""
    return isinstance(stage.command, Extend)


def in_places(ring: Ring, stages: Sequence[AgentStage]) -> Ring:
    """The ring of these stages, perhaps fewer than before: each knows its place, and accepts links
    of the one before it."""
    settings = replace(ring.terms.ring, micro_batch_candidates=micro_batch_candidates(len(stages)))
    placed = [
        replace(
            stage,
            neighbours=(before.node.public_key, stage.neighbours[1]),
            assignment=stage.assignment.model_copy(update={"stage": place, "stages": len(stages)}),
        )
        for place, (before, stage) in enumerate(
            zip((stages[-1], *stages[:-1]), stages, strict=True)
        )
    ]
    return replace(ring, stages=placed, terms=replace(ring.terms, ring=settings))


def _may_take(stage: AgentStage) -> bool:
    return stage.loaded is not None and stage.node.wants == "serve"


def _runs(places: Set[int]) -> Iterator[tuple[int, int]]:
    """First and last of the places that lie side by side."""
    for first in sorted(places):
        if first - 1 in places:
            continue
        last = first
        while last + 1 in places:
            last += 1
        yield first, last
