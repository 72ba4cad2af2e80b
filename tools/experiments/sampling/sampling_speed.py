"""How long does the tail take from logits to tokens, by what the rows ask for?

    python -m tools.experiments.sampling.sampling_speed FORMER --out DIR

Random logits in bfloat16, flat ones (deviation 1: six in ten words make a nucleus of 0.9) and
peaked ones (deviation 6: up to a hundred words do), for one row and sixteen. FORMER is the
sampling of an earlier revision as one module:

    git show 1c4930b:molink/engine/sampling.py > FORMER

Both take turns over the same logits and draw the same tokens, or the script stops. Times are
processor time of one thread, the best of some rounds.
"""

import importlib.util
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import click
import torch

from molink.engine.sampling import history, sampler
from molink_scheduler.batch import Admission
from molink_scheduler.request import SamplingParams
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

VOCABULARIES = (32_000, 128_256, 152_064, 262_144)
ROWS = (1, 16)
DEVIATIONS = {"flat": 1.0, "peaked": 6.0}
PROMPT = tuple(range(2_000))

ASKED: dict[str, list[dict[str, Any]]] = {
    "greedy": [{"temperature": 0.0}],
    "temperature": [{}],
    "top_p": [{"top_p": 0.9}],
    "top_k, top_p, min_p": [{"top_k": 50, "top_p": 0.9, "min_p": 0.01}],
    "logprobs": [{"temperature": 0.0, "logprobs": 5}],
    "penalties": [{"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1}],
    "each row another": [
        {"temperature": 0.0},
        {"top_p": 0.9, "logprobs": 5},
        {"top_k": 50, "repetition_penalty": 1.1},
        {"min_p": 0.02, "logit_bias": ((7, -3.0), (9, 2.0)), "min_tokens": 5},
    ],
}
"""What rows ask for, in turn."""


@experiment
@click.argument("former", type=click.Path(exists=True, path_type=Path))
@click.option("--rounds", default=7, show_default=True, help="Of which the best counts.")
def main(out: Path, former: Path, rounds: int) -> None:
    """Print milliseconds of a step's sampling, former and present."""
    torch.set_num_threads(1)
    ways = {"former": _module_of(former), "present": None}
    times: dict[str, dict[str, float]] = {}
    for words, rows, logits, asked in product(VOCABULARIES, ROWS, DEVIATIONS, ASKED):
        case = f"{words}, {rows} rows, {logits}, {asked}"
        times[case] = _best(ways, _logits(rows, words, DEVIATIONS[logits]), ASKED[asked], rounds)
    lines = [[case, *(f"{ms[way]:.2f}" for way in ways)] for case, ms in times.items()]
    show(f"ms of a step\n\n{markdown_table(['', *ways], lines)}")
    write_report(out, "sampling_speed", {"ms": times}, "sampling_speed")


def _module_of(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("former_sampling", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _logits(rows: int, words: int, deviation: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(words)
    return (torch.randn(rows, words, generator=generator) * deviation).bfloat16()


def _best(
    ways: dict[str, Any], logits_RW: torch.Tensor, asked: Sequence[dict[str, Any]], rounds: int
) -> dict[str, float]:
    steps = {name: _step(module, logits_RW, asked) for name, module in ways.items()}
    best, tokens = dict[str, float](), dict[str, list[int]]()
    for number in range(rounds):
        for name, step in steps.items():
            began = time.process_time()
            tokens[name] = step(number)
            took = (time.process_time() - began) * 1e3
            best[name] = min(took, best.get(name, took))
        if tokens["former"] != tokens["present"]:
            raise click.ClickException(f"the two draw other tokens: {tokens}")
    return best


def _step(
    module: Any, logits_RW: torch.Tensor, asked: Sequence[dict[str, Any]]
) -> Callable[[int], list[int]]:
    """One step of a former module, or of the present; its argument is the tokens drawn so far."""
    kind = history.SequenceHistory if module is None else module.SequenceHistory
    draw = sampler.sample if module is None else module.sample
    histories = [
        kind.from_admission(_admission(row, asked[row % len(asked)]))
        for row in range(len(logits_RW))
    ]

    def step(number: int) -> list[int]:
        known = [len(PROMPT) + number] * len(histories)
        with torch.inference_mode():
            return [token.token_id for token in draw(logits_RW, histories, known)]

    return step


def _admission(row: int, asked: dict[str, Any]) -> Admission:
    params = SamplingParams(max_tokens=99, seed=row, stop_token_ids=(2,), **asked)
    prompt = PROMPT if params.needs_prompt else ()
    return Admission(row, len(PROMPT), len(PROMPT) + 99, params, prompt)


if __name__ == "__main__":
    main()
