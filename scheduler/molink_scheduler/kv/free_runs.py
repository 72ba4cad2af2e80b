"""Free KV blocks as runs of neighbours, found by length.

Pure.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class FreeRuns:
    """Set of blocks, kept as its maximal runs."""

    blocks: int = 0
    """Number of blocks in all runs together."""
    _stop_of: dict[int, int] = field(default_factory=dict)
    _start_of: dict[int, int] = field(default_factory=dict)
    """First block of each run, by where the run ends."""
    _by_length: list[tuple[int, int]] = field(default_factory=list)
    """Pairs (length, start) of all runs, ascending."""

    def add(self, run: range) -> None:
        """Add blocks, none of which is in the set."""
        if not run:
            return
        start, stop = run.start, run.stop
        if (before := self._start_of.get(start)) is not None:
            self._remove(before)
            start = before
        if stop in self._stop_of:
            stop = self._remove(stop)
        self._insert(start, stop)

    def starts_at(self, block: int) -> bool:
        """Whether a run begins with this block."""
        return block in self._stop_of

    def fit(self, blocks: int) -> range:
        """The first blocks of the smallest run that has so many, else the largest run whole; empty
        where nothing is free."""
        if not self._by_length:
            return range(0)
        place = bisect_left(self._by_length, (blocks, 0))
        length, start = self._by_length[min(place, len(self._by_length) - 1)]
        return range(start, start + min(blocks, length))

    def runs(self) -> Iterator[range]:
        """All runs, in no order."""
        return (range(start, stop) for start, stop in self._stop_of.items())

    def take(self, run: range) -> None:
        """Take the first blocks of a run out of the set."""
        if not run:
            return
        stop = self._remove(run.start)
        if run.stop < stop:
            self._insert(run.stop, stop)

    def _insert(self, start: int, stop: int) -> None:
        self._stop_of[start], self._start_of[stop] = stop, start
        insort(self._by_length, (stop - start, start))
        self.blocks += stop - start

    def _remove(self, start: int) -> int:
        """Take a whole run out; where it ends."""
        stop = self._stop_of.pop(start)
        del self._start_of[stop]
        del self._by_length[bisect_left(self._by_length, (stop - start, start))]
        self.blocks -= stop - start
        return stop
