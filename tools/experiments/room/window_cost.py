"""What do layers keep that see a window only, and what do steps take that have two block tables?

    python -m tools.experiments.room.window_cost --out DIR

A stage of six layers in bf16 with the attention of a published checkpoint and a small MLP, random
weights. The same stage stands there twice: with windows as a class of their own, and with all
layers whole. They take turns; what counts is the processor time of one thread, the best round's
median step.
"""

import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import torch
from transformers import AutoConfig

from molink.checkpoint.description import ModelDescription
from molink.engine.layers.attention_function import ATTENTION_NAME
from molink.engine.layers.experts import EXPERTS_NAME
from molink.engine.model.weights import StagePart, build_stage_class
from molink.engine.step.stage import StageExecutor
from molink.engine.step.step_timing import StepTimer
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

LAYERS, TOKENS, KV_TOKENS = 6, 8_192, 24_576
SMALL: dict[str, Any] = dict(
    num_hidden_layers=LAYERS + 2,
    hidden_size=256,
    intermediate_size=64,
    vocab_size=128,
    max_position_embeddings=65_536,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
MODELS: dict[str, dict[str, Any]] = {
    "Gemma 3 12B": dict(
        model_type="gemma3_text",
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=256,
        sliding_window=1_024,
        layer_types=["full_attention", *["sliding_attention"] * 5, *["full_attention"] * 2],
    ),
    "gpt-oss 20B": dict(
        model_type="gpt_oss",
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        sliding_window=128,
        num_local_experts=2,
        num_experts_per_tok=1,
        layer_types=["full_attention", "sliding_attention"] * 4,
    ),
}
"""Attention of published models; the stage has layers 1 to 6."""

STEPS = (
    ("decode", 1, 8_192),
    ("decode", 8, 2_048),
    ("prefill", 512, 7_680),
    ("prefill", 64, 1_984),
)
"""Kind, rows, and tokens that they attend to or that are before them."""

WAYS = ("whole", "windows")


@experiment
@click.option("--rounds", default=3, show_default=True, help="Of which the best counts.")
def main(out: Path, rounds: int) -> None:
    """Print megabytes of a request and milliseconds of steps, by model and way."""
    torch.set_num_threads(1)
    with patch("time.perf_counter", time.process_time):
        results = {name: _measured(name, rounds) for name in MODELS}
    write_report(out, "window_cost", results)
    rows = [
        [name, what, *(f"{of[way]:,.2f}" for way in WAYS), f"{of['windows'] / of['whole']:.2f}"]
        for name, result in results.items()
        for what, of in result.items()
    ]
    show(markdown_table(["model", "what", *WAYS, "ratio"], rows))


def _measured(name: str, rounds: int) -> dict[str, dict[str, float]]:
    stages = {way: _stage(name, way) for way in WAYS}
    kept = {
        way: (TOKENS * one.kv_token_bytes + one.request_bytes) / 1e6 for way, one in stages.items()
    }
    timers = {way: StepTimer(stage) for way, stage in stages.items()}
    times = {
        f"{kind}, {count} x {tokens:,}, ms": _best(timers, kind, (count, tokens), rounds)
        for kind, count, tokens in STEPS
    }
    return {f"KV of {TOKENS:,} tokens, MB": kept, **times}


def _best(
    timers: dict[str, StepTimer], kind: str, step: tuple[int, int], rounds: int
) -> dict[str, float]:
    """Milliseconds of a step by way."""
    times: dict[str, float] = {}
    for _ in range(rounds):
        for way, timer in timers.items():
            took = getattr(timer, kind)(*step).step_s * 1e3
            times[way] = min(took, times.get(way, took))
    for timer in timers.values():
        timer.forget()
    return times


def _stage(name: str, way: str) -> StageExecutor:
    config = AutoConfig.for_model(**(SMALL | MODELS[name]))
    config._attn_implementation, config._experts_implementation = ATTENTION_NAME, EXPERTS_NAME
    part = StagePart(range(1, 1 + LAYERS), config.num_hidden_layers)
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(0)
        model = build_stage_class(config, part)(config).to(torch.bfloat16).eval()
    sizes = (LAYERS + 2, config.hidden_size, 128, config.max_position_embeddings)
    description = ModelDescription(name, Path(), config.model_type, *sizes, (), "bfloat16")
    stage = StageExecutor(model, part, description, torch.device("cpu"), torch.bfloat16)
    with patch("molink_scheduler.kv.layer_class.pays", lambda *_: way == "windows"):
        stage.prepare(KV_TOKENS)
    return stage


if __name__ == "__main__":
    main()
