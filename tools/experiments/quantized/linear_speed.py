"""How fast one linear layer multiplies: weights of 4 and 8 bits beside 16 bits and fp32.

    python -m tools.experiments.quantized.linear_speed --out DIR

Every layer stands in memory several times and the copies take turns, so that weights come from
memory and not from the cache, as in a model. Layers that are compared take turns too. Times are
processor time of one thread, the best of some rounds each: whoever else uses the machine does not
count, as far as it leaves the caches alone.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import torch
from torch import nn

from molink.engine.kernels.cpu.coded_linear import coded_linear
from molink.engine.kernels.cpu.packed_linear import pack
from molink.engine.kernels.packed_weights import (
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    Mxfp4Weight,
    QuantizedWeight,
)
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

ROWS = (1, 2, 4, 8, 16, 64, 256)
DTYPES = (torch.bfloat16, torch.float32)
COLD_BYTES = 64 * 2**20
"""Of all copies of a layer together: more than a core's share of the last cache."""

COPIES_MAX = 40

Layer = Callable[[torch.Tensor], torch.Tensor]


@experiment
@click.option("--width", default=2048, show_default=True, help="Inputs, and as many outputs.")
@click.option("--rounds", default=9, show_default=True, help="Of which the best counts.")
def main(out: Path, width: int, rounds: int) -> None:
    """Print the milliseconds of a square linear layer by format and number of rows."""
    torch.set_num_threads(1)
    report = {
        str(dtype).removeprefix("torch."): _measured(width, dtype, rounds) for dtype in DTYPES
    }
    for dtype, times in report.items():
        plain = times["plain"]
        lines = [[name, *_cells(times[name], plain)] for name in times]
        show(f"{dtype}, {width} wide\n\n{markdown_table(['weights', *map(str, ROWS)], lines)}")
    write_report(out, "linear_speed", {"width": width, "ms": report}, f"linear_speed-{width}")


def _measured(width: int, dtype: torch.dtype, rounds: int) -> dict[str, dict[int, float]]:
    """Best milliseconds of every layer, by its name and the rows."""
    layers = {"plain": _copies(partial(_plain, width, dtype), width * width * dtype.itemsize)}
    for name, weight in _weights(width).items():
        layers[name] = _copies(partial(_coded, weight, dtype), weight.nbytes)
    times: dict[str, dict[int, float]] = {name: {} for name in layers}
    for rows in ROWS:
        x = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)).to(dtype)
        for _ in range(rounds):
            for name, copies in layers.items():
                took = _time(copies, x)
                times[name][rows] = min(took, times[name].get(rows, took))
    return times


def _copies(make: Callable[[], Layer], layer_bytes: int) -> list[Layer]:
    return [make() for _ in range(min(COPIES_MAX, max(2, COLD_BYTES // layer_bytes)))]


def _time(copies: list[Layer], x: torch.Tensor) -> float:
    with torch.inference_mode():
        began = time.process_time()
        for layer in copies:
            layer(x)
        return (time.process_time() - began) / len(copies) * 1e3


def _plain(width: int, dtype: torch.dtype) -> Layer:
    packed = pack([nn.Linear(width, width, bias=False).to(dtype)])
    assert packed is not None, "this machine has no packed layout for plain weights"
    return packed


def _coded(weight: QuantizedWeight, dtype: torch.dtype) -> Layer:
    layer = coded_linear(weight, None, dtype)
    assert layer is not None, "this machine has no kernel for quantized weights"
    return layer


def _weights(width: int) -> dict[str, QuantizedWeight]:
    """A matrix of each form, of random codes."""
    generator = torch.Generator().manual_seed(0)

    def codes(columns: int) -> torch.Tensor:
        # Exponents of at most 14 and no infinities, whatever the codes are read as.
        return torch.randint(0, 112, (width, columns), generator=generator).to(torch.uint8)

    def scales(group: int) -> torch.Tensor:
        return torch.rand(width, width // group, generator=generator) + 0.5

    return {
        "int4, groups of 128": Int4Weight(codes(width // 2), scales(128), scales(128)),
        "int4, groups of 32": Int4Weight(codes(width // 2), scales(32), scales(32)),
        "MXFP4": Mxfp4Weight(codes(width // 2), codes(width // 32)),
        "int8, a scale per output": Int8Weight(codes(width).view(torch.int8), scales(width)),
        "FP8, groups of 128": Fp8Weight(codes(width).view(torch.float8_e4m3fn), scales(128)),
    }


def _cells(times: dict[int, float], plain: dict[int, float]) -> list[str]:
    return [f"{times[rows]:.3f} ({plain[rows] / times[rows]:.2f} x)" for rows in ROWS]


if __name__ == "__main__":
    main()
