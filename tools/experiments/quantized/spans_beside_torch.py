"""How fast are spans of several rows attended by our kernel for CPUs with AVX2, and how by torch?

    python -m tools.experiments.quantized.spans_beside_torch --out DIR

One layer of KV in scattered blocks, which torch gathers, in bfloat16 and in fp32; the mask that
torch takes is there already. Both take turns in one process; processor time of one thread, the best
round. Operations are those of products alone, two for each multiplication and its addition.
"""

import random
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

import click
import torch

from molink.engine.kernels.cpu.native_spans import span_kernel_for
from molink.engine.layers import layer_rows
from molink.engine.layers.layer_rows import LayerRows
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.ragged_batch import RaggedBatch, RaggedSpan
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.experiments.quantized.parts_speed import processor_s

__all__ = ["main"]

CPU = torch.device("cpu")
SHAPES = {"12 / 4 x 64": (12, 4, 64), "32 / 8 x 128": (32, 8, 128)}
"""Query heads, kv heads and their size: of the 88M model, and of Llama-3-8B."""

CASES = ((4, 8_192), (128, 128), (128, 1_024), (128, 8_192), (128, 32_768))
"""Rows, and keys that the last of them sees."""

NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32"}


@dataclass(frozen=True, slots=True)
class Figures:
    """Times of one layer, and how far apart the answers are, of the largest number."""

    torch_s: float
    kernel_s: float
    apart: float


@experiment
@click.option("--rounds", default=3, show_default=True)
def main(out: Path, rounds: int) -> None:
    """Print milliseconds of a layer by torch and by the kernel."""
    torch.set_num_threads(1)
    report, rows = {}, []
    for name, shape in SHAPES.items():
        for count, keys in CASES:
            for dtype, kind in NAMES.items():
                figures = _figures(shape, count, keys, dtype, rounds)
                report[f"{name}, {count} x {keys}, {kind}"] = asdict(figures)
                rows.append(
                    [
                        name,
                        f"{count} x {keys:,}",
                        kind,
                        *_cells(figures, shape, rows=count, keys=keys),
                    ]
                )
    write_report(out, "spans_beside_torch", report)
    heads = ["heads", "rows x keys", "", "torch, ms", "kernel, ms", "factor", "G operations/s"]
    show(markdown_table(heads, rows))


def _cells(figures: Figures, shape: tuple[int, int, int], rows: int, keys: int) -> list[str]:
    heads, _, size = shape
    seen = rows * (keys - rows) + rows * (rows + 1) / 2
    rate = 4.0 * heads * size * seen / figures.kernel_s / 1e9
    times = [f"{1e3 * one:.2f}" for one in (figures.torch_s, figures.kernel_s)]
    return [*times, f"{figures.torch_s / figures.kernel_s:.2f}", f"{rate:.0f}"]


def _figures(
    shape: tuple[int, int, int], count: int, keys: int, dtype: torch.dtype, rounds: int
) -> Figures:
    rows = _rows(shape, count, keys, dtype)
    if span_kernel_for(rows.q_THA, rows.layer) is None:
        raise click.ClickException("this CPU has no AVX2, or no C compiler was found")
    by_kernel = by_torch = float("inf")
    got, wanted = rows.attend(), _by_torch(rows)
    for _ in range(rounds):
        by_torch = min(by_torch, processor_s(lambda: _by_torch(rows)))
        by_kernel = min(by_kernel, processor_s(rows.attend))
    apart = (got.float() - wanted.float()).abs().max() / wanted.abs().max()
    return Figures(by_torch, by_kernel, float(apart))


def _by_torch(rows: LayerRows) -> torch.Tensor:
    with patch.object(layer_rows, "span_kernel_for", lambda query, layer: None):
        return rows.attend()


def _rows(shape: tuple[int, int, int], count: int, keys: int, dtype: torch.dtype) -> LayerRows:
    heads, kv_heads, size = shape
    blocks = random.Random(0).sample(range(blocks_for(keys)), blocks_for(keys))
    batch = RaggedBatch.of([RaggedSpan(0, count, keys - count, keys, blocks)], CPU)
    pool = KvPool(len(blocks) * BLOCK_TOKENS)
    slots = torch.arange(pool.slots)
    layer = pool.write(
        0, slots, *(torch.randn(pool.slots, kv_heads, size, dtype=dtype) for _ in range(2))
    )
    query_THA = torch.randn(count, heads, size, dtype=dtype)
    return LayerRows(batch, pool, layer, query_THA, None, AttentionVariant(size**-0.5))


if __name__ == "__main__":
    main()
