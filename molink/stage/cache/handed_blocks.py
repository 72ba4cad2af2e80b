"""Blocks that have come from the stage of another ring, by request, until they are taken."""

import threading
import time
from dataclasses import dataclass, field

from molink.engine_protocol.values import BlockBytes
from molink.stage.cache.pair import Blocks
from molink.stage.cache.pair_figures import PairFigures

HELD_BYTES_MAX = 512 * 2**20
"""Bytes of blocks that nobody has taken yet, at most; the oldest request's make room."""

HELD_S = 60.0
"""Seconds until blocks that nobody has taken are nobody's: their request was cancelled, or went to
another ring."""

WAIT_S = 2.0
"""Longest wait for blocks that are on their way within a PC or a LAN; the head waits for 5 s."""

Source = tuple[int, int]
"""Epoch of the other ring, and its request."""


@dataclass(slots=True)
class _Handed:
    """Blocks of one request, by their index in its prompt."""

    came_at: float
    blocks: dict[int, BlockBytes] = field(default_factory=dict)


@dataclass(slots=True)
class HandedBlocks:
    """Room for blocks that come, and what is known of the end that sends them; for any thread."""

    block_bytes: int
    figures: PairFigures = field(default_factory=PairFigures)
    links: int = field(init=False, default=0)
    """Links to the other end."""
    _handed: dict[Source, _Handed] = field(init=False, default_factory=dict)
    """Oldest first."""
    _was_there: bool = field(init=False, default=False)
    """Whether the other end has ever spoken; before, it may be about to."""
    _is_halting: bool = field(init=False, default=False)
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)

    def keep(self, which: Blocks, blocks_BW: BlockBytes) -> None:
        """Keep blocks that have come, of `block_bytes` each."""
        source, now = (which.epoch, which.request_id), time.monotonic()
        self.figures.moved(which.blocks, blocks_BW.nbytes)
        with self._changed:
            handed = self._handed.setdefault(source, _Handed(now))
            for place, block_W in enumerate(blocks_BW, which.first):
                self.figures.hold((place not in handed.blocks) * self.block_bytes)
                handed.blocks[place] = block_W
            self._make_room(source, now)
            self._changed.notify_all()

    def take(self, source: Source, first: int, count: int) -> list[BlockBytes]:
        """Blocks of a request from the first on, as many as come, which are held no more."""
        began = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._is_settled(source, first, count), WAIT_S)
            handed = self._forget(source)
        found: list[BlockBytes] = []
        while len(found) < count and (block_W := handed.get(first + len(found))) is not None:
            found.append(block_W)
        self.figures.taken(len(found), count - len(found), time.monotonic() - began)
        return found

    def halt(self, *, is_halting: bool) -> None:
        """Wait for nothing more that is asked for, until told otherwise."""
        with self._changed:
            self._is_halting = is_halting
            self._changed.notify_all()

    def spoke(self, links: int = 0) -> None:
        """The other end has spoken, over so many links more, or fewer."""
        with self._changed:
            self.links += links
            self._was_there = True
            self._changed.notify_all()

    def _is_settled(self, source: Source, first: int, count: int) -> bool:
        blocks = self._handed[source].blocks if source in self._handed else {}
        missing = next((one for one in range(first, first + count) if one not in blocks), None)
        return (
            missing is None
            or (self._was_there and not self.links)
            or self._is_halting
            or any(one > missing for one in blocks)
        )

    def _forget(self, source: Source) -> dict[int, BlockBytes]:
        handed = self._handed.pop(source, None)
        if handed is None:
            return {}
        self.figures.hold(-len(handed.blocks) * self.block_bytes)
        return handed.blocks

    def _make_room(self, newest: Source, now: float) -> None:
        for source, handed in list(self._handed.items()):
            is_old = now - handed.came_at > HELD_S and source != newest
            if is_old or self.figures.held_bytes > HELD_BYTES_MAX:
                self._forget(source)
