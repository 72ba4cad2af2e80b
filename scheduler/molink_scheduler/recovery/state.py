"""State of a ring's recovery, a frozen value."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from molink_scheduler.recovery.events import Loss, PlaceReady
from molink_scheduler.recovery.instructions import Extends, NextMember
from molink_scheduler.recovery.members import Member, RingRoom
from molink_scheduler.resume import Positions, held_behind

RECOVER_WITHIN_S = 60.0
"""A small download and the import of torch on a busy PC; after that users are better off with a
ring that is dealt anew, which loads too."""

LOST_AGAIN_S, LOST_AGAIN_MAX_S = 60.0, 3600.0
"""A node that loses its stage again within this time has a reason: another one takes its place, or
the ring is planned anew. Twice as long after each further loss."""


class Phase(StrEnum):
    """Progress of a ring on its way into the next epoch."""

    SERVING = "serving"
    SEARCHING = "searching"
    """For who fills the places of what is lost."""
    LOADING = "loading"
    JOINING = "joining"
    GOING_ON = "going_on"
    """All stages have joined, and requests do not flow yet."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Node that is not to load a stage again for a while."""

    node: str
    times_lost: int
    until: float

    def once_more(self, now: float) -> "HeldBack":
        """The same node, which has lost its stage again."""
        again_s = min(LOST_AGAIN_MAX_S, LOST_AGAIN_S * 2.0 ** min(self.times_lost, 30))
        return HeldBack(self.node, self.times_lost + 1, now + again_s)


@dataclass(frozen=True, slots=True)
class Search:
    """Search for who fills the places of what is lost."""

    losses: tuple[Loss, ...]
    """By place."""
    fillings: tuple[NextMember | None, ...] = ()
    """Answers so far, one for each loss; None: nobody can."""
    extended: tuple[Extends, ...] = ()
    """Neighbours that take holes, by place of the hole, so far."""
    fed: frozenset[int] = frozenset()
    """Places of neighbours behind their hole, which are fed like fresh ones."""

    @property
    def holes(self) -> frozenset[int]:
        """Places that nobody fills, once all answers are there."""
        answered = zip(self.losses, self.fillings, strict=False)
        return frozenset(loss.place for loss, next_member in answered if next_member is None)


@dataclass(frozen=True, slots=True)
class RingRecovery:
    """Ring that serves, or is on its way into its next epoch."""

    room: RingRoom
    members: tuple[Member, ...]
    phase: Phase = Phase.SERVING
    began_at: float | None = None
    """Time of the first loss; None: the ring serves."""
    loaded_at: float = 0.0
    """Time at which all that was lost was loaded again."""
    attempt: int = 0
    """Number of the latest way into the next epoch."""
    held_back: tuple[HeldBack, ...] = ()
    search: Search | None = None
    listed: Positions = ()
    """Requests that stages were told to keep in this attempt."""
    ready: tuple[PlaceReady, ...] = ()

    @property
    def fresh(self) -> frozenset[int]:
        """Places of stages that hold nothing of the ring's requests."""
        return self.places(lambda member: member.is_fresh)

    @property
    def due_at(self) -> float | None:
        """Time at which it is too late; None: the ring serves."""
        return None if self.began_at is None else self.began_at + RECOVER_WITHIN_S

    @property
    def chains_stay(self) -> bool:
        """Whether survivors may keep what is cached: the head knows what that is, and a stage that
        has taken another one's layers is fed in ways that know no cached blocks."""
        can = self.room.prefix_cache and self.room.state_slots is None
        return can and 0 not in self.fresh and not any(one.has_grown for one in self.members)

    def held(self, listed: Positions) -> dict[int, Positions]:
        """Tokens that each fresh stage holds of the requests that go on, by place."""
        shadowed = {place: dict(self.members[place].shadowed) for place in self.fresh}
        return held_behind(dict(listed), shadowed, self.fresh)

    def left_s(self, now: float) -> float:
        """Time that is left for it."""
        return RECOVER_WITHIN_S if self.due_at is None else max(0.0, self.due_at - now)

    def places(self, meets: Callable[[Member], bool]) -> frozenset[int]:
        """Places of members that meet a condition."""
        return frozenset(place for place, one in enumerate(self.members) if meets(one))

    def not_yet(self, now: float) -> tuple[str, ...]:
        """Nodes that must not load a stage again by now."""
        return tuple(one.node for one in self.held_back if now < one.until)

    def with_losses(self, nodes: tuple[str, ...], now: float) -> "RingRecovery":
        """The same, with one more loss of each of these nodes."""
        known = {one.node: one for one in self.held_back}
        for node in nodes:
            known[node] = known.get(node, HeldBack(node, 0, now)).once_more(now)
        return replace(self, held_back=tuple(known.values()))
