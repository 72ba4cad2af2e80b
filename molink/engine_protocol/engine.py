"""The seam between a stage and what computes its layers: an engine, behind eleven methods.

The stage owns links, the clock and the core's decisions; the engine owns the device, with weights,
KV and states. What passes are plain values (`values`): a stage imports no torch, and whoever
changes its loop reads none of the engine's rooms. `molink.engine.local_engine` is the engine of a
stage's process; a test's is a small class.

Rejected: a process of its own for the engine, because each step would cross a pipe twice.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from molink.engine_protocol.values import (
    BlockBytes,
    EngineReport,
    Fed,
    Held,
    Prepared,
    RowsKept,
    StepInputs,
    StepResult,
)
from molink.stage_protocol.messages import Borrow, LoadStage
from molink_scheduler.batch import Batch, Release
from molink_scheduler.kv.changes import OutwardChange
from molink_scheduler.resume import Resume


class BlocksIn(Protocol):
    """Cached blocks on their way into a device's memory, which one thread fills while another
    computes."""

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the blocks in the cache."""

    @property
    def is_there(self) -> bool:
        """Whether nothing is to be filled any more."""

    # -- in the thread that fills them ----------------------------------------------------------

    def only(self, count: int) -> bool:
        """The first of the blocks will come, so many, and no others; False: they were given up, and
        nothing may be filled."""

    def fill(self, blocks_W: Sequence[BlockBytes]) -> None:
        """Copy packed blocks in, in their order, layer by layer; returns when all can be read."""

    def end(self, failure: Exception) -> None:
        """None of the blocks will ever be there."""

    # -- in the thread that computes ------------------------------------------------------------

    def settle(self, numbers: Iterable[int]) -> None:
        """Return when nothing is filled any more where some of these blocks are: others may write
        there next. What is not sure to come is given up."""

    def check(self) -> None:
        """Raises StageError where the blocks will never be there."""


class BlocksOut(Protocol):
    """Cached blocks on their way out of a device's memory, which one thread copies while another
    computes. They are nobody's from now on; who writes there sees to it that nothing is lost."""

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the blocks in the cache."""

    # -- in the thread that copies them ---------------------------------------------------------

    def memory(self, blocks: int) -> BlockBytes:
        """Memory of the host for so many of them, [B, W], which goes back to the system when nobody
        has it any more. Raises MemoryError."""

    def copy(self, out_BW: BlockBytes) -> Collection[int]:
        """Copy the next of them, as many as there is memory for here; which of these are lost."""

    def give_up(self) -> None:
        """Have no more of them copied."""


class CachedBlocks(Protocol):
    """The part of an engine that moves cached blocks."""

    def blocks_out(self, change: OutwardChange) -> BlocksOut | None:
        """Keep, drop and put away blocks as the head says; what is put away from here, to be copied
        by another thread, while steps go on."""

    def blocks_copied(self, numbers: Sequence[int]) -> BlockBytes | None:
        """Copies of cached blocks, packed, [B, W], which stay where they are; None where one lies
        in no memory of the device's own."""

    def blocks_in(self, numbers: Sequence[int]) -> BlocksIn:
        """Let the cache hold free blocks under these numbers; they are to be filled by another
        thread, while steps go on."""


class Engine(CachedBlocks, Protocol):
    """What computes a stage's layers and keeps their KV. For one thread at a time."""

    def prepare(
        self, load: LoadStage, progress: Callable[[float], None], held: Held | None = None
    ) -> Prepared:
        """Load layers, beside those that it has if the stage has `held` something. Raises UserError
        or StageError with one sentence."""

    def admit(
        self, batch: Batch, interrupt: Callable[[], None], make_room: Callable[[], None]
    ) -> Iterable[Fed]:
        """Be ready for the requests of a batch, before its step: while this is iterated, layers
        that were taken compute what they lack of these. `interrupt` and `make_room` as in
        `step`."""

    def step(
        self, inputs: StepInputs, interrupt: Callable[[], None], make_room: Callable[[], None]
    ) -> StepResult:
        """Compute one batch. `interrupt` is called in every layer, and may compute steps of other
        requests, which then end before this one; `make_room` gives up what the PC's memory can do
        without. Raises DeviceMemoryError where the device has no room, StageError for a batch that
        cannot be computed."""

    def release(self, release: Release, *, wiped: bool) -> None:
        """Forget a request; one that is unknown is fine. `wiped`: its numbers have left their
        range, and are to be in nobody's way."""

    def rows_kept(
        self, resume: Resume, computed: dict[int, int], has_rows: Callable[[int, int], bool]
    ) -> RowsKept:
        """Go on in the ring's next epoch with KV of the rows that `resume` lists, and no more of
        each request. `computed` and `has_rows` as for `Resume.missing`."""

    def hold(self, blocks: int) -> None:
        """Have places for so many KV blocks from now on, no more than were prepared. Memory of
        others, which nothing is in, goes back to the PC. Raises ValueError where more are held."""

    def borrow(self, command: Borrow) -> None:
        """Have KV lie at a lender as well, once that answers: `report` tells of more blocks then.
        Where there is one, or the lease is of no use, nothing changes. The lease that it has, for
        fewer tokens: `report` tells of fewer blocks, and places go back once it holds no more."""

    def report(self, *, watched: bool) -> EngineReport:
        """What it holds. To a PC that is short of memory it gives back what nothing is in.
        `watched`: others compare its rows, which it sketches from the first such report on."""
