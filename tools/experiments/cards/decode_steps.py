"""What does a layer take in a decode step, launched and recorded, by rows, context and placement?

    python -m tools.experiments.cards.decode_steps --out DIR

Layers of an 8B model in bf16. The floor is reading the weights once. Three ways: torch's attention,
our kernel, both launched operation by operation, and the recorded step where the stage has one.
Times are whole steps on the host's clock, rows in and out included, over the number of layers. The
last but one is of one row after 30 ms without a step, as a user alone has it: clocks of an idle
card fall. Then twelve layers of a 7B model for one and for sixteen users, beside reading their
weights once.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import torch

from molink.engine.layers.attention_choice import AttentionChoice
from molink.engine.step.graphs.decode_graphs import DecodeGraphs
from molink.engine.step.stage import StageExecutor
from molink_scheduler.batch import Span
from tools.experiments.cards.figures import Figure, card_options, keep
from tools.experiments.cards.stages import EIGHT_B, SEVEN_B, SMALL, hold, random_stage, run
from tools.experiments.cards.timing import device_us, wall_us
from tools.experiments.harness.experiment import experiment

__all__ = ["main"]

LAYERS = 4

KV_TOKENS = 16 * 8_192
"""2 GB with four layers: for every card. What does not fit is left out."""

ROWS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS: tuple[int, ...] = (128, 1_024, 8_192)
PLACEMENTS = {"in one piece": False, "scattered": True}

PREDICTED = {"torch": (0.2, 0.8), "kernel": (0.2, 0.6), "recorded": (0.11, 0.16)}
"""Milliseconds of a layer on an H200, whose floor is 0.11: up to 16 rows of 1,024 tokens. Launching
takes the host longer than computing takes the card."""

PREDICTED_UP_TO = (16, 1_024)

LAYERS_7B, USERS_7B, CONTEXT_7B = 12, (1, 16), 128

PREDICTED_7B_MS, PREDICTED_7B_OF_READING = (0.08, 0.16), (1.0, 1.3)
"""What is to be reached on a card. An H200 reads the 405 MB of a layer in 0.084 ms at best."""

IDLE_S, IDLE_REPEATS = 0.03, 5

Way = Callable[[], None]


@experiment
@card_options
def main(out: Path, device: str) -> None:
    """Print milliseconds of a layer."""
    keep(out, "decode_steps", torch.device(device), _figures(torch.device(device)))


def _figures(device: torch.device) -> Iterator[Figure]:
    if device.type == "cuda":
        stage = random_stage(EIGHT_B, LAYERS, device, KV_TOKENS)
        rows_tried, contexts = ROWS, CONTEXTS
    else:
        stage = random_stage(SMALL, LAYERS, device, 256)
        rows_tried, contexts = ROWS[:2], (48,)
    kinds = _step_kinds(stage)
    for rows, context, placement in product(rows_tried, contexts, PLACEMENTS):
        if not hold(stage, rows, context, PLACEMENTS[placement]):
            continue
        spans = [Span(row, context - 1, context, False) for row in range(rows)]
        for name, take in kinds.items():
            take()
            ms = wall_us(partial(run, stage, *spans), device) / LAYERS / 1e3
            is_predicted = rows <= PREDICTED_UP_TO[0] and context <= PREDICTED_UP_TO[1]
            bounds = PREDICTED[name] if is_predicted else (None, None)
            yield Figure(f"{rows} x {context:,}, {placement}, {name}", ms, "ms a layer", *bounds)
    yield from _after_idle(stage, contexts[0])
    del stage, kinds
    yield from _against_reading(device)


def _against_reading(device: torch.device) -> Iterator[Figure]:
    """Layers of a 7B model, as stages serve them, beside reading their weights once."""
    on_card = device.type == "cuda"
    shape, layers, users = (SEVEN_B, LAYERS_7B, USERS_7B) if on_card else (SMALL, 2, (1,))
    context = CONTEXT_7B if on_card else 48
    stage = random_stage(shape, layers, device, max(users) * context)
    read_us = device_us(partial(_read_all, stage), device)
    yield Figure(f"reading {layers} layers of a 7B shape", read_us / layers / 1e3, "ms a layer")
    for rows in users:
        hold(stage, rows, context, False)
        spans = [Span(row, context - 1, context, False) for row in range(rows)]
        us = wall_us(partial(run, stage, *spans), device)
        name = f"{layers} layers of a 7B shape, {rows} users"
        yield Figure(name, us / layers / 1e3, "ms a layer", *PREDICTED_7B_MS)
        yield Figure(f"{name}, of reading them", us / read_us, "", *PREDICTED_7B_OF_READING)


@torch.inference_mode()
def _read_all(stage: StageExecutor) -> None:
    """Read every matrix of its layers once: sums of their rows, each by a product."""
    for weight in stage.model.parameters():
        if weight.dim() == 2:
            torch.mv(weight, weight.new_ones(weight.shape[1]))


def _after_idle(stage: StageExecutor, context: int) -> Iterator[Figure]:
    hold(stage, 1, context, False)
    times = []
    for _ in range(IDLE_REPEATS):
        time.sleep(IDLE_S)
        began = time.perf_counter()
        run(stage, Span(0, context - 1, context, False))
        times.append(time.perf_counter() - began)
    ms = statistics.median(times) / LAYERS * 1e3
    yield Figure(f"1 x {context:,} after {IDLE_S * 1e3:.0f} ms of nothing", ms, "ms a layer")


def _step_kinds(stage: StageExecutor) -> dict[str, Way]:
    """What makes the stage compute its steps of each kind that it knows."""
    kernels, graphs = stage.attention, stage._graphs

    def taking(attention: AttentionChoice | None, recorded: DecodeGraphs | None) -> Way:
        def take() -> None:
            stage.attention, stage._graphs = attention, recorded

        return take

    kinds = {"torch": taking(AttentionChoice(stage.device, None), None)}
    if kernels is not None and kernels.kernels is not None:
        kinds["kernel"] = taking(kernels, None)
    if graphs is not None:
        kinds["recorded"] = taking(kernels, graphs)
    return kinds


if __name__ == "__main__":
    main()
