"""Cached KV that other threads copy into and out of one stage's blocks, and the steps beside it.

A request that begins with blocks on their way in waits for their layers; one that writes where
blocks on their way out still stand sets these aside first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from molink.engine.memory.arriving_blocks import ArrivingBlocks
from molink.engine.memory.leaving_blocks import LeavingBlocks
from molink_scheduler.batch import Admission, Batch
from molink_scheduler.kv.blocks import KvBlocks

WAITING_BYTES_MAX = 256 * 2**20
"""Bytes of blocks that were set aside and that no thread has taken over; what would be more is
lost. Two seconds of a disk that writes 128 MB a second."""


def all_let_in(blocks: int) -> int:
    """All of them: what is free lies in the device's memory."""
    return blocks


@dataclass(slots=True)
class MovingBlocks:
    """Cached blocks on their way into and out of one stage's device."""

    let_in: Callable[[int], int] = all_let_in
    """Says for how many of so many free blocks there is room, and makes it."""
    _filled: list[ArrivingBlocks] = field(init=False, default_factory=list)
    _awaited: dict[int, list[ArrivingBlocks]] = field(init=False, default_factory=dict)
    """Blocks on their way in with which each request has begun."""
    _leaving: list[tuple[LeavingBlocks, int]] = field(init=False, default_factory=list)
    """Blocks on their way out, some of which are others' by now; each with the place of this
    stage's pool among those that it leaves."""

    # -- in -------------------------------------------------------------------------------------

    def bring_back(self, kv: KvBlocks, numbers: Sequence[int]) -> ArrivingBlocks:
        """Let the cache hold free blocks under these numbers, to be filled by another thread."""
        arriving = ArrivingBlocks(tuple(numbers), kv.bring_back(numbers))
        self._filled = [*(one for one in self._filled if not one.is_there), arriving]
        return arriving

    def filled(self) -> frozenset[int]:
        """Blocks that another thread fills now."""
        arriving = (one for one in self._filled if not one.is_there)
        return frozenset(block for one in arriving for block in one.places)

    def begin(self, kv: KvBlocks, admission: Admission) -> None:
        """Let a request begin with its cached blocks: its steps wait for those that are filled."""
        numbers = list(admission.cached_numbers)
        kv.begin(admission.request_id, numbers)
        if awaited := [one for one in self._filled if one.has_any(numbers)]:
            self._awaited[admission.request_id] = awaited

    def of(self, batch: Batch) -> list[ArrivingBlocks]:
        """Blocks that a batch reads and that are not all there."""
        if not self._awaited:
            return []
        named = (one for span in batch.spans for one in self._awaited.get(span.request_id, ()))
        return [one for one in dict.fromkeys(named) if not one.is_there]

    def forget(self, request_id: int) -> None:
        """A request holds nothing any more."""
        self._awaited.pop(request_id, None)

    # -- out ------------------------------------------------------------------------------------

    def leave(self, leaving: LeavingBlocks, pool: int) -> None:
        """Let blocks be copied out that are nobody's from now on."""
        self._leaving.append((leaving, pool))

    @property
    def any_leaves(self) -> bool:
        """Whether some are still to be copied out."""
        self._leaving = [one for one in self._leaving if not one[0].is_gone]
        return bool(self._leaving)

    def make_way(self, kv: KvBlocks, batch: Batch) -> None:
        """Let a batch's rows be written: what stands there and is to be copied is set aside."""
        if not self.any_leaves:
            return
        places: set[int] = set()
        for span in batch.spans:
            places.update(kv.written(span.request_id, span.start, span.end))
        self.vacate(places)

    def vacate(self, places: set[int]) -> None:
        """Let blocks be written: what stands there and is to be copied is set aside."""
        if not self.any_leaves:
            return
        for leaving, pool in self._leaving:
            waiting = sum(one.waiting_bytes for one, _ in self._leaving if one is not leaving)
            leaving.vacate(pool, places, WAITING_BYTES_MAX - waiting)
