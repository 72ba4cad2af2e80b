"""A ring: stages that have joined, and the terms on which they have."""

from collections.abc import Sequence
from dataclasses import dataclass

from molink.config.link_schedule import LinkShape
from molink.control.messages.payloads import StageLink
from molink.coordinator.ring.agent_stage import AgentStage
from molink.tasks import gathered
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.blocks import BLOCK_TOKENS

COORDINATOR = -1
"""Stands where stages have their number."""


@dataclass(frozen=True, slots=True)
class JoinTerms:
    """Terms on which all stages of a ring join, and where its tail finds the coordinator."""

    ring: RingTerms
    """But for what is known only when all stages have loaded."""
    coordinator: StageLink
    """Its relay, if any, leads to nodes too."""
    upload_mbps: float | None = None
    """Cap of every node; None: none, or each its own."""
    emulated: LinkShape | None = None
    """Shape of each emulated link as it begins; None: links are real."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Stages that have joined, head first."""

    stages: Sequence[AgentStage]
    terms: JoinTerms
    requests_link: StageLink
    """From the coordinator to the head."""

    @property
    def epoch(self) -> int:
        """Number of the ring in all its messages."""
        return self.stages[0].epoch

    async def watch(self) -> None:
        """Wait until a stage is gone, or was sent what it refuses; then raise StageError.

        What is refused was to bring rows or tokens, for which users would wait in vain. A ring's
        links lose and double nothing, so somebody lies: whoever sent it, or whoever says so."""
        before = (self.stages[-1], *self.stages[:-1])
        await gathered(one.watch(sender) for one, sender in zip(self.stages, before, strict=True))


def tokens_asked(capacity: int) -> int:
    """What a stage is asked for that shall have room for `capacity` tokens: stages round up to
    whole blocks, and one with just the memory for what was planned would refuse more."""
    return max(1, capacity - BLOCK_TOKENS + 1)
