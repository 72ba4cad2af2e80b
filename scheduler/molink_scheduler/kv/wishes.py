"""Wishes that cached chains stay for some time: who makes them comes back, and says so.

A wish stands for seconds after each use of a chain's first blocks. While it lives, these go behind
all that nobody wished of the same owner (`owners`): it chooses among what an owner holds, and takes
nothing from others. So a share per key bounds wishes, too: who wishes for everything has wished for
nothing. Pinning what is wished was rejected: a ring could then be filled by who wishes most.

Time is told (`pass_time`), so that wishes lapse in virtual time as they do in real one.

Pure.
"""

import heapq
from dataclasses import dataclass, field

LAPSES_MAX = 1024
"""Entries of wishes that are no more, beside twice one for each, before they are swept out."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Wish for the blocks of one node."""

    keep_s: int
    until: float
    """Time at which it lapses, unless they are used before."""


@dataclass(slots=True)
class Wishes:
    """Wishes that live, by the node of the directory."""

    now: float = 0.0
    """Time that was told last."""
    _live: dict[int, Wish] = field(default_factory=dict)
    _lapses: list[tuple[float, int]] = field(default_factory=list)
    """Heap of times at which a node's wish may lapse; its last use decides."""

    def __contains__(self, here: int) -> bool:
        return here in self._live

    def of(self, here: int) -> Wish | None:
        """The wish for a node; None: nobody has any."""
        return self._live.get(here)

    def add(self, here: int, keep_s: int) -> None:
        """Have a node kept for so long after each use; of two wishes the longer one counts."""
        before = self._live.get(here)
        longer_s = max(keep_s, before.keep_s if before is not None else 0)
        self._live[here] = Wish(longer_s, self.now + longer_s)
        if before is None:
            self._sweep()
            heapq.heappush(self._lapses, (self.now + longer_s, here))

    def used(self, here: int) -> None:
        """A node is used now."""
        if (wish := self._live.get(here)) is not None:
            self._live[here] = Wish(wish.keep_s, self.now + wish.keep_s)

    def follow(self, there: int, wish: Wish | None) -> None:
        """Let a node have the wish of another one, whose blocks it has."""
        if wish is not None:
            self._live[there] = wish
            heapq.heappush(self._lapses, (wish.until, there))

    def forget(self, here: int) -> None:
        """A node is no more."""
        self._live.pop(here, None)

    def lapse(self, now: float) -> list[int]:
        """Nodes whose wishes lapse as time passes."""
        self.now, lapsed = now, []
        while self._lapses and self._lapses[0][0] <= now:
            _, here = heapq.heappop(self._lapses)
            wish = self._live.get(here)
            if wish is not None and wish.until > now:
                heapq.heappush(self._lapses, (wish.until, here))
            elif self._live.pop(here, None) is not None:
                lapsed.append(here)
        return lapsed

    def _sweep(self) -> None:
        if len(self._lapses) > 2 * len(self._live) + LAPSES_MAX:
            self._lapses = [(wish.until, here) for here, wish in self._live.items()]
            heapq.heapify(self._lapses)
