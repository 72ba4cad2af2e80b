"""Stages that have taken a lost one's layers beside their own, and places that move up.

Which stage takes what is decided in `molink_scheduler.recovery.holes`.
"""

from collections.abc import Sequence
from dataclasses import replace

from molink.control.messages.assignment import Extend
from molink.control.messages.payloads import AssignedWork
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.ring import Ring
from molink.coordinator.upkeep.ring_building import micro_batch_candidates


def extended(stage: AgentStage, work: AssignedWork) -> AgentStage:
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
            accepted_keys=(before.node.public_key, stage.accepted_keys[1]),
            assignment=stage.assignment.model_copy(update={"stage": place, "stages": len(stages)}),
        )
        for place, (before, stage) in enumerate(
            zip((stages[-1], *stages[:-1]), stages, strict=True)
        )
    ]
    return replace(ring, stages=placed, terms=replace(ring.terms, ring=settings))
