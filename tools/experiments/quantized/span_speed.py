"""How fast does our kernel attend spans of several rows behind long contexts?

    python -m tools.experiments.quantized.span_speed --out DIR

The kernel and that of another checkout, `--before`, take turns in one process, one layer of KV in
bfloat16 in scattered blocks; processor time of one thread, the best round. Operations are those of
products alone, two for each multiplication and its addition, so what the products of a matrix reach
with the same rows stands beside them.
"""

import ctypes
import random
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

from molink.engine.kernels.cpu.native_attention import run_kernels
from molink.engine.kernels.cpu.native_kernel import AVX512
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import KvPool, LayerKv
from molink.engine.memory.ragged_batch import RaggedBatch, RaggedSpan
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.experiments.quantized.parts_speed import NATIVE, built_kernels, processor_s

__all__ = ["main"]

CPU = torch.device("cpu")
SHAPES = {"12 / 4 x 64": (12, 4, 64), "32 / 8 x 128": (32, 8, 128)}
"""Query heads, kv heads and their size: of the 88M model, and of Llama-3-8B."""

CASES = ((128, 128), (4, 8_192), (64, 2_048), (64, 30_000), (512, 8_192), (512, 30_000))
"""Rows, and keys that the last of them sees."""


@experiment
@click.option("--rounds", default=5, show_default=True)
@click.option("--before", type=click.Path(path_type=Path), required=True, help="Other checkout.")
def main(out: Path, rounds: int, before: Path) -> None:
    """Print milliseconds of a layer before and now, and billions of operations in a second."""
    torch.set_num_threads(1)
    folders = {"before": before / "molink/engine/kernels/cpu/native", "now": NATIVE}
    kernels = {
        name: built_kernels(folder, AVX512).span_attention for name, folder in folders.items()
    }
    for kernel in kernels.values():
        kernel.argtypes = [*[ctypes.c_void_p] * 7, ctypes.c_int]
    report, rows = {}, []
    for name, shape in SHAPES.items():
        for count, keys in CASES:
            times, apart = _times(kernels, shape, count, keys, rounds)
            rate = _operations(shape, count, keys) / times["now"] / 1e9
            report[f"{name}, {count} x {keys}"] = times | {"operations": rate, "apart": apart}
            cells = [f"{1e3 * times[way]:.2f}" for way in kernels]
            factor = times["before"] / times["now"]
            rows.append([name, f"{count} x {keys:,}", *cells, f"{factor:.2f}", f"{rate:.0f}"])
    write_report(out, "span_speed", report)
    heads = ["heads", "rows x keys", "before, ms", "now, ms", "factor", "G operations/s now"]
    show(markdown_table(heads, rows))


def _times(
    kernels: dict[str, Any], shape: tuple[int, int, int], count: int, keys: int, rounds: int
) -> tuple[dict[str, float], float]:
    """Seconds by kernel, and how far apart their answers are at most."""
    heads, kv_heads, size = shape
    blocks = random.Random(0).sample(range(blocks_for(keys)), blocks_for(keys))
    batch = RaggedBatch.of([RaggedSpan(0, count, keys - count, keys, blocks)], CPU)
    layer = _layer(keys, kv_heads, size)
    query_THA = torch.randn(count, heads, size).bfloat16()
    outs = {name: torch.empty_like(query_THA) for name in kernels}
    times = {name: float("inf") for name in kernels}
    for _ in range(rounds):
        for name, kernel in kernels.items():
            given = (query_THA, layer, batch, None, AttentionVariant(size**-0.5), outs[name])
            took = processor_s(partial(run_kernels, [kernel], *given))
            times[name] = min(times[name], took)
    before, now = outs.values()
    return times, float((before.float() - now.float()).abs().max())


def _layer(keys: int, kv_heads: int, size: int) -> LayerKv:
    slots = torch.arange(blocks_for(keys) * BLOCK_TOKENS)
    rows = [torch.randn(len(slots), kv_heads, size).bfloat16() for _ in range(2)]
    return KvPool(len(slots)).write(0, slots, *rows)


def _operations(shape: tuple[int, int, int], count: int, keys: int) -> float:
    heads, _, size = shape
    seen = count * (keys - count) + count * (count + 1) / 2
    return 4.0 * heads * size * seen


if __name__ == "__main__":
    main()
