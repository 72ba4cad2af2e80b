"""What does a step of new tokens take behind a long history, and what of it is attention?

    python -m tools.experiments.room.late_turns --out DIR

A third of the layers of a `--model`, from its middle, in bfloat16, whose KV is there: steps of some
rows behind more and more tokens, in processor time of one thread, medians. What a step takes longer
than with no history is attention to it. With `--kernels` those of another checkout compute.
"""

import time
from pathlib import Path
from unittest.mock import patch

import click
import torch

from molink.checkpoint.description import describe
from molink.engine.kernels.cpu import native_kernel
from molink.engine.loading import load_stage
from molink.engine.step.step_timing import StepTimer
from molink.stage_protocol.messages import StageWork
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

BEFORE = (0, 4_096, 16_384, 30_000)
"""Tokens of the history."""


@experiment
@click.option("--model", type=click.Path(path_type=Path), required=True)
@click.option("--rows", default=512, show_default=True, help="New tokens of a step.")
@click.option("--kernels", type=click.Path(path_type=Path), help="Other checkout.")
def main(out: Path, model: Path, rows: int, kernels: Path | None) -> None:
    """Print milliseconds of a layer by rows and history, and the share of what history costs."""
    torch.set_num_threads(1)
    sources = native_kernel.SOURCES
    if kernels is not None:
        sources = kernels / "molink/engine/kernels/cpu/native"
    layers = describe(str(model)).layers
    third = (layers // 3, 2 * layers // 3)
    work = StageWork(third, "cpu", "bfloat16", max(BEFORE) + rows + 16, threads=1)
    with patch.object(native_kernel, "SOURCES", sources):
        timer = StepTimer(load_stage(str(model), work, lambda fraction: None))
    with patch("time.perf_counter", time.process_time):
        times = [timer.prefill(rows, before).step_s for before in BEFORE]
    cells = [
        [
            f"{before:,}",
            f"{1e3 * took / (third[1] - third[0]):.2f}",
            f"{took / times[0]:.1f}",
            f"{1 - times[0] / took:.0%}",
        ]
        for before, took in zip(BEFORE, times, strict=True)
    ]
    write_report(out, "late_turns", {"kernels": str(kernels), "rows": rows, "step_s": times})
    show(markdown_table(["history", "ms a layer", "times", "of it history"], cells))


if __name__ == "__main__":
    main()
