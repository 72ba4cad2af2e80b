"""Ring whose stages do no arithmetic: their processes, links, batches and KV books are real.

    MOLINK_EXPERIMENT_STEP_S=0.01 python -m tools.experiments.streams.idle_stage serve demo

It is `molink serve` with this module as its stages' program. A step sleeps so long in place of
computing. The tail draws tokens that say
when they were drawn, by the clock of `time.monotonic`, which all processes of a machine share: who
reads one knows how long it was under way.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from molink.engine.local_engine import LocalEngine
from molink.engine.step.stage import StageExecutor
from molink.engine.step.step_output import StepOutput
from molink.engine_protocol.drawn import DrawnToken
from molink.engine_protocol.values import Prepared
from molink.node import stage_handle, stage_manager
from molink.stage import stage_process
from molink_scheduler.batch import Batch

__all__ = ["MODULE", "STEP_VARIABLE", "TICK_S", "age_s", "token_at"]

MODULE = "tools.experiments.streams.idle_stage"

STEP_VARIABLE = "MOLINK_EXPERIMENT_STEP_S"
"""Environment variable with the seconds of a step."""

TICK_S = 0.00025
FIRST_ID, TICKS = 500, 3000
"""Ordinary words of the demo model: 0.75 s until the clock begins anew."""


def token_at(now: float) -> int:
    """The token that is drawn at a time, in seconds."""
    return FIRST_ID + int(now / TICK_S) % TICKS


def age_s(token_id: int, now: float) -> float:
    """How long ago a token was drawn, at most TICKS * TICK_S."""
    return (now / TICK_S - (token_id - FIRST_ID)) % TICKS * TICK_S


def _step_of(step_s: float) -> Callable[..., StepOutput]:
    def step(
        executor: StageExecutor,
        batch: Batch,
        token_ids: Sequence[int] | None = None,
        hidden_TD: torch.Tensor | None = None,
        interrupt: Callable[[], None] | None = None,
    ) -> StepOutput:
        """Keep the books, and take as long as a step takes."""
        for admission in batch.admissions:
            executor.admit(admission)
        executor._grow(batch)
        if step_s:
            time.sleep(step_s)
        if not executor.is_tail:
            return StepOutput(torch.zeros(batch.tokens, executor.hidden_size, dtype=executor.dtype))
        drawn = token_at(time.monotonic())
        return StepOutput(
            None, tuple(DrawnToken(one.request_id, drawn) for one in batch.spans if one.samples)
        )

    return step


def _main() -> None:
    if sys.argv[1:2] == ["serve"]:
        from molink.cli.main import main as command

        stage_handle.STAGE_MODULE = MODULE
        stage_manager.STAND_READY_AFTER_S = math.inf
        command()
    else:
        _be_stage(float(os.environ[STEP_VARIABLE]))


def _be_stage(step_s: float) -> None:
    prepare = LocalEngine.prepare

    def prepare_idle(*words: Any) -> Prepared:
        """The KV's shape is learned from one real step, while loading."""
        layers = prepare(*words)
        StageExecutor.step = _step_of(step_s)  # type: ignore[method-assign]
        return layers

    LocalEngine.prepare = prepare_idle  # type: ignore[method-assign, assignment]
    stage_process.main()


if __name__ == "__main__":
    _main()
