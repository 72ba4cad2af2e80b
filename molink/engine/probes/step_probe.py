"""Probe of this PC: times one decoder layer. `python -m molink.engine.probes.step_probe`.

A process of its own, started by the agent before anything is assigned: nothing but config.json is
needed, because a layer of random weights takes as long as one of real ones. They have the format
that the config declares: step times do not follow bytes. Decode steps of few rows, one span; the
line through them is what a plan counts with. Prints one JSON object.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
# Before torch is imported, as in a stage: else a shared core is measured spinning.

import json
import sys
from collections.abc import Sequence
from statistics import fmean, linear_regression
from typing import Any

import click
import torch

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import ModelDescription, describe, read_declared
from molink.checkpoint.stage_size import PROBE_KV_TOKENS, PROBE_LAYERS_MAX
from molink.engine.device.card import card_of
from molink.engine.device.devices import choose_device, choose_dtype
from molink.engine.device.memory_limit import limit_memory
from molink.engine.loading import read_onto
from molink.engine.model.weights import StagePart, build_stage_class, load_model_config
from molink.engine.self_test.miniature import shorten_config
from molink.engine.self_test.random_weights import quantize_at_random
from molink.engine.step.graphs.recording import recorder_on
from molink.engine.step.stage import StageExecutor
from molink.engine.step.step_timing import StepTimer
from molink.errors import MolinkError

DECODE_ROWS = (1, 4, 8)
"""Points of the line; more rows than a home ring has in a micro-batch say nothing of it."""

CONTEXT_TOKENS = 128
SPAN_ROWS = 128

VOCABULARY = 1_024
"""Words of the layers' own tables, where they read any (Gemma 4 E2B's have 4.7 GB): a row is looked
up as quickly among few."""


def probe_steps(
    directory: str, device: str, dtype: str, layers: int = PROBE_LAYERS_MAX
) -> dict[str, float]:
    """Seconds of one layer: `decode_fixed_s`, `decode_row_s`, `prefill_row_s`; `layers` are timed
    together.

    Raises UserError when the model or the device cannot be used.
    """
    stage = _random_stage(directory, device, dtype, layers)
    count = len(stage.layers)
    timer = StepTimer(stage)
    decode = [timer.decode(rows, CONTEXT_TOKENS).step_s for rows in DECODE_ROWS]
    timer.forget()
    span_rows = min(SPAN_ROWS, stage.description.model_len_max)
    span = timer.prefill(span_rows, 0).step_s
    row_s, fixed_s = _line(DECODE_ROWS, decode)
    return {
        "decode_fixed_s": fixed_s / count,
        "decode_row_s": row_s / count,
        "prefill_row_s": span / span_rows / count,
    }


def _line(rows: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Slope and value at no rows of the nearest line that neither falls nor begins below 0."""
    slope, fixed = linear_regression(rows, seconds)
    if slope < 0:
        return 0.0, fmean(seconds)
    if fixed < 0:
        return linear_regression(rows, seconds, proportional=True).slope, 0.0
    return slope, fixed


def _random_stage(directory: str, device: str, dtype: str, layers: int) -> StageExecutor:
    """Layers from the model's middle (of a short model all of it), with random weights; made in
    their own format and without the other layers, which might not fit into what is lent."""
    checkpoint = open_checkpoint(directory)
    description = describe(checkpoint)
    chosen = choose_device(device)
    number_format = choose_dtype(dtype, chosen, description.dtype)
    config = load_model_config(checkpoint)
    part = _probed_part(description, layers)
    alone = part.layers_total if part.is_head and part.is_tail else None
    shorten_config(config, alone, VOCABULARY)
    torch.set_default_dtype(number_format)
    with torch.no_grad():
        model = _empty_model(build_stage_class(config, part), config, number_format)
        quantize_at_random(model, read_declared(checkpoint), number_format)
        model.init_weights()
    torch.set_default_dtype(torch.float32)
    read_onto(model, chosen)
    card, recorder = card_of(chosen), recorder_on(chosen)
    given = (model, part, description, chosen, number_format)
    stage = StageExecutor(*given, card=card, recorder=recorder)
    stage.prepare(PROBE_KV_TOKENS)
    return stage


def _empty_model(pruned_class: Any, config: Any, dtype: torch.dtype) -> Any:
    """A model whose matrices hold anything; what is pruned away never takes any memory."""
    with torch.device("meta"):
        skeleton = pruned_class(config).to(dtype).eval()
    model = skeleton.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() < 2:  # Of those that the library leaves alone; matrices may go unused.
            tensor.zero_()
    return model


def _probed_part(description: ModelDescription, layers: int) -> StagePart:
    """Layers from the middle; a shorter model where all layers stay together."""
    if description.together == ((0, description.layers),):
        return StagePart(range(layers), layers)
    return StagePart(_middle(description.layers, layers), description.layers)


def _middle(layers_total: int, layers: int) -> range:
    first = min(1, layers_total - 1)
    return range(first, max(first + 1, min(first + layers, layers_total - 1)))


@click.command()
@click.argument("directory")
@click.option("--device", default="auto", help="auto, cpu or cuda:N.")
@click.option("--dtype", default="auto", help="As of `molink serve`.")
@click.option("--threads", default=1, help="Of the computation.")
@click.option("--layers", default=PROBE_LAYERS_MAX, help="Timed together.")
@click.option("--memory-bytes", type=int, help="That it may hold; without it any.")
def main(
    directory: str, device: str, dtype: str, threads: int, layers: int, memory_bytes: int | None
) -> None:
    """Measure one layer of the model in DIRECTORY and print its times."""
    torch.set_num_threads(threads)
    try:
        if memory_bytes is not None:
            limit_memory(device, memory_bytes)
        print(json.dumps(probe_steps(directory, device, dtype, layers)), flush=True)
    except MolinkError as error:
        sys.exit(f"molink: {error}")
    except torch.OutOfMemoryError:
        sys.exit(f"molink: {device} has no room for {layers} layers of random weights")


if __name__ == "__main__":
    main()
