"""Owners of cached blocks, and whose make room where several share a ring's cache.

An owner is an API key; all who ask without one are one together. Whoever holds most of a tier gives
first, down to an equal share of what is left, so a flood of one's prompts ends at the share of the
others. Among one owner's blocks the order is that of `eviction`, and with one owner that is all.

An owner whose blocks nobody has used while as much as the whole cache holds was computed
IDLE_TURNOVERS times gives before all others, but for what it wished to keep (`wishes`): else those
who have gone would keep their shares. Time would tell better who has gone, but the directory and
the coordinator's copy of it share no clock.

Pure.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

IDLE_TURNOVERS = 16
"""A ring with room for 32,000 tokens that is flooded with 1,000 a second is turned over so often in
nine minutes, which is longer than most people take to ask on."""

OWNER_MARK = "@"
"""Mark in a salt before the name of the owner."""

Heap = list[tuple[int, ...]]
"""Ends of chains that nobody held when they were entered: whether they were wished to stay, what
ranks them, number of the entry, node."""


def owned_salt(group: str, owner: str) -> str:
    """Salt of a group's request by an owner; empty: by somebody without a key."""
    return f"{group}{OWNER_MARK}{owner}" if owner else group


def split_salt(salt: str) -> tuple[str, str]:
    """The group that shares cached blocks, and the owner of those that a request adds to it."""
    group, _, owner = salt.partition(OWNER_MARK)
    return group, owner


@dataclass(slots=True)
class Owner:
    """Cached blocks of one owner."""

    used_at: int = 0
    """How many blocks had ever been cached, of all owners, when some of its own were last used."""
    blocks: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Number of its cached blocks in each tier."""
    ends: list[Heap] = field(default_factory=lambda: [[], [], []])
    """Heap of its chains' ends in each tier."""


@dataclass(slots=True)
class Owners:
    """Cached blocks of all owners, counted, and the ends of chains that may go."""

    blocks_in: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Number of all owners' cached blocks in each tier."""
    unswept: int = 0
    """Entries in all heaps since those that do not count were last swept out."""
    _entries: int = 0
    _owners: dict[str, Owner] = field(default_factory=dict)
    """Owners that hold something, the least recently active one first."""

    def count(self, name: str, tier: int, blocks: int) -> None:
        """An owner holds so many blocks more of a tier."""
        owner = self._owners.get(name)
        if owner is None:
            owner = self._owners[name] = Owner()
        owner.blocks[tier] += blocks
        self.blocks_in[tier] += blocks
        if blocks < 0 and not any(owner.blocks):
            del self._owners[name]

    def used(self, name: str, cached: int) -> None:
        """Some of an owner's blocks are used, when so many had ever been cached."""
        if (owner := self._owners.pop(name, None)) is not None:
            self._owners[name] = owner
            owner.used_at = cached

    def follow(self, before: "Owners") -> None:
        """Take over when each was last active."""
        for name, owner in before._owners.items():
            self.used(name, owner.used_at)

    def enter(self, name: str, tier: int, rank: tuple[int, ...], here: int) -> int:
        """Let an end of an owner's chains go when its turn comes: the number of the entry."""
        self._entries += 1
        self.unswept += 1
        heapq.heappush(self._owners[name].ends[tier], (*rank, self._entries, here))
        return self._entries

    def sweep(self, counts: Callable[[int, int], bool]) -> None:
        """Forget entries that do not count."""
        self.unswept = 0
        for owner in self._owners.values():
            for heap in owner.ends:
                heap[:] = [one for one in heap if counts(*one[-2:])]
                heapq.heapify(heap)

    def turns(
        self,
        tier: int,
        blocks: int,
        asking: str | None,
        cached: int,
        counts: Callable[[int, int], bool],
        *,
        spare: bool = False,
    ) -> Iterator[tuple[int, int]]:
        """Ends of a tier, each at its turn, and how many blocks of it go at most, until so many
        have gone; each is entered no more. They count as held by the owner who is `asking`.
        `spare`: what an owner wished to keep stays, within his share."""
        left = max(0, self.blocks_in[tier] - blocks)
        while (short := self.blocks_in[tier] - left) > 0:
            holders = [one for one in self._owners.items() if one[1].blocks[tier]]
            giving = {name: one for name, one in holders if one.ends[tier]}
            if not giving:
                return
            idle = next((one for one in giving if self._gives_first(one, tier, cached)), None)
            name, share = next(iter(giving)) if idle is None else idle, 0
            if len(giving) > 1 and idle is None:
                sizes = {name: one.blocks[tier] for name, one in giving.items()}
                if asking in sizes:
                    sizes[asking] += blocks
                name = max(sizes, key=sizes.__getitem__)
                share = (sum(sizes.values()) - short) // len(sizes)
                share -= blocks if name == asking else 0
            heap, held = giving[name].ends[tier], giving[name].blocks
            kept = max(0, share, held[tier] - short)
            fair = held[tier]
            if asking not in (None, name):
                fair = (held[tier] + blocks - short) // 2 if len(giving) == 1 else kept
            while held[tier] > kept and heap:
                if idle is not None and heap[0][0]:
                    break  # What it wished to keep goes with others' shares.
                if spare and heap[0][0] and held[tier] <= (kept := max(kept, fair)):
                    return
                *_, entry, here = heapq.heappop(heap)
                if counts(entry, here):
                    yield here, held[tier] - kept

    def _gives_first(self, name: str, tier: int, cached: int) -> bool:
        """Whether an owner is idle, and has ends in a tier that nobody wished to stay."""
        owner = self._owners[name]
        is_idle = cached - owner.used_at > IDLE_TURNOVERS * sum(self.blocks_in)
        return is_idle and not owner.ends[tier][0][0]
