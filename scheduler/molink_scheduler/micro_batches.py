"""Decode groups: which running requests circle the ring together.

The number of groups is fixed here; each is out on the ring or at home. A request joins the
smallest group and stays until it ends, so that its place in the round does not change.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["MICRO_BATCH_COUNT_MAX", "MicroBatches"]

MICRO_BATCH_COUNT_MAX = 64
"""Twice the longest ring that we expect; beyond it every group is nearly empty."""


@dataclass(slots=True)
class MicroBatches:
    """Members of each decode group, and which groups are circling."""

    count: int
    _members: list[set[int]] = field(init=False)
    _circling: set[int] = field(init=False, default_factory=set)
    _turn: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MICRO_BATCH_COUNT_MAX:
            raise ValueError(
                f"the micro-batch count must be 1 to {MICRO_BATCH_COUNT_MAX}, got {self.count}"
            )
        self._members = [set() for _ in range(self.count)]

    def join(self, request_id: int) -> int:
        """Put a request into the smallest group, and say which."""
        group = min(range(self.count), key=lambda g: (len(self._members[g]), g))
        self._members[group].add(request_id)
        return group

    def leave(self, request_id: int) -> None:
        """Take a request out of its group; one that is in none is fine."""
        for members in self._members:
            members.discard(request_id)

    def members(self, group: int) -> frozenset[int]:
        """Requests of a group."""
        return frozenset(self._members[group])

    def idle(self) -> Iterator[int]:
        """Groups at home, the one that has waited longest for its turn first."""
        for offset in range(self.count):
            group = (self._turn + offset) % self.count
            if group not in self._circling:
                yield group

    def departed(self, group: int) -> None:
        """The group's batch went out."""
        self._circling.add(group)
        self._turn = (group + 1) % self.count

    def returned(self, group: int) -> None:
        """The group's batch came back."""
        self._circling.discard(group)
