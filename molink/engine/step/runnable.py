"""Interface that warming up, making room and recording ask of a stage, however it computes.

Shapes: T rows of a batch, R rows of a recorded step, D hidden size.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from molink.checkpoint.description import ModelDescription
from molink.engine.layers.attention_choice import AttentionChoice
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.state_pool import StatePool
from molink.engine.memory.window_pool import WindowPool
from molink.engine.step.graphs.recording import Recorder
from molink.engine.step.graphs.static_inputs import StaticInputs
from molink.engine.step.step_output import StepOutput
from molink_scheduler.batch import Batch, Release
from molink_scheduler.kv.blocks import KvBlocks


class RunnableStage(Protocol):
    """A stage that can be run over requests of nobody; `StageExecutor` explains its members."""

    description: ModelDescription
    device: torch.device
    dtype: torch.dtype
    attention: AttentionChoice | None
    recorder: Recorder | None
    kv: KvBlocks
    state_slots: int | None
    states: StatePool
    windows: WindowPool

    @property
    def hidden_size(self) -> int:
        """Width D of the rows that it reads and gives."""

    @property
    def is_tail(self) -> bool:
        """Whether rows of a step are logits."""

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of one token's KV."""

    @property
    def request_bytes(self) -> int:
        """Bytes of what one request keeps whatever its length."""

    @property
    def kv_memory(self) -> KvPool:
        """The tensors behind its KV blocks."""

    def step(
        self, batch: Batch, token_ids: Sequence[int] | None, hidden_TD: torch.Tensor | None
    ) -> StepOutput:
        """Output of one batch of spans, whose rows are computed and kept."""

    def launched_rows(
        self,
        batch: Batch,
        token_ids: Sequence[int],
        rows_TD: torch.Tensor | None,
        keep: Sequence[int],
        settings: Sequence[np.ndarray] = (),
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Rows of a batch without a recording."""

    def static_rows(self, inputs: StaticInputs) -> torch.Tensor:
        """Rows [R, ...] of a step that reads nothing but `inputs`."""

    def release(self, release: Release) -> None:
        """Forget a request, with its KV and its states."""

    def make_room(self, kv_tokens: int | None, budget_bytes: int) -> None:
        """Make room for so many tokens' KV, and for states within a budget."""

    def resize_kv(self, kv_tokens: int) -> None:
        """Keep so many tokens' KV, and none of what was kept."""
