"""What a stage host asks about its stage's links: where they lead, and what they may carry.

An agent looks for paths, through a relay where none is direct; a local node takes the address that
it is told.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from molink.control.messages.payloads import Assignment
from molink.errors import StageError
from molink.stage_protocol.messages import JoinRing, OutgoingLink, PathMoved, StageLoaded

__all__ = ["LinkRoutes", "MovePath", "join_terms"]

MovePath = Callable[[OutgoingLink, str], None]
"""Tells a stage to lead one of its links over another address."""


class LinkRoutes(Protocol):
    """The ways of one node's stage."""

    @property
    def upload_bytes_per_s(self) -> Callable[[], float | None]:
        """The cap on everything that leaves, as it is now; None: there is none."""

    @property
    def paths(self) -> dict[str, str]:
        """Of each outgoing link "direct" or "relay"."""

    def listen(self, loaded: StageLoaded) -> None:
        """The stage listens: whoever leads others to it may do so."""

    async def join_command(self, assignment: Assignment, move: MovePath) -> JoinRing:
        """The stage's place in the ring, once each link has a way; `move` is called when one has a
        better way later. Raises StageError when one has none."""

    def path_moved(self, moved: PathMoved) -> None:
        """The stage has moved a link, or could not."""

    async def leave(self) -> None:
        """The stage is in no ring any more."""


def join_terms(join: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of JoinRing that the coordinator decides. Raises StageError for what is none."""
    try:
        return {
            "kv_tokens_capacity": int(join["kv_tokens_capacity"]),
            "micro_batch_count": _count(join["micro_batch_count"]),
            "micro_batch_candidates": tuple(int(one) for one in join["micro_batch_candidates"]),
            "span_tokens": _count(join["span_tokens"]),
            "policy": str(join["policy"]),
        }
    except (KeyError, TypeError, ValueError):
        raise StageError("The coordinator speaks another version: update MoLink.") from None


def _count(value: Any) -> int | None:
    return None if value is None else int(value)
