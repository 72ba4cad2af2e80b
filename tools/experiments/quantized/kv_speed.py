"""How fast one decode row attends, with KV in bfloat16 and in int8, and what writing it costs.

    python -m tools.experiments.quantized.kv_speed --out DIR

A layer's KV stands in memory several times and the copies take turns, so that keys and values come
from memory and not from the cache, as in a model with many layers. What is compared takes turns
too. Times are processor time of one thread, the best of some rounds each.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import get_args

import click
import torch

from molink.checkpoint.kv_format import KvDtype
from molink.engine.kernels.cpu.native_attention import kernels_for
from molink.engine.memory.attention_math import AttentionVariant, attend_packed
from molink.engine.memory.kv_pool import KvPool, LayerKv
from molink.engine.memory.ragged_batch import RaggedBatch, RaggedSpan
from molink_scheduler.kv.blocks import blocks_for
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

HEADS = ((32, 8), (64, 8), (32, 32))
"""Query heads and kv heads: a Llama of 8B, one of 70B, and one whose heads share nothing."""

SIZE = 128
KEYS = (1_024, 8_192, 32_768)
KV_DTYPES: tuple[KvDtype, ...] = get_args(KvDtype)
WRITTEN_ROWS = (1, 8, 128)

COLD_BYTES = 96 * 2**20
"""Of all copies of a layer together: more than a core's share of the last cache."""

Ways = dict[str, list[Callable[[], None]]]
"""For each way of computing the same, its copies."""


@experiment
@click.option("--rounds", default=9, show_default=True, help="Of which the best counts.")
def main(out: Path, rounds: int) -> None:
    """Print milliseconds of one decode row by heads and keys, and of writing keys and values."""
    torch.set_num_threads(1)
    reads = {
        f"{heads}/{kv_heads}, {keys} keys": _best(_reading(heads, kv_heads, keys), rounds)
        for (heads, kv_heads), keys in product(HEADS, KEYS)
    }
    writes = {f"8 heads, {rows} rows": _best(_writing(8, rows), rounds) for rows in WRITTEN_ROWS}
    for title, times in (("reading", reads), ("writing K and V", writes)):
        names = list(next(iter(times.values())))
        lines = [[case, *(f"{ms[name]:.3f}" for name in names)] for case, ms in times.items()]
        show(f"{title}, ms of one layer\n\n{markdown_table(['', *names], lines)}")
    write_report(out, "kv_speed", {"reading_ms": reads, "writing_ms": writes}, "kv_speed")


def _reading(heads: int, kv_heads: int, keys: int) -> Ways:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, heads, SIZE, generator=generator).to(torch.bfloat16)
    span = RaggedSpan(0, 1, keys - 1, keys, range(blocks_for(keys)))
    batch = RaggedBatch.of([span], query.device)
    ways: Ways = {}
    for kv_dtype in KV_DTYPES:
        layers = [_layer(kv_heads, keys, kv_dtype) for _ in range(_copies(kv_heads, keys))]
        name = "bf16" if kv_dtype == "auto" else kv_dtype
        ways[f"{name}, ours"] = [partial(_ours, query, layer, batch) for layer in layers]
        ways[f"{name}, torch"] = [partial(_torch, query, layer) for layer in layers]
    return ways


def _copies(kv_heads: int, keys: int) -> int:
    return max(2, COLD_BYTES // (2 * keys * kv_heads * SIZE))


def _layer(kv_heads: int, keys: int, kv_dtype: KvDtype) -> LayerKv:
    rows = torch.randn(keys, kv_heads, SIZE).to(torch.bfloat16)
    return KvPool(keys, kv_dtype).write(0, torch.arange(keys), rows, rows)


def _ours(query: torch.Tensor, layer: LayerKv, batch: RaggedBatch) -> None:
    kernels = kernels_for(query, layer)
    if kernels is None:
        raise click.ClickException("this CPU has no AVX512-BF16, or no C compiler was found")
    kernels.attend(query, layer, batch, None, AttentionVariant(SIZE**-0.5))


def _torch(query: torch.Tensor, layer: LayerKv) -> None:
    attend_packed(
        query.view(1, layer.keys.kv_heads, -1, SIZE),
        layer.keys.numbers(query.dtype).transpose(0, 1)[None],
        layer.values.numbers(query.dtype).transpose(0, 1)[None],
        None,
        AttentionVariant(SIZE**-0.5),
    )


def _writing(kv_heads: int, rows: int) -> Ways:
    new = torch.randn(rows, kv_heads, SIZE).to(torch.bfloat16)
    slots = torch.arange(rows)
    ways: Ways = {}
    for kv_dtype in KV_DTYPES:
        pools = [KvPool(1024, kv_dtype) for _ in range(16)]
        name = "bf16" if kv_dtype == "auto" else kv_dtype
        ways[name] = [partial(_write, pool, slots, new) for pool in pools]
    return ways


def _write(pool: KvPool, slots: torch.Tensor, rows: torch.Tensor) -> None:
    pool.write(0, slots, rows, rows)


def _best(ways: Ways, rounds: int) -> dict[str, float]:
    """Milliseconds of each way, its copies in turn."""
    times: dict[str, float] = {}
    for _ in range(rounds):
        for name, copies in ways.items():
            took = _time(copies)
            times[name] = min(took, times.get(name, took))
    return times


def _time(copies: list[Callable[[], None]]) -> float:
    with torch.inference_mode():
        began = time.process_time()
        for copy in copies:
            copy()
        return (time.process_time() - began) / len(copies) * 1e3


if __name__ == "__main__":
    main()
