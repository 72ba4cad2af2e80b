"""Stages of a ring as its recovery knows them."""

from dataclasses import dataclass, replace

from molink_scheduler.resume import Positions


@dataclass(frozen=True, slots=True)
class Room:
    """Room that a loaded stage has."""

    kv_tokens: int
    state_slots: int | None = None
    """Requests whose states it holds; None: its layers keep none."""


@dataclass(frozen=True, slots=True)
class Member:
    """Stage in one place of a ring."""

    node: str
    """Id of the node that hosts it."""
    layers: tuple[int, int]
    """[start, end)."""
    room: Room | None = None
    """None: its layers are to be loaded."""
    is_fresh: bool = False
    """Whether it holds nothing of the ring's requests, and is fed by the stage before it."""
    has_grown: bool = False
    """Whether its process has taken, or is to take, a lost stage's layers beside its own."""
    shadowed: Positions = ()
    """Pairs (request, its first tokens of which a shadow holds KV although it is fresh)."""

    def filled_by(self, filler: "Filler") -> "Member":
        """The stage on another node that takes its place."""
        return Member(filler.node, self.layers, filler.room, True, False, filler.shadowed)

    def reloaded(self) -> "Member":
        """The stage on the same node that is to load its layers again."""
        return Member(self.node, self.layers, is_fresh=True)

    def with_room(self, room: Room) -> "Member":
        """The same, which has loaded its layers now."""
        return replace(self, room=room, shadowed=())

    def serving(self) -> "Member":
        """The same, whose ring serves: it has been fed."""
        return replace(self, is_fresh=False, shadowed=())


@dataclass(frozen=True, slots=True)
class Filler:
    """Node that can take a lost one's place."""

    node: str
    room: Room | None = None
    """Room beside the layers, which it has loaded; None: it is to load them."""
    shadowed: Positions = ()
    """Pairs (request, its first tokens of which it holds KV as the stage's shadow)."""


@dataclass(frozen=True, slots=True)
class RingRoom:
    """Room that a ring counts with, and so every stage of it must have."""

    kv_tokens: int
    state_slots: int | None = None
    """Requests whose states it holds; None: no layer keeps any."""
    prefix_cache: bool = False
    """Whether it caches KV of prompts."""
