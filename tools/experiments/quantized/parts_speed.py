"""What attention in parts costs, and how fast each of our decode kernels reads KV.

    python -m tools.experiments.quantized.parts_speed --out DIR

The first table reads KV that stands in memory several times and takes turns, so that it comes from
memory and not from the cache; with `--before CHECKOUT` the kernels of that one stand beside ours.
The second attends to a context whole, and in two halves that are joined: by a call for each, and by
one for both, whose batch has each row twice. What is compared takes turns; times are processor time
of one thread, the best and the median of the rounds.
"""

import ctypes
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

import click
import torch

from molink.engine.kernels.cpu import native_decode
from molink.engine.kernels.cpu.native_attention import kernels_for, run_kernels
from molink.engine.kernels.cpu.native_kernel import AVX2, AVX512, FLAGS, InstructionSet
from molink.engine.layers.layer_rows import LayerRows
from molink.engine.layers.parts import Part, attend_part, joined
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import KvPool, LayerKv
from molink.engine.memory.ragged_batch import RaggedBatch, RaggedSpan
from molink_scheduler.kv.blocks import blocks_for
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["NATIVE", "built_kernels", "main", "processor_s"]

CPU = torch.device("cpu")
HEADS, KV_HEADS, SIZE = 32, 8, 128
VARIANT = AttentionVariant(SIZE**-0.5)
KEYS = (1_024, 8_192, 32_768)
ROWS = (1, 8)
SPLIT_KEYS = (256, 1_024, 8_192)
COLD_BYTES = 96 * 2**20
KERNELS = (
    ("bf16, AVX512", AVX512, "decode_attention", torch.bfloat16),
    ("bf16, AVX2", AVX2, "decode_attention_bf16", torch.bfloat16),
    ("fp32, AVX512", AVX512, "decode_attention_f32", torch.float32),
    ("fp32, AVX2", AVX2, "decode_attention_f32", torch.float32),
)
NATIVE = Path(native_decode.__file__).parent / "native"

Times = dict[str, list[float]]


@experiment
@click.option("--rounds", default=9, show_default=True)
@click.option("--before", type=click.Path(path_type=Path), help="Checkout with older kernels.")
def main(out: Path, rounds: int, before: Path | None) -> None:
    """Print GB/s of decode kernels over cold KV, and microseconds of two halves and a join."""
    torch.set_num_threads(1)
    folders = {"now": NATIVE}
    if before is not None:
        folders["before"] = before / "molink/engine/kernels/cpu/native"
    built = {
        (name, of.folder): built_kernels(folder, of)
        for name, folder in folders.items()
        for of in (AVX2, AVX512)
    }
    rates: dict[str, dict[str, float]] = {}
    for title, of, function, dtype in KERNELS:
        ways = {
            name: getattr(built[name, of.folder], function)
            for name in folders
            if hasattr(built[name, of.folder], function)
        }
        for keys in KEYS:
            rates[f"{title}, {keys} keys"] = _rates(ways, dtype, keys, rounds)
    _show("GB/s, best of the rounds and median", rates, "{:.1f}")
    costs = {
        f"{rows} x {keys} keys": _costs(rows, keys, rounds) for rows in ROWS for keys in SPLIT_KEYS
    }
    _show("us of one layer, best of the rounds", costs, "{:.0f}")
    report = {"gb_per_s": rates, "parts_us": costs}
    write_report(out, "parts_speed", report, "parts_speed")


def built_kernels(folder: Path, of: InstructionSet) -> ctypes.CDLL:
    """Kernels of a folder, compiled for one instruction set."""
    path = Path(mkdtemp()) / "kernels.so"
    units = sorted(map(str, (folder / of.folder).glob("*.c")))
    command = ["cc", *FLAGS, *of.flags, "-fopenmp", "-o", str(path), *units, "-lm"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(path))


def _show(title: str, cells: Mapping[str, Mapping[str, float]], form: str) -> None:
    names = list(dict.fromkeys(name for row in cells.values() for name in row))
    rows = [
        [case, *(form.format(row[name]) if name in row else "" for name in names)]
        for case, row in cells.items()
    ]
    show(f"{title}\n\n{markdown_table(['', *names], rows)}")


# -- cold KV --------------------------------------------------------------------------------------


def _rates(ways: Mapping[str, Any], dtype: torch.dtype, keys: int, rounds: int) -> dict[str, float]:
    layer_bytes = 2 * keys * KV_HEADS * SIZE * dtype.itemsize
    layers = [_layer(keys, dtype) for _ in range(max(2, COLD_BYTES // layer_bytes))]
    query_THA = torch.randn(1, HEADS, SIZE).to(dtype)
    batch = RaggedBatch.of([RaggedSpan(0, 1, keys - 1, keys, range(blocks_for(keys)))], CPU)
    out_THV = torch.empty_like(query_THA)
    times: Times = {name: [] for name in ways}
    for _ in range(rounds):
        for name, function in ways.items():
            function.argtypes = _argtypes(name, function.__name__)
            call = partial(_read, function, query_THA, layers, batch, out_THV)
            times[name].append(processor_s(call) / len(layers))
    figures = {}
    for name, took in times.items():
        figures[name] = layer_bytes / min(took) / 1e9
        figures[f"{name}, median"] = layer_bytes / median(took) / 1e9
    return figures


def _layer(keys: int, dtype: torch.dtype) -> LayerKv:
    rows = torch.randn(keys, KV_HEADS, SIZE).to(dtype)
    return KvPool(keys).write(0, torch.arange(keys), rows, rows)


def _argtypes(way: str, name: str) -> list[Any]:
    """Before, the kernel in fp32 gave no log-sum-exps."""
    pointers = 6 if way == "before" and name == "decode_attention_f32" else 7
    return [*[ctypes.c_void_p] * pointers, ctypes.c_int]


def _read(
    function: Any,
    query_THA: torch.Tensor,
    layers: Sequence[LayerKv],
    batch: RaggedBatch,
    out_THV: torch.Tensor,
) -> None:
    gives_sums = len(function.argtypes) == 8
    kernel = function if gives_sums else lambda *given: function(*given[:6], given[7])
    for layer in layers:
        run_kernels([kernel], query_THA, layer, batch, None, VARIANT, out_THV)


def processor_s(call: Callable[[], object]) -> float:
    """Processor time of a call."""
    began = time.process_time()
    call()
    return time.process_time() - began


# -- two halves and a join ------------------------------------------------------------------------


def _costs(rows: int, keys: int, rounds: int) -> dict[str, float]:
    pool, times = KvPool(keys), Times()
    layer = pool.write(0, torch.arange(keys), *[torch.randn(keys, KV_HEADS, SIZE).bfloat16()] * 2)
    query_THA = torch.randn(rows, HEADS, SIZE).bfloat16()
    if kernels_for(query_THA, layer) is None:
        raise click.ClickException("this CPU has no AVX512-BF16, or no C compiler was found")
    span = RaggedSpan(0, rows, keys - rows, keys, range(blocks_for(keys)))
    middle, end = keys // 32, blocks_for(keys)
    halves = [span.over_blocks(range(middle)), span.over_blocks(range(middle, end))]
    whole, *parts = (
        LayerRows(RaggedBatch.of([one], CPU), pool, layer, query_THA, None, VARIANT)
        for one in (span, *halves)
    )
    twice = RaggedBatch.of([halves[0], replace(halves[1], row=rows)], CPU)
    calls = max(2, 100_000 // (keys * rows))
    with torch.inference_mode():
        for name, call in list(_compared(whole, parts, twice)) * (2 * rounds):
            took = processor_s(lambda call=call: [call() for _ in range(calls)])  # type: ignore[misc]
            times.setdefault(name, []).append(took / calls * 1e6)
    return {name: min(took) for name, took in times.items()}


def _compared(
    whole: LayerRows, halves: Sequence[LayerRows], twice: RaggedBatch
) -> Iterator[tuple[str, Callable[[], object]]]:
    done = [attend_part(half, order) for order, half in enumerate(halves)]
    yield "whole", whole.attend
    yield "halves, joined", lambda: joined([attend_part(h, n) for n, h in enumerate(halves)], None)
    yield "halves in one call, joined", lambda: _in_one_call(whole, twice)
    yield "the join", lambda: joined(done, None)


def _in_one_call(whole: LayerRows, twice: RaggedBatch) -> torch.Tensor:
    rows, both_THA = len(whole.q_THA), torch.cat([whole.q_THA, whole.q_THA])
    both = attend_part(replace(whole, batch=twice, q_THA=both_THA), 0)
    pieces = (slice(None, rows), slice(rows, None))
    parts = [Part(n, both.out_THV[of], both.log_sums_TH[of]) for n, of in enumerate(pieces)]
    return joined(parts, None)


if __name__ == "__main__":
    main()
