"""What does a step take whose sequences lie scattered over the pool, and whose do not?

    python -m tools.experiments.ring.scattered_steps --out DIR

A stage of four small llama layers with random weights, so that attention and what is done for each
sequence weigh more than they do in a large model; in bf16, or as `--dtype` says. Sequences of the
same stage are placed in one piece, or in blocks that alternate. What counts is the processor time
of one thread, the best round's median step. `--before CHECKOUT` measures another checkout of this
project in turn with this one, each round in a process of its own.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import click
import torch
from transformers import AutoConfig

from molink.checkpoint.description import ModelDescription
from molink.engine.layers.attention_function import ATTENTION_NAME
from molink.engine.model.weights import StagePart, build_stage_class
from molink.engine.step.stage import StageExecutor
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.request import SamplingParams
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

LAYERS, HIDDEN = 4, 768
CONFIG = dict(
    model_type="llama",
    num_hidden_layers=LAYERS + 2,
    hidden_size=HIDDEN,
    intermediate_size=2048,
    num_attention_heads=12,
    num_key_value_heads=4,
    vocab_size=128,
)

DECODES = ((1, 256), (1, 4_096), (16, 256), (16, 1_024), (16, 4_096))
"""Rows, and tokens that each of them attends to."""

PREFILLS = ((512, 0), (512, 1_536))
"""Rows of a span, and tokens before it."""

PLACEMENTS = ("in one piece", "scattered")
KV_TOKENS = 18 * 4_096
REPEATS = 15

MEASURE = "--measure"

DTYPES = ("bfloat16", "float32")


@experiment
@click.option("--rounds", default=3, show_default=True, help="Of which the best counts.")
@click.option("--dtype", type=click.Choice(DTYPES), default=DTYPES[0], show_default=True)
@click.option("--before", type=click.Path(exists=True, path_type=Path), help="Another checkout.")
def main(out: Path, rounds: int, dtype: str, before: Path | None) -> None:
    """Print milliseconds of steps by placement and checkout."""
    here = Path(__file__).parents[3]
    checkouts = {"this": here} if before is None else {"before": before, "this": here}
    results: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for name, checkout in checkouts.items():
            for step, ms in _measured(checkout, dtype).items():
                best = results.setdefault(step, {})
                best[name] = min(ms, best.get(name, ms))
    write_report(out, "scattered_steps", {"dtype": dtype, "step_ms": results})
    lines = [
        [step, *(f"{times[name]:.2f}" for name in checkouts)] for step, times in results.items()
    ]
    show(f"ms of a step\n\n{markdown_table(['step', *checkouts], lines)}")


def _measured(checkout: Path, dtype: str) -> dict[str, float]:
    """Milliseconds of steps of that checkout's stage, in a process of its own."""
    folders = (checkout, checkout / "scheduler", Path(__file__).parents[3])
    path = os.pathsep.join(map(str, folders))
    command = [sys.executable, __file__, MEASURE, dtype]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": path},
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


# -- the process that measures --------------------------------------------------------------------


def measure(dtype: torch.dtype) -> None:
    """Print the milliseconds of all steps as JSON."""
    torch.set_num_threads(1)
    stage, results = _stage(dtype), {}
    for placement in PLACEMENTS:
        for rows, context in DECODES:
            _fill(stage, rows, context, placement)
            spans = tuple(Span(row, context - 1, context, False) for row in range(rows))
            name = f"decode of {rows} x {context}, {placement}"
            results[name] = _step_ms(stage, BatchClass.DECODE, spans)
    for rows, earlier in PREFILLS:
        _fill(stage, 1, earlier + rows, PLACEMENTS[0])
        spans = (Span(0, earlier, earlier + rows, False),)
        name = f"{rows} rows of a prompt after {earlier}"
        results[name] = _step_ms(stage, BatchClass.PREFILL, spans)
    click.echo(json.dumps(results))


def _fill(stage: StageExecutor, rows: int, tokens: int, placement: str) -> None:
    """Let requests hold tokens, in blocks that are theirs in one piece, or that
    alternate with those of a neighbour."""
    neighbour = rows
    for row in range(rows + 1):
        stage.release(Release(row))
    is_scattered = placement != PLACEMENTS[0]
    expected = 1 if is_scattered else tokens
    for row in range(rows + 1):
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        stage.admit(Admission(row, expected, expected, sampling))
    for end in range(BLOCK_TOKENS, tokens + 1, BLOCK_TOKENS) if is_scattered else ():
        for row in range(rows):
            stage.kv.grow(row, end, 1)
        if rows == 1:
            stage.kv.grow(neighbour, end, 1)
    for row in range(rows):
        stage.kv.grow(row, tokens, expected)


def _step_ms(stage: StageExecutor, batch_class: BatchClass, spans: tuple[Span, ...]) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        _step(stage, batch_class, spans)
        times.append(time.process_time() - began)
    return statistics.median(times) * 1e3


def _step(stage: StageExecutor, batch_class: BatchClass, spans: tuple[Span, ...]) -> None:
    batch = Batch(0, batch_class, 0, spans)
    stage.step(batch, None, torch.ones(batch.tokens, HIDDEN, dtype=stage.dtype))


def _stage(dtype: torch.dtype) -> StageExecutor:
    config = AutoConfig.for_model(**CONFIG)
    config._attn_implementation = ATTENTION_NAME
    part = StagePart(range(1, 1 + LAYERS), config.num_hidden_layers)
    torch.default_generator.manual_seed(0)
    model = build_stage_class(config, part)(config).to(dtype).eval()
    sizes = (config.num_hidden_layers, HIDDEN, config.vocab_size, 65_536)
    description = ModelDescription("llama", Path(), "llama", *sizes, (), "bfloat16")
    stage = StageExecutor(model, part, description, torch.device("cpu"), dtype)
    stage.prepare(KV_TOKENS)
    for layer in stage._pool.layers.values():  # Memory that was never written is read faster.
        for rows in (layer.keys, layer.values):
            rows.rows_SKA.normal_()
    return stage


if __name__ == "__main__":
    if MEASURE in sys.argv:
        measure(getattr(torch, sys.argv[-1]))
    else:
        main()
