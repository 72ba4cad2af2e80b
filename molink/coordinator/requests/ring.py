"""What serving needs of a ring, whoever started its stages: this machine or agents elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from molink.config.link_shape import LinkShape
from molink.coordinator.members.node_book import Node
from molink.stage_protocol.messages import StageHealth, StageLoaded

__all__ = ["COORDINATOR", "Ring", "RingFacts", "RingStage"]

COORDINATOR = -1
"""Stands where stages have their number."""


@dataclass(frozen=True, slots=True)
class RingFacts:
    """What stays as it is while a ring lives."""

    epoch: int
    """Messages of another are dropped."""
    policy: str
    upload_mbps: float | None
    """Cap of every node; None: none, or each its own."""
    emulated: LinkShape | None = None
    """Of each link as it began; None: links are real."""


class RingStage(Protocol):
    """One stage, as far as requests and reports need it."""

    @property
    def node(self) -> Node:
        """That hosts it."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def pid(self) -> int | None:
        """Of its process, when that runs here."""

    @property
    def layers(self) -> tuple[int, int]:
        """[start, end)."""

    @property
    def loaded(self) -> StageLoaded | None:
        """What it said once its layers were there."""

    @property
    def health(self) -> StageHealth | None:
        """Its latest report."""

    async def next_health(self) -> StageHealth:
        """The next report, while somebody watches."""


class Ring(Protocol):
    """A ring that serves."""

    @property
    def facts(self) -> RingFacts:
        """What stays as it is."""

    @property
    def stages(self) -> Sequence[RingStage]:
        """Head first."""
