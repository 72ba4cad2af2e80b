"""What of a prompt's time do the scores take by which its KV is cut?

    python -m tools.experiments.room.score_cost --out DIR

One layer that is cut, of the shape of a published model, with random weights in fp32: a prompt is
computed in spans of 512 with `kv_budget` 0.5, and what the cut takes behind its last span is taken
apart. Beside the scores as they ship stand two that a kernel could come to: with each row's
log-sum-exp, which the first pass knows, and products of queries and keys alone, without weights.
What is compared takes turns; processor time of one thread, medians.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import click
import torch
from transformers import AutoConfig

from molink.checkpoint.description import ModelDescription
from molink.engine.layers.attention_function import ATTENTION_NAME
from molink.engine.memory import prompt_cuts
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.key_scores import key_scores
from molink.engine.model.weights import StagePart, build_stage_class
from molink.engine.step.stage import StageExecutor
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.prompt_cut import SCORED_ROWS, WHOLE_LAYERS
from molink_scheduler.request import SamplingParams
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

SPAN_TOKENS, BUDGET = 512, 0.5
MODELS: dict[str, dict[str, Any]] = {
    "Qwen2.5 0.5B": dict(
        model_type="qwen2",
        hidden_size=896,
        intermediate_size=4_864,
        num_attention_heads=14,
        num_key_value_heads=2,
    ),
    "Llama 3 8B": dict(
        model_type="llama",
        hidden_size=4_096,
        intermediate_size=14_336,
        num_attention_heads=32,
        num_key_value_heads=8,
    ),
}
COMMON: dict[str, Any] = dict(
    num_hidden_layers=WHOLE_LAYERS + 2, vocab_size=128, max_position_embeddings=65_536
)
PARTS = ("a layer's prompt", "the whole cut", "scores", "choosing", "moving")


@experiment
@click.option("--tokens", default=4_000, show_default=True, help="Tokens of the prompt.")
@click.option("--rounds", default=3, show_default=True, help="Prompts of each model.")
def main(out: Path, tokens: int, rounds: int) -> None:
    """Print milliseconds of a layer's prompt and of what its cut takes, by model."""
    torch.set_num_threads(1)
    results = {name: _measured(name, tokens, rounds) for name in MODELS}
    write_report(out, "score_cost", results)
    rows = [
        [name, what, f"{ms:,.1f}", f"{ms / of[PARTS[0]]:.2%}"]
        for name, of in results.items()
        for what, ms in of.items()
    ]
    show(markdown_table(["model", "what", "ms", "of the prompt"], rows))


def _measured(name: str, tokens: int, rounds: int) -> dict[str, float]:
    """Milliseconds of each part, and of the ways to score."""
    stage, size = _stage(name, tokens), MODELS[name]["hidden_size"]
    hidden_TD, runs = torch.randn(tokens, size), list[dict[str, float]]()
    with torch.inference_mode():
        for _ in range(1 + rounds):
            runs.append(_prompt(stage, hidden_TD))
        ways = _seconds_by_way(name, tokens, rounds)
    found = {part: 1e3 * median(run[part] for run in runs[1:]) for part in PARTS}
    return found | {way: 1e3 * seconds for way, seconds in ways.items()}


def _prompt(stage: StageExecutor, hidden_TD: torch.Tensor) -> dict[str, float]:
    """Processor seconds of one prompt, part by part."""
    took, tokens = dict.fromkeys(PARTS, 0.0), len(hidden_TD)
    admission = Admission(1, tokens, tokens + 1, SamplingParams(1, kv_budget=BUDGET))
    names = ("_cut", "key_scores", "chosen_tokens", "_move")
    with _clocked(took, dict(zip(names, PARTS[1:], strict=True))):
        began = time.process_time()
        for start in range(0, tokens, SPAN_TOKENS):
            span = Span(1, start, min(start + SPAN_TOKENS, tokens), False)
            batch = Batch(0, BatchClass.PREFILL, 0, (span,), () if start else (admission,))
            stage.step(batch, hidden_TD=hidden_TD[start : span.end])
        took[PARTS[0]] = time.process_time() - began
    stage.release(Release(1))
    return took


@contextmanager
def _clocked(took: dict[str, float], parts: dict[str, str]) -> Iterator[None]:
    """Have functions of `prompt_cuts` note what they take."""

    def clocked(function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            began = time.process_time()
            result = function(*given)
            took[part] += time.process_time() - began
            return result

        return call

    new: dict[str, Any] = {
        name: clocked(getattr(prompt_cuts, name), part) for name, part in parts.items()
    }
    with patch.multiple(prompt_cuts, **new):
        yield


def _seconds_by_way(name: str, tokens: int, rounds: int) -> dict[str, float]:
    """Processor seconds of scores as they ship, and of less."""
    of = MODELS[name]
    heads, kv_heads = of["num_attention_heads"], of["num_key_value_heads"]
    size = of["hidden_size"] // heads
    q_RHA, k_PKA = torch.randn(SCORED_ROWS, heads, size), torch.randn(tokens, kv_heads, size)
    variant = AttentionVariant(size**-0.5)
    sums_KN = torch.logsumexp(_products(q_RHA, k_PKA) * variant.scale, -1)

    def with_sums() -> torch.Tensor:
        scores_KNP = _products(q_RHA, k_PKA).mul_(variant.scale).sub_(sums_KN[..., None])
        return scores_KNP.exp_().sum(1)

    ways: dict[str, Callable[[], object]] = {
        "scores again": lambda: key_scores(q_RHA, k_PKA, variant),
        "with sums of the first pass": with_sums,
        "products alone": lambda: _products(q_RHA, k_PKA),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(5 * rounds):
        for way, call in ways.items():
            began = time.process_time()
            call()
            times[way].append(time.process_time() - began)
    return {way: median(found) for way, found in times.items()}


def _products(q_RHA: torch.Tensor, k_PKA: torch.Tensor) -> torch.Tensor:
    """Queries of each kv head's group times its keys: N is rows times heads of a group."""
    rows, heads, size = q_RHA.shape
    kv_heads = k_PKA.shape[1]
    q_KNA = q_RHA.view(rows, kv_heads, heads // kv_heads, size).transpose(0, 1).flatten(1, 2)
    return q_KNA @ k_PKA.permute(1, 2, 0)


def _stage(name: str, tokens: int) -> StageExecutor:
    """The first layer that is cut, as a stage."""
    config = AutoConfig.for_model(**(COMMON | MODELS[name]))
    config._attn_implementation = ATTENTION_NAME
    part = StagePart(range(WHOLE_LAYERS, WHOLE_LAYERS + 1), config.num_hidden_layers)
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(0)
        model = build_stage_class(config, part)(config).eval()
    sizes = (config.num_hidden_layers, config.hidden_size, 128, config.max_position_embeddings)
    description = ModelDescription(name, Path(), config.model_type, *sizes, (), "float32")
    stage = StageExecutor(model, part, description, torch.device("cpu"), torch.float32)
    stage.prepare(4 * tokens)
    return stage


if __name__ == "__main__":
    main()
