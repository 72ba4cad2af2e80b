"""What do steps of latent attention take with latent rows in the pool, and with whole keys?

    python -m tools.experiments.hybrid.latent_speed --out DIR

A stage of a few layers in bf16 with the attention of a published checkpoint and a small MLP, random
weights. The same stage stands there three times: its layers keep whole keys and values of every
head, latent rows, and latent rows in int8. They take turns; what counts is the processor time of
one thread, the best round's median step.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import torch
from transformers import AutoConfig

from molink.checkpoint.description import ModelDescription
from molink.checkpoint.kv_format import KvDtype
from molink.engine.layers.attention_function import ATTENTION_NAME
from molink.engine.layers.experts import EXPERTS_NAME
from molink.engine.model.weights import StagePart, build_stage_class
from molink.engine.step.stage import StageExecutor
from molink.engine.step.step_timing import StepTimer
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

MODELS: dict[str, dict[str, Any]] = {
    "GLM-4.7-Flash": dict(model_type="glm4_moe_lite"),
    "DeepSeek-V2-Lite": dict(
        model_type="deepseek_v2",
        hidden_size=2048,
        num_attention_heads=16,
        num_key_value_heads=16,
        q_lora_rank=None,
        kv_lora_rank=512,
    ),
    "DeepSeek-V3": dict(model_type="deepseek_v3"),
    "MiniCPM3-4B": dict(model_type="minicpm3"),
}
"""Sizes that are a class's defaults are left to it."""

LAYERS = 2
SMALL: dict[str, Any] = dict(
    num_hidden_layers=LAYERS + 2,
    intermediate_size=64,
    first_k_dense_replace=LAYERS + 2,
    mlp_layer_types=["dense"] * (LAYERS + 2),
    vocab_size=128,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)

DECODES = ((1, 256), (1, 1_024), (1, 8_192), (8, 256), (8, 2_048))
"""Rows, and tokens that each of them attends to."""

PREFILLS = ((512, 0), (512, 1_536), (512, 7_680), (64, 1_984))
"""Rows of a span, and tokens before it."""

KV_TOKENS = 24_576

WAYS = ("whole", "latent", "latent, int8")


@experiment
@click.option("--rounds", default=3, show_default=True, help="Of which the best counts.")
@click.option("--model", "names", multiple=True, help="Of the table; all where none is named.")
def main(out: Path, rounds: int, names: tuple[str, ...]) -> None:
    """Print bytes of a token and milliseconds of steps, for one layer, by model and way."""
    torch.set_num_threads(1)
    with patch("time.perf_counter", time.process_time):
        results = {name: _measured(name, rounds) for name in names or MODELS}
    write_report(out, "latent_speed", {"layer": results})
    for kind in ("decode", "prefill"):
        lines = [
            [name, step, *(f"{times[way]:.2f}" for way in WAYS)]
            for name, result in results.items()
            for step, times in result[kind].items()
        ]
        show(f"{kind}, ms of one layer\n\n{markdown_table(['model', 'step', *WAYS], lines)}")
    lines = [
        [name, *(f"{result['token_bytes'][way]:,.0f}" for way in WAYS)]
        for name, result in results.items()
    ]
    show(f"bytes of one token in one layer\n\n{markdown_table(['model', *WAYS], lines)}")


def _measured(name: str, rounds: int) -> dict[str, dict[str, Any]]:
    stages = {
        "whole": _whole_stage(name),
        "latent": _stage(name, "auto"),
        "latent, int8": _stage(name, "int8"),
    }
    timers = {way: StepTimer(stage) for way, stage in stages.items()}
    prefills = {
        f"{rows} rows after {before}": _best(timers, _prefill(rows, before), rounds)
        for rows, before in PREFILLS
    }
    decodes = {}
    for rows, context in sorted(DECODES, key=lambda one: -one[1]):
        decodes[f"{rows} x {context}"] = _best(timers, _decode(rows, context), rounds)
    token_bytes = {way: stage.kv_token_bytes / LAYERS for way, stage in stages.items()}
    return {"token_bytes": token_bytes, "decode": decodes, "prefill": prefills}


def _decode(rows: int, context: int) -> Callable[[StepTimer], float]:
    return lambda timer: timer.decode(rows, context).step_s


def _prefill(rows: int, before: int) -> Callable[[StepTimer], float]:
    return lambda timer: timer.prefill(rows, before).step_s


def _best(
    timers: dict[str, StepTimer], measure: Callable[[StepTimer], float], rounds: int
) -> dict[str, float]:
    """Milliseconds of a layer by way."""
    times: dict[str, float] = {}
    for _ in range(rounds):
        for way, timer in timers.items():
            took = measure(timer) * 1e3 / LAYERS
            times[way] = min(took, times.get(way, took))
    return times


def _whole_stage(name: str) -> StageExecutor:
    with patch("molink.engine.step.stage.keep_latents", lambda *_: {}):
        return _stage(name, "auto")


def _stage(name: str, kv_dtype: KvDtype) -> StageExecutor:
    config = AutoConfig.for_model(**(MODELS[name] | SMALL))
    config._attn_implementation, config._experts_implementation = ATTENTION_NAME, EXPERTS_NAME
    part = StagePart(range(1, 1 + LAYERS), config.num_hidden_layers)
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(0)
        model = build_stage_class(config, part)(config).to(torch.bfloat16).eval()
    description = ModelDescription(
        name, Path(), config.model_type, LAYERS + 2, config.hidden_size, 128, 65_536, (), "bfloat16"
    )
    stage = StageExecutor(model, part, description, torch.device("cpu"), torch.bfloat16)
    stage.prepare(KV_TOKENS, kv_dtype=kv_dtype)
    return stage


if __name__ == "__main__":
    main()
