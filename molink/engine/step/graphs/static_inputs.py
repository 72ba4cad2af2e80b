"""Inputs of a recorded decode step: tensors that stay where they are, filled for each step.

A recording has as many rows as its bucket. Those that a step does not need are padding: they have
no keys, and write to a block and a state slot that the pools keep for them.

Shapes: R rows of the bucket, B blocks of the longest context, D hidden size, C columns of numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from molink.engine.device.streams import uploaded
from molink.engine.memory.ragged_batch import DecodeTables
from molink.engine.memory.step_plan import StepPlan
from molink_scheduler.kv.blocks import BLOCK_TOKENS

BUCKETS = (128, 64, 32, 16, 8, 4, 2, 1)
"""Rows of recorded steps, drafts among them, the largest first: the others fit into the memory that
it took."""

TOKEN_ID, POSITION, SLOT, KEYS, STATE_SLOT, WINDOW_SLOT = range(6)
"""Columns of numbers."""


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """Row of a decode step."""

    token_id: int
    """0 where layers do not read it."""
    position: int
    blocks: Sequence[int]
    """Blocks of its request, with the block of this position."""
    state_slot: int
    """Slot of its request's states; any where layers keep no states."""
    window_blocks: Sequence[int] = ()
    """Blocks of its request in layers with a window; empty where none has one."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The row's number for each column, in the order of the columns."""
        slot = self._slot(self.blocks)
        near = self._slot(self.window_blocks) if self.window_blocks else 0
        return self.token_id, self.position, slot, self.position + 1, self.state_slot, near

    def _slot(self, blocks: Sequence[int]) -> int:
        block, offset = divmod(self.position, BLOCK_TOKENS)
        return blocks[block] * BLOCK_TOKENS + offset


@dataclass(slots=True)
class StaticInputs:
    """Tensors that a recorded step of R rows reads."""

    rows: int
    blocks: int
    hidden_size: int
    dtype: torch.dtype
    device: torch.device
    padding: tuple[int, int, int]
    """KV slot, state slot and slot of windows of rows that belong to nobody."""
    has_windows: bool = False
    hidden_RD: torch.Tensor = field(init=False)
    _numbers_CR: torch.Tensor = field(init=False)
    _blocks_RB: torch.Tensor = field(init=False)
    _window_blocks_RB: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.hidden_RD = self._zeros(self.rows, self.hidden_size, dtype=self.dtype)
        self._numbers_CR = self._zeros(WINDOW_SLOT + 1, self.rows)
        self._blocks_RB = self._zeros(self.rows, self.blocks)
        self._window_blocks_RB = self._zeros(self.rows, self.blocks if self.has_windows else 0)
        self.fill((), None)

    def fill(
        self,
        rows: Sequence[DecodeRow],
        hidden_TD: torch.Tensor | None,
        beside: Sequence[np.ndarray] = (),
    ) -> list[torch.Tensor]:
        """Hold a step's rows, at most R, and padding behind them; `hidden_TD` on all stages but the
        head. One upload of numbers, that nothing waits for; returns what went up `beside` them."""
        numbers_CR = np.zeros((WINDOW_SLOT + 1, self.rows), np.int32)
        for column, slot in zip((SLOT, STATE_SLOT, WINDOW_SLOT), self.padding, strict=True):
            numbers_CR[column] = slot
        for number, row in enumerate(rows):
            numbers_CR[:, number] = row.numbers
        tables = [_tables([row.blocks for row in rows])]
        tables += [_tables([row.window_blocks for row in rows])] if self.has_windows else []
        numbers, *sent = uploaded([numbers_CR, *tables, *beside], self.device)
        self._numbers_CR.copy_(numbers)
        for target_RB, table_TB in zip(
            (self._blocks_RB, self._window_blocks_RB), tables, strict=False
        ):
            target_RB[: len(rows), : table_TB.shape[1]].copy_(sent.pop(0))
        if hidden_TD is not None:
            self.hidden_RD[: len(rows)].copy_(hidden_TD)
        return sent

    def _zeros(self, *size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device=self.device)

    @property
    def token_ids_R(self) -> torch.Tensor:
        """Ids of all rows."""
        return self._numbers_CR[TOKEN_ID].long()

    @property
    def state_slots_R(self) -> torch.Tensor:
        """State slots of all rows."""
        return self._numbers_CR[STATE_SLOT].long()

    def plan(self) -> StepPlan:
        """Geometry of all rows: made anew, since what layers work out once for a step is kept with
        it, and has to be worked out in every replay."""
        position_R, keys_R = self._numbers_CR[POSITION], self._numbers_CR[KEYS]
        tables = DecodeTables.over(position_R, keys_R, self._blocks_RB)
        plan = StepPlan(position_R.long(), self._numbers_CR[SLOT].long(), tables)
        if not self.has_windows:
            return plan
        near = plan.over((), self._numbers_CR[WINDOW_SLOT].long(), self._window_blocks_RB)
        return replace(plan, windowed=near)


def _tables(blocks: Sequence[Sequence[int]]) -> np.ndarray:
    """Block tables side by side, zeros behind the ends."""
    longest = max(map(len, blocks), default=0)
    blocks_TB = np.zeros((len(blocks), longest), np.int32)
    for row, table in zip(blocks_TB, blocks, strict=True):
        row[: len(table)] = table
    return blocks_TB
