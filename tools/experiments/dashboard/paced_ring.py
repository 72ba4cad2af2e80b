"""A ring whose stages take as long for a step as PCs with a large model would, one of them longer.

    python -m tools.experiments.dashboard.paced_ring serve demo --nodes 4

It is `molink serve` with stages that wait, after each step of the small demo model, until STEP_S
have passed. So what else the machine does hardly shows in their figures, as it would not on PCs of
their own. A stage is slow while its first layer stands in the file that PACE_FILE names: then each
of its steps takes three times as long. The same module is the stage's program.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from molink.node import stage_handle

__all__ = ["MODULE", "PACE_FILE", "STEP_S", "main"]

PACE_FILE = "MOLINK_EXPERIMENT_PACE_FILE"
"""Environment variable with the path of a file; where it is missing no stage is slow."""

STEP_S = 0.012
"""Of each step: that of a few layers of a large model."""

SLOW_TIMES = 3

MODULE = "tools.experiments.dashboard.paced_ring"


def main() -> None:
    """Be the command with arguments of one, or a stage."""
    if sys.argv[1:2] == ["serve"]:
        from molink.cli.main import main as command

        stage_handle.STAGE_MODULE = MODULE
        command()
        return
    from molink.engine.step.stage import StageExecutor
    from molink.stage.stage_process import main as stage

    StageExecutor.step = _paced(StageExecutor.step)  # type: ignore[method-assign]
    stage()


def _paced(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step, and then a wait until it has taken as long as it shall."""
    file = Path(os.environ[PACE_FILE])

    def paced(executor: Any, *words: Any, **more: Any) -> Any:
        began = time.perf_counter()
        done = step(executor, *words, **more)
        is_slow = file.exists() and file.read_text() == str(executor.layers.start)
        wanted_s = STEP_S * (SLOW_TIMES if is_slow else 1)
        time.sleep(max(0.0, began + wanted_s - time.perf_counter()))
        return done

    return paced


if __name__ == "__main__":
    main()
