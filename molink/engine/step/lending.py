"""Blocks of one executor that lie at a lender: when they go, and what steps attend to there."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

import torch

from molink.engine.device.elements import dtype_name
from molink.engine.layers.held_blocks import HeldBlocks, copy_in
from molink.engine.layers.lent_attention import LentStep
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.lent_blocks import LentBlocks
from molink.engine.memory.moving_blocks import MovingBlocks, all_let_in
from molink.engine.memory.packed_blocks import PackedBlocks
from molink.engine.memory.prompt_cuts import PromptCuts
from molink.engine.memory.ragged_batch import RaggedSpan
from molink.engine.memory.step_plan import StepPlan
from molink.engine.memory.window_pool import WindowPool
from molink.engine_protocol.lender import Lender, LentKv, LentLayer
from molink.errors import LenderLostError, UnsupportedModelError
from molink.stage_protocol.health import LenderHealth
from molink_scheduler.batch import DRAFTS_MAX, Batch
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks
from molink_scheduler.kv.capacity import PASSING_SHARE, requests_beside_lender

PIECE_BYTES = 32 * 2**20
"""Bytes of blocks that go at a time: 10 ms over a socket."""

WEIGHT_OF_NEWEST_STEP = 0.1
"""Weight of a step in the smoothed time that steps wait, as in that of decode steps."""

AHEAD_BLOCKS = 32
"""Blocks that go beyond those that are wanted now, so that not every step has some to move."""

GIVE_BACK_S = 0.3
"""Seconds between two reports for which a stage that gives places back computes nothing: it goes on
at the next report, so half of the link's rate is used, and its ring is not held up for long."""


@dataclass(slots=True)
class Lending:
    """Lender of one executor's blocks; for the executor's thread."""

    lender: Lender
    kv: LentBlocks
    pool: KvPool
    moving: MovingBlocks
    """Blocks that other threads copy, which stay where they are."""
    places: int
    """Blocks that the lender has room for."""
    held: HeldBlocks
    """Room for lent keys that a step has brought, of one layer at a time."""
    cuts: PromptCuts
    """Requests whose prompts are cut, which a ring without a lender had let in: all of theirs stays
    where it is, to be scored, moved and folded."""
    step_wait_s: float = field(init=False, default=0.0)
    """Smoothed seconds for which decode steps with lent keys wait for the lender, in all layers; 0:
    there was none."""
    row_key_wait_s: float = field(init=False, default=0.0)
    """Smoothed seconds for which steps of prompts wait for the lender, for each row and each lent
    key that it reads, in all layers; 0: there was none."""
    _under_way: list[frozenset[int]] = field(init=False, default_factory=list)
    """Blocks of the steps under way, which read them where they are."""
    _left: int | None = field(init=False, default=None)
    """Places that its lender lets it keep; None: all."""

    @property
    def device(self) -> torch.device:
        """Where the stage computes."""
        return next(iter(self.pool.layers.values())).keys.rows_SKA.device

    @property
    def blocks_offered(self) -> int:
        """Blocks that the ring may count with: places that are wanted back are none of them."""
        left = self.places if self._left is None else self._left
        return min(self.kv.blocks_total, self.kv.blocks_here + left)

    @property
    def rows_max(self) -> int:
        """Rows of a step that there is room for."""
        return self.kv.blocks_here // PASSING_SHARE * BLOCK_TOKENS

    @property
    def requests_max(self) -> int:
        """Requests that may hold blocks at a time."""
        return requests_beside_lender(self.kv.blocks_here)

    def let_in(self, blocks: int) -> int:
        """Have room for cached blocks that come in: for how many of so many."""
        most = self.kv.blocks_here // PASSING_SHARE - len(self.moving.filled())
        wanted = max(0, min(blocks, most))
        self.make_room(wanted)
        return min(wanted, self.kv.free_here)

    def make_room(self, blocks: int) -> None:
        """Have so many blocks of its own memory free, where others may go."""
        missing = blocks - self.kv.free_here
        if missing <= 0 or not (moves := self.kv.lend(missing + AHEAD_BLOCKS, self._busy())):
            return
        packed = PackedBlocks((self.pool,))
        count = max(1, PIECE_BYTES // packed.block_bytes)
        for first in range(0, len(moves), count):
            here, places = zip(*moves[first : first + count], strict=True)
            self.lender.put(places, packed.take([here]))

    def recall(self, places: int) -> None:
        """The lender wants all but its first places back: `give_back` does that once the ring
        counts with less."""
        self._left = min(places, self.places if self._left is None else self._left)

    def give_back(self) -> bool:
        """Give places back that are wanted, as far as `GIVE_BACK_S` reaches, between two steps;
        whether none is left, and the lender has ended."""
        left, until = self._left, time.monotonic() + GIVE_BACK_S
        if left is None or self.kv.blocks_total > self.kv.blocks_here + left:
            return False
        with suppress(LenderLostError):  # What is not home yet is lost as any other.
            while self.places > left and time.monotonic() < until:
                if not self._give_back_some(left):
                    break
        return not self.places

    def _give_back_some(self, left: int) -> bool:
        most = max(1, PIECE_BYTES // PackedBlocks((self.pool,)).block_bytes)
        going, moves = self.kv.leaving(left, most)
        if not going:
            return False
        first = self.kv.first_away
        home = [(one - first, to) for one, to in moves.items() if to < self.kv.blocks_here]
        there = [(one - first, to - first) for one, to in moves.items() if to >= first]
        self.moving.vacate({block for _, block in home})
        for layer, tensors in self.pool.block_rows_by_layer().items() if home else ():
            rows_BX = self.lender.take(layer, [place for place, _ in home])
            with torch.inference_mode():
                copy_in(tensors, [block for _, block in home], rows_BX)
        self.lender.keep(going.start - first, there)
        self.kv.leave(going, moves)
        self.places = going.start - first
        return True

    @contextmanager
    def reading(self, spans: Sequence[RaggedSpan]) -> Iterator[LentStep | None]:
        """The parts that a step's spans attend to, None where all of their keys are here; inside
        the block none of what it reads is moved."""
        blocks = frozenset(block for span in spans for block in span.blocks)
        self._under_way.append(blocks)
        try:
            given = self.kv.first_away, self.lender, self.held, self.device
            yield (parts := LentStep.of(spans, *given))
        finally:
            self._under_way.pop()
        if parts is None:
            return
        if max(span.rows for span in spans) <= 1 + DRAFTS_MAX:
            self.step_wait_s = _smoothed(self.step_wait_s, parts.waited_s)
        else:
            each_s = parts.waited_s / parts.row_keys
            self.row_key_wait_s = _smoothed(self.row_key_wait_s, each_s)

    def _busy(self) -> frozenset[int]:
        holders = self.kv.holders()
        cut = (self.kv.table(one) for one in self.cuts.requests if one in holders)
        return self.moving.filled().union(*self._under_way, *cut)


def _smoothed(before_s: float, newest_s: float) -> float:
    weight = WEIGHT_OF_NEWEST_STEP if before_s else 1.0
    return before_s + weight * (newest_s - before_s)


def make_room_for(lending: Lending | None, batch: Batch) -> None:
    """Have room for the new blocks of a batch, and for one of each request besides: steps that
    interrupt it must find some without moving what it reads."""
    if lending is not None:
        kv = lending.kv
        missing = sum(kv.blocks_missing(span.request_id, span.end) for span in batch.spans)
        lending.make_room(missing + len(kv.holders()))


def has_lent(lending: Lending | None, batch: Batch) -> bool:
    """Whether some of a batch's requests have blocks at the lender."""
    if lending is None:
        return False
    tables = (lending.kv.table(span.request_id) for span in batch.spans)
    return any(block >= lending.kv.blocks_here for table in tables for block in table)


@contextmanager
def reading(
    lending: Lending | None, plan: StepPlan
) -> Iterator[tuple[LentStep | None, LentStep | None]]:
    """The parts that a step attends to, and in layers that are cut; None where nothing is lent."""
    if lending is None:
        yield None, None
        return
    cut_spans = () if plan.cut is None else plan.cut.batch.spans
    with lending.reading(plan.batch.spans) as lent, lending.reading(cut_spans) as lent_cut:
        yield lent, lent_cut


class LendingStage(Protocol):
    """A stage's executor, as far as its blocks may lie at a lender."""

    dtype: torch.dtype
    kv: KvBlocks
    lending: Lending | None
    moving: MovingBlocks
    windows: WindowPool
    cuts: PromptCuts

    @property
    def kv_memory(self) -> KvPool:
        """The tensors behind its KV blocks."""


def lending_by(stage: LendingStage, lender: Lender, places: int) -> Lending:
    """A lender that is ready for so many blocks of a stage; from any thread, before `lend`. Raises
    UnsupportedModelError for layers that have no parts, and LenderLostError."""
    pool = stage.kv_memory
    if pool.latents or not pool.layers:
        raise UnsupportedModelError(
            "layers with latent attention lend nothing: their KV is small, and attended whole"
        )
    if stage.windows.spared:
        raise UnsupportedModelError("layers lend nothing that have a window and keep all tokens")
    layers = tuple(
        LentLayer(index, one.keys.kv_heads, one.keys.size, one.values.size)
        for index, one in sorted(pool.layers.items())
    )
    shapes = LentKv(layers, dtype_name(stage.dtype), pool.kv_dtype)
    lender.hold(shapes, places)
    kv = stage.kv if isinstance(stage.kv, LentBlocks) else LentBlocks(stage.kv.blocks_total)
    held = HeldBlocks.of(shapes, places, is_shared=True)
    return Lending(lender, kv, pool, stage.moving, places, held, stage.cuts)


def lend(stage: LendingStage, lending: Lending) -> None:
    """Let a stage's blocks lie at a lender from now on, where none is; between two steps."""
    if not isinstance(stage.kv, LentBlocks):  # It may serve, and hold blocks, for long.
        lending.kv = LentBlocks.of(stage.kv)
    lending.kv.borrow(lending.places)
    stage.kv, stage.lending, stage.moving.let_in = lending.kv, lending, lending.let_in


def give_back(stage: LendingStage) -> bool:
    """Give places back that a stage's lender wants; whether it has none any more."""
    if stage.lending is None or not stage.lending.give_back():
        return False
    stage.lending, stage.moving.let_in = None, all_let_in
    return True


def lose_lender(stage: LendingStage) -> bool:
    """Have a stage forget its lender if that is lost, with what lay there; whether it is."""
    if stage.lending is None or not stage.lending.lender.is_lost:
        return False
    stage.lending.kv.lose_lender()
    stage.lending, stage.moving.let_in = None, all_let_in
    return True


def lender_health(stages: Sequence[LendingStage]) -> LenderHealth | None:
    """Where KV of a stage of these parts lies, all of which a step passes; None: no part has ever
    had a lender."""
    lent = [one.kv for one in stages if isinstance(one.kv, LentBlocks)]
    if not lent:
        return None
    return LenderHealth(
        BLOCK_TOKENS * min(kv.blocks_here for kv in lent),
        BLOCK_TOKENS * max(kv.blocks_lent for kv in lent),
        sum(one.lending.step_wait_s for one in stages if one.lending is not None),
        sum(one.lending.row_key_wait_s for one in stages if one.lending is not None),
    )
