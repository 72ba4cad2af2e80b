"""Routes of a stage's links, as its manager asks for them: where they lead, what they may carry.

An agent looks for paths, through a relay where none is direct; a local node takes the address that
it is told.
"""

from collections.abc import Callable
from typing import Protocol

from molink.control.messages.payloads import Assignment
from molink.errors import StageError
from molink.stage_protocol.messages import JoinRing, OutgoingLink, PathMoved, StageLoaded
from molink_scheduler.head.settings import RingTerms

__all__ = ["LinkRoutes", "MovePath", "ring_terms"]

MovePath = Callable[[OutgoingLink, str], None]
"""Tells a stage to lead one of its links over another address."""


class LinkRoutes(Protocol):
    """Routes of the links of one node's stage."""

    @property
    def upload_bytes_per_s(self) -> Callable[[], float | None]:
        """The cap on everything that leaves, as it is now; None: there is none."""

    @property
    def paths(self) -> dict[str, str]:
        """Path of each outgoing link: "direct" or "relay"."""

    def listen(self, loaded: StageLoaded) -> None:
        """Lead others to the ports at which the stage listens."""

    async def join_command(self, assignment: Assignment, move: MovePath) -> JoinRing:
        """The stage's place in the ring, once each link has a route; `move` is called when one has
        a better one later. Raises StageError when one has none."""

    def path_moved(self, moved: PathMoved) -> None:
        """Take note that the stage has moved a link, or could not."""

    async def leave(self) -> None:
        """End the routes: the stage is in no ring any more."""


def ring_terms(assignment: Assignment) -> RingTerms:
    """What the coordinator decides of the ring. Raises StageError when it cannot be read."""
    if not isinstance(assignment.join, RingTerms):
        raise StageError("The coordinator speaks another version: update MoLink.")
    return assignment.join
