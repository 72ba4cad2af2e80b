"""Probe of weight formats: times products. `python -m molink.engine.probes.format_probe`.

Beside timing a layer of the cluster's model, and once for a device instead of once for a model: so
a node that was measured for one model can be planned for any other. Square matrices of random codes
stand in memory several times and take turns, so that they come from memory and not from a cache, as
in a model. One row tells what reading takes, a span of a prompt what each of its rows does. Prints
one JSON object, in seconds; [nodes.formats] of a file of PCs takes them.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
# Before torch is imported, as in a stage.

import copy
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import sqrt

import click
import torch
from torch import nn

from molink.checkpoint.model_shape import WeightFormat
from molink.checkpoint.quantized.declared import DeclaredQuantization
from molink.engine.device.devices import choose_device, choose_dtype
from molink.engine.device.memory_limit import limit_memory
from molink.engine.kernels.cpu.packed_linear import pack
from molink.engine.kernels.cpu.quantized_linear import quantized_linear
from molink.engine.layers.quantized_linear import QuantizedLinear, use_cuda_kernels
from molink.engine.self_test.random_weights import random_weight
from molink.errors import MolinkError
from molink.hardware.format_times import BILLION, FormatTimes

FORMATS: Mapping[WeightFormat, DeclaredQuantization] = {
    "plain": DeclaredQuantization(),
    "int4_g128": DeclaredQuantization("gptq", 4, 128),
    "int4_g32": DeclaredQuantization("gptq", 4, 32),
    "int8": DeclaredQuantization("compressed-tensors", 8),
    "int8_g32": DeclaredQuantization("gptq", 8, 32),
    "int8_g16": DeclaredQuantization("gptq", 8, 16),
    "mxfp4": DeclaredQuantization("mxfp4"),
    "fp8": DeclaredQuantization("fp8"),
}
"""Declaration of a checkpoint whose weights are held so, by format."""

WIDTH = {"cpu": 2048, "cuda": 4096}
"""Inputs and outputs of a matrix: on a card smaller ones take as long to start as to compute."""

COLD_BYTES = {"cpu": 64 * 2**20, "cuda": 256 * 2**20}
"""Bytes of all copies of a matrix: more than a core's share of the last cache, or a card's."""

SPAN_ROWS = 128

PASSES_MIN, MEASURE_S = 5, 0.2
"""Products are timed so often at least, and more until so much time has gone by."""


def probe_formats(device: str, dtype: str = "auto") -> dict[str, FormatTimes]:
    """Times of weights in each format, for rows as the device computes with them. Raises UserError
    when there is no such device."""
    chosen = choose_device(device)
    number_format = choose_dtype(dtype, chosen, "bfloat16")
    with torch.inference_mode():
        return {
            name: _times(_copies(declared, chosen, number_format), chosen, number_format)
            for name, declared in FORMATS.items()
        }


def _copies(
    declared: DeclaredQuantization, device: torch.device, dtype: torch.dtype
) -> nn.ModuleList:
    width = WIDTH[device.type]
    layer = _random_linear(declared, width, dtype)
    held = layer.quantized.nbytes if isinstance(layer, QuantizedLinear) else layer.weight.nbytes
    count = max(2, COLD_BYTES[device.type] // held)
    copies = nn.ModuleList(_placed(layer, device) for _ in range(count))
    if device.type == "cuda":
        use_cuda_kernels(copies)
    return copies


def _random_linear(
    declared: DeclaredQuantization, width: int, dtype: torch.dtype
) -> nn.Linear | QuantizedLinear:
    if declared.method is None:
        return nn.Linear(width, width, bias=False).to(dtype)
    weight = random_weight(width, width, declared, dtype)
    assert weight is not None, "all groups divide the width"
    return QuantizedLinear(weight, None, dtype)


def _placed(layer: nn.Linear | QuantizedLinear, device: torch.device) -> nn.Module:
    """A copy, as a stage would hold it."""
    if isinstance(layer, nn.Linear):
        packed = pack([layer]) if device.type == "cpu" else None
        return packed or copy.deepcopy(layer).to(device)
    if device.type == "cpu":
        return quantized_linear(layer.quantized, None, layer.dtype) or layer
    moved = QuantizedLinear(layer.quantized, None, layer.dtype)
    moved.move(device)
    return moved


def _times(copies: nn.ModuleList, device: torch.device, dtype: torch.dtype) -> FormatTimes:
    """Times by one row, and by a span: of its time the root of the squares less reading is
    multiplying, as in `hardware.roofline`."""
    width = WIDTH[device.type]
    one, many = (torch.ones(rows, width, device=device, dtype=dtype) for rows in (1, SPAN_ROWS))
    read_s, span_s = _product_s(copies, one), _product_s(copies, many)
    multiply_s = sqrt(max(span_s**2 - read_s**2, (span_s / 2) ** 2))
    weights = width * width / BILLION
    return FormatTimes(read_s / weights, multiply_s / SPAN_ROWS / weights)


def _product_s(copies: nn.ModuleList, rows: torch.Tensor) -> float:
    """Seconds of a product, each with another copy of the matrix: the best pass, since whatever
    else the PC does now would make one format slower than the next."""
    first_s = min(_pass_s([copies[0]], rows) for _ in range(2))
    some = list(copies)[: max(1, int(MEASURE_S / PASSES_MIN / first_s))]
    times: list[float] = []
    while len(times) < PASSES_MIN or sum(times) < MEASURE_S:
        times.append(_pass_s(some, rows))
    return min(times) / len(some)


def _pass_s(copies: Sequence[nn.Module], rows: torch.Tensor) -> float:
    _wait_for(rows.device)
    start = time.perf_counter()
    for layer in copies:
        layer(rows)
    _wait_for(rows.device)
    return time.perf_counter() - start


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@click.command()
@click.option("--device", default="auto", help="auto, cpu or cuda:N.")
@click.option("--dtype", default="auto", help="As of `molink serve`.")
@click.option("--threads", default=1, help="Of the computation.")
@click.option("--memory-bytes", type=int, help="That it may hold; without it any.")
def main(device: str, dtype: str, threads: int, memory_bytes: int | None) -> None:
    """Measure products with weights of each format and print their times."""
    torch.set_num_threads(threads)
    try:
        if memory_bytes is not None:
            limit_memory(device, memory_bytes)
        times = {name: asdict(one) for name, one in probe_formats(device, dtype).items()}
        print(json.dumps(times), flush=True)
    except MolinkError as error:
        sys.exit(f"molink: {error}")


if __name__ == "__main__":
    main()
