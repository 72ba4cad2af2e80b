"""Where the links of a local node's stage lead: to the stage's own address, at once.

No path is looked for and nothing is encrypted, as between the processes of one machine or within a
trusted network (`--hosts`): neither would be free on the path of a token.
"""

from collections.abc import Callable
from dataclasses import dataclass

from molink.control.messages.payloads import Assignment, StageLink
from molink.coordinator.local.fixed_plan import RingPlan
from molink.coordinator.members.ring import COORDINATOR
from molink.node.link_routes import MovePath, ring_terms
from molink.stage_protocol.messages import JoinRing, PathMoved, StageLoaded
from molink_scheduler.link.facts import LinkMemory

__all__ = ["DirectRoutes"]


@dataclass(frozen=True, slots=True)
class DirectRoutes:
    """Routes of one local stage's links."""

    upload_bytes_per_s: Callable[[], float | None]
    is_tail: bool
    next_memory: LinkMemory | None = None
    """What was last known of the link to the next stage..."""
    coordinator_memory: LinkMemory | None = None
    """...and of that to the coordinator."""

    @classmethod
    def of(cls, plan: RingPlan, index: int) -> "DirectRoutes":
        """For one stage of a plan."""
        cap = plan.upload_mbps * 1e6 / 8 if plan.upload_mbps else None
        following = (index + 1) % len(plan.works)
        memory = plan.memory(index, following), plan.memory(index, COORDINATOR)
        return cls(lambda: cap, following == 0, *memory)

    @property
    def paths(self) -> dict[str, str]:
        """Always direct."""
        links = ("next", "coordinator") if self.is_tail else ("next",)
        return dict.fromkeys(links, "direct")

    def listen(self, loaded: StageLoaded) -> None:
        """Nobody else leads anybody to it."""

    async def join_command(self, assignment: Assignment, move: MovePath) -> JoinRing:
        """With the addresses of the assignment; the last one is where a stage listens."""
        assert assignment.next_link is not None
        tail_link = assignment.coordinator_link
        return JoinRing(
            ring=ring_terms(assignment),
            epoch=assignment.epoch,
            next_address=_address(assignment.next_link),
            coordinator_address=_address(tail_link) if tail_link is not None else None,
            upload_bytes_per_s=self.upload_bytes_per_s(),
            next_memory=self.next_memory,
            coordinator_memory=self.coordinator_memory if tail_link is not None else None,
        )

    def path_moved(self, moved: PathMoved) -> None:
        """Nothing is ever moved."""

    async def leave(self) -> None:
        """There is nothing to end."""


def _address(link: StageLink) -> str:
    return f"tcp://{link.addresses[-1]}"
