"""How fast is a prompt computed, and how long does a decode step wait that comes in mid-prompt?

    python -m tools.experiments.cards.prefill_steps --out DIR

Layers of an 8B model in bf16. The matrix peak is measured beside: a product of 8,192 x 8,192. A
decode step of eight rows is then asked for in the middle of a span, as a stage's loop asks for it,
and timed on the host's clock: what it takes beyond a decode step alone is what it waited for layers
of the prompt that were launched already. So it is with the host two layers ahead and with no bound
to that, and in the prompt's stream and in one whose work goes first. On a CPU all are the same.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path

import torch

from molink.engine.device import transfers
from molink.engine.device.transfers import LAYERS_AHEAD
from molink.engine.step.stage import StageExecutor
from molink_scheduler.batch import Batch, BatchClass, Span
from tools.experiments.cards.figures import Figure, card_options, keep
from tools.experiments.cards.stages import EIGHT_B, SMALL, Shape, hold, random_stage, run
from tools.experiments.cards.timing import wall_us
from tools.experiments.harness.experiment import experiment

__all__ = ["main"]

LAYERS, LAYERS_WAITED = 4, 16
ROWS = (128, 512, 2_048)
DECODE_ROWS, DECODE_CONTEXT = 8, 1_024
PRODUCT = 8_192

PREDICTED_SHARE = {128: (0.1, 0.5), 512: (0.3, 0.7), 2_048: (0.5, 0.85)}
"""Of the matrix peak, on an H200."""

UNBOUNDED = 10**6

WAYS = {
    "2 ahead, decode first": (LAYERS_AHEAD, True, 2.0),
    "2 ahead, one stream": (LAYERS_AHEAD, False, 6.0),
    "no bound, decode first": (UNBOUNDED, True, 3.0),
    "no bound, one stream": (UNBOUNDED, False, 30.0),
}
"""Layers that the host is ahead, whether decode has a stream whose work goes first, and the most
milliseconds that it waits on an H200, where a layer of 2,048 rows takes 1.5. Stages do the first.
"""

PREDICTED_SLOWDOWN = (0.95, 1.1)
"""Of a prompt by the bound: two layers keep a card busy."""


@experiment
@card_options
def main(out: Path, device: str) -> None:
    """Print rows per second, shares of the matrix peak and what decode waits."""
    keep(out, "prefill_steps", torch.device(device), _figures(torch.device(device)))


def _figures(device: torch.device) -> Iterator[Figure]:
    on_card = device.type == "cuda"
    shape, sizes, side = (EIGHT_B, ROWS, PRODUCT) if on_card else (SMALL, (24,), 64)
    peak = _peak_flops(side, device)
    yield Figure("matrix peak", peak / 1e12, "TFLOP/s", *((600, 900) if on_card else ()))
    stage = random_stage(shape, LAYERS, device, max(sizes) + 64)
    for rows in sizes:
        hold(stage, 1, rows, False)
        span = Span(0, 0, rows, False)
        seconds = wall_us(partial(run, stage, span), device, 5) / 1e6
        yield Figure(f"{rows} rows", rows / seconds * LAYERS, "rows x layers / s")
        share = 2 * shape.layer_numbers * rows * LAYERS / seconds / peak
        yield Figure(
            f"{rows} rows, of the peak", share, "", *PREDICTED_SHARE.get(rows, (None, None))
        )
    del stage
    yield from _waits(shape, sizes[-1], device)


def _peak_flops(side: int, device: torch.device) -> float:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return 2 * side**3 / (wall_us(lambda: a @ b, device) / 1e6)


# -- decode in mid-prompt --------------------------------------------------------------------------


def _waits(shape: Shape, rows: int, device: torch.device) -> Iterator[Figure]:
    context = min(DECODE_CONTEXT, rows)
    layers = LAYERS_WAITED if device.type == "cuda" else LAYERS
    stage = random_stage(shape, layers, device, DECODE_ROWS * context + rows + 64)
    hold(stage, DECODE_ROWS + 1, context, False)
    decode = [Span(row, context - 1, context, False) for row in range(DECODE_ROWS)]
    stage.kv.grow(DECODE_ROWS, rows, rows)
    stage._expected[DECODE_ROWS] = rows
    prompt = Batch(1, BatchClass.PREFILL, 0, (Span(DECODE_ROWS, 0, rows, False),))
    alone_ms = wall_us(partial(run, stage, *decode), device, 5) / 1e3
    yield Figure(f"decode of {DECODE_ROWS} alone, {layers} layers", alone_ms, "ms")
    for (name, (ahead, first, most_ms)), layer in product(WAYS.items(), (1, layers - 1)):
        with _way(stage, ahead, first):
            within_ms = _decode_within(stage, prompt, layer, partial(run, stage, *decode))
        waited_ms = max(0.0, within_ms - alone_ms)
        yield Figure(f"decode waits at layer {layer}, {name}", waited_ms, "ms", 0.0, most_ms)
    times_us = list[float]()
    for ahead in (LAYERS_AHEAD, UNBOUNDED):
        with _way(stage, ahead, True):
            times_us.append(wall_us(partial(run, stage, *prompt.spans), device, 5))
    slowdown = times_us[0] / times_us[1]
    yield Figure("a prompt with 2 layers ahead, of none bounded", slowdown, "", *PREDICTED_SLOWDOWN)


@contextmanager
def _way(stage: StageExecutor, ahead: int, first: bool) -> Iterator[None]:
    """Let a card's steps be computed so inside the block."""
    way = stage._transfers
    before, decoding = transfers.LAYERS_AHEAD, None
    transfers.LAYERS_AHEAD = ahead
    if isinstance(way, transfers.CardTransfers):
        decoding = way.streams.decoding
        way.streams.decoding = decoding if first else way.streams.computing
    try:
        yield
    finally:
        transfers.LAYERS_AHEAD = before
        if isinstance(way, transfers.CardTransfers):
            way.streams.decoding = decoding


def _decode_within(
    stage: StageExecutor, prompt: Batch, layer: int, decode: Callable[[], None]
) -> float:
    """Milliseconds of a decode step that comes when the host launches a layer of a prompt."""
    calls, times = [0], list[float]()

    def interrupt() -> None:
        calls[0] += 1
        if calls[0] == layer + 1:
            began = time.perf_counter()
            decode()
            times.append((time.perf_counter() - began) * 1e3)

    rows_TD = torch.ones(prompt.tokens, stage.hidden_size, dtype=stage.dtype)
    stage.step(prompt, None, rows_TD, interrupt)
    return times[0]


if __name__ == "__main__":
    main()
