"""Is the attention kernel right, on random ragged batches, and the same alone as in company?

    python -m tools.experiments.cards.attention_check --out DIR

Each batch is computed in fp32, fp16 and bf16 and compared with attention written out in fp32 over
the same numbers, and then each of its spans once more alone, which must give the very same bits.
On a CPU the kernel runs in Triton's interpreter, with small tiles; every fifth batch has the tiles
that a card uses. `--device cuda` does the same on a card. What a batch is follows from its number,
so a failure is seen again with `--first`.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import torch

from molink.engine.device.card import Card
from molink.engine.kernels.cuda.attention_kind import Tiling
from molink.engine.memory.ragged_batch import RaggedSpan
from molink.errors import UserError
from tools.experiments.cards.figures import Figure
from tools.experiments.cards.random_batches import BatchSize, RandomBatch, random_batch, written_out
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

if TYPE_CHECKING:
    from molink.engine.kernels.cuda.ragged_attention import RaggedAttention

__all__ = ["main"]

LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 3e-2}
"""Largest difference allowed, of outputs up to 3."""

LOG_SUM_LIMIT = 1e-5
"""They are fp32 whatever the format."""

SMALL = BatchSize(spans=4, rows=24, earlier_keys=70)
"""The interpreter takes milliseconds for every program."""

LARGE = BatchSize(spans=24, rows=600, earlier_keys=3000)

SMALL_TILES = Tiling(few_rows=16, many_rows=32, keys=16, splits=2, steps_min=1)

OWN_TILES_EVERY = 5

TOLD_EVERY = 50
"""Batches: two minutes in the interpreter."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of one batch in one format."""

    number: int
    dtype: str
    error: float
    log_sum_error: float
    same_alone: bool
    seconds: float
    summary: str

    @property
    def is_right(self) -> bool:
        """Whether it is as near as it must be, and the same alone."""
        limit = LIMITS[getattr(torch, self.dtype)]
        return self.error <= limit and self.log_sum_error <= LOG_SUM_LIMIT and self.same_alone


@experiment
@click.option("--batches", default=500, show_default=True)
@click.option("--first", default=0, show_default=True, help="Number of the first batch.")
@click.option("--device", default="cpu", show_default=True, help="cpu: in Triton's interpreter.")
def main(out: Path, batches: int, first: int, device: str) -> None:
    """Print the largest errors; the command fails where one is over its limit."""
    on = torch.device(device)
    if on.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # Read when Triton is imported.
    else:
        Card(on).select()
    torch.set_num_threads(1)
    results = []
    for number in range(first, first + batches):
        results += [_check(number, dtype, on) for dtype in LIMITS]
        if (number + 1 - first) % TOLD_EVERY == 0:
            click.echo(f"{number + 1 - first} of {batches} batches", err=True)
    show(markdown_table(*_table(results)))
    report = {
        "figures": [asdict(figure) for figure in _figures(results)],
        "results": [asdict(result) for result in results],
    }
    write_report(out, "attention_check", report)
    for wrong in (result for result in results if not result.is_right):
        raise UserError(f"batch {wrong.number} is wrong: {wrong}")


def _check(number: int, dtype: torch.dtype, device: torch.device) -> Checked:
    in_interpreter = device.type == "cpu"
    batch = random_batch(number, SMALL if in_interpreter else LARGE, dtype, device)
    kernels = _kernels(number, dtype, in_interpreter)
    started = time.perf_counter()
    out_THV, log_sums_TH = _attended(kernels, batch, batch.spans)
    seconds = time.perf_counter() - started
    wanted_THV, wanted_TH = written_out(batch)
    # Alone, in the order of the batch: the rows of all spans are those of the batch.
    alone = [_attended(kernels, batch, (span,)) for span in batch.spans]
    alone_THV, alone_TH = (torch.cat(parts) for parts in zip(*alone, strict=True))
    return Checked(
        number,
        str(dtype).removeprefix("torch."),
        _largest_difference(out_THV.float(), wanted_THV),
        _largest_difference(log_sums_TH, wanted_TH),
        torch.equal(out_THV, alone_THV) and torch.equal(log_sums_TH, alone_TH),
        seconds,
        batch.summary,
    )


def _kernels(number: int, dtype: torch.dtype, in_interpreter: bool) -> "RaggedAttention":
    from molink.engine.kernels.cuda.ragged_attention import RaggedAttention  # Imports Triton.

    if not in_interpreter:
        return RaggedAttention()
    tiling = None if number % OWN_TILES_EVERY == 0 else SMALL_TILES
    return RaggedAttention(tiling, widen=dtype is torch.bfloat16)


def _attended(
    kernels: "RaggedAttention", batch: RandomBatch, spans: tuple[RaggedSpan, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and log-sum-exps of these spans' rows, computed as a batch of their own."""
    rows = slice(spans[0].row, spans[-1].row + spans[-1].rows)
    own = tuple(replace(span, row=span.row - rows.start) for span in spans)
    q_THA, geometry = batch.q_THA[rows], batch.geometry(own)
    given = (q_THA, batch.layer, geometry, batch.window, batch.variant)
    attended = kernels.attend(*given, log_sums=True)
    assert attended.log_sums_TH is not None
    return attended.out_THV, attended.log_sums_TH


def _largest_difference(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Infinite where one is a number and the other is not."""
    finite = torch.isfinite(wanted)
    if not torch.equal(torch.isfinite(got), finite):
        return float("inf")
    return float((got - wanted)[finite].abs().max()) if finite.any() else 0.0


def _figures(results: Sequence[Checked]) -> Iterator[Figure]:
    for name in dict.fromkeys(result.dtype for result in results):
        of = [result for result in results if result.dtype == name]
        worst, limit = max(result.error for result in of), LIMITS[getattr(torch, name)]
        yield Figure(f"{name}, largest error", worst, "", 0, limit)
        of_sums = max(result.log_sum_error for result in of)
        yield Figure(f"{name}, of log-sum-exp", of_sums, "", 0, LOG_SUM_LIMIT)
        different = sum(not result.same_alone for result in of)
        yield Figure(f"{name}, batches with other bits alone", float(different), "", 0, 0)


def _table(results: Sequence[Checked]) -> tuple[list[str], list[list[str]]]:
    head = ["format", "batches", "largest error", "of log-sum-exp", "same bits alone", "s"]
    rows = []
    for dtype in dict.fromkeys(result.dtype for result in results):
        of = [result for result in results if result.dtype == dtype]
        errors = (max(r.error for r in of), max(r.log_sum_error for r in of))
        same = sum(result.same_alone for result in of)
        seconds = sum(result.seconds for result in of)
        figures = [*(f"{error:.2g}" for error in errors), str(same), f"{seconds:.1f}"]
        rows.append([dtype, str(len(of)), *figures])
    return head, rows


if __name__ == "__main__":
    main()
