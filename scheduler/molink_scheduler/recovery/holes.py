"""Holes of a ring, and the neighbours that take their layers beside their own.

Where no other node can hold a lost stage's layers, its ring goes on with one place less. The stage
before the hole takes them, because it has sent all rows that they need (`stage.extension`). For a
lost head, and where that stage has no room, the one behind the hole does; it is fed like a fresh
stage. Stages that are lost side by side are one hole. A stage that is fresh itself takes nothing:
it would have two things to load while users wait.

Rejected: to divide a hole among both neighbours where neither has room for all of it. What is left
of the model then hangs on memory that is all but full, and a plan finds better.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass

from molink_scheduler.recovery.members import Member


@dataclass(frozen=True, slots=True)
class Hole:
    """Places without a stage that lie side by side."""

    first: int
    last: int

    def layers(self, members: tuple[Member, ...]) -> tuple[int, int]:
        """Layers that were there, [start, end)."""
        return members[self.first].layers[0], members[self.last].layers[1]

    def able(self, members: tuple[Member, ...], taken: Set[int]) -> tuple[int, ...]:
        """Places next to it whose stages may take its layers, but for those that are `taken`: the
        one before it first."""
        beside = (self.first - 1, self.last + 1)
        places = (place for place in beside if 0 <= place < len(members))
        return tuple(one for one in places if one not in taken and members[one].room is not None)


def holes(places: Set[int]) -> Iterator[Hole]:
    """Holes that these places make, in their order."""
    for first in sorted(places):
        if first - 1 in places:
            continue
        last = first
        while last + 1 in places:
            last += 1
        yield Hole(first, last)


def both(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Layers of two runs that lie side by side."""
    return min(one[0], other[0]), max(one[1], other[1])
