"""What does an answer lose where a prompt's KV is cut, by which tokens are kept?

    python -m tools.experiments.room.cut_quality WHICH --out DIR

WHICH is `demo`: loss of the demo model on what follows the prompt in held-out documents, which
tools/demo_model/corpus.py writes; or `real`: a checkpoint in a folder, `--model`, on pages of
Python's reference and on its library's sources: loss of what follows, and numbers that were put
between sentences and are asked for at the prompt's end. All layers are one stage of the product,
which computes a prompt once; then its KV is cut as each way says. Nothing depends on time.
"""

import importlib
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any
from unittest.mock import patch

import click
import torch
from transformers import AutoTokenizer

from molink.engine.loading import load_stage
from molink.engine.memory import prompt_cuts
from molink.engine.memory.key_scores import key_scores
from molink.engine.step.stage import StageExecutor
from molink.stage_protocol.messages import StageWork
from molink_scheduler.batch import PREFILL, Admission, Batch, Span
from molink_scheduler.prompt_cut import SCORED_ROWS
from molink_scheduler.request import SamplingParams
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

DEMO, HELD_OUT = Path("molink/models/demo"), Path("build/demo_model/heldout.jsonl")
DEMO_TOKENS, DEMO_PROMPT, DEMO_DOCUMENTS = 320, 256, 32
BUDGETS = (0.5, 0.25, 0.125)
SPAN_ROWS = 256
FOLLOWING, ANSWER_TOKENS = 128, 8
NEEDLES_A_TEXT = 8
SOURCES = ("argparse", "asyncio.base_events", "datetime", "decimal", "difflib", "inspect", "typing")
CITIES = ("Oslo", "Lima", "Cairo", "Quito", "Hanoi", "Dakar", "Turin", "Perth")

Scores = Callable[..., torch.Tensor]


def most_recent(q_RHA: torch.Tensor, k_PKA: torch.Tensor, variant: Any) -> torch.Tensor:
    """Scores by which the newest tokens stay."""
    tokens, kv_heads, _ = k_PKA.shape
    return torch.arange(tokens, dtype=torch.float32).expand(kv_heads, -1).clone()


def random_scores(q_RHA: torch.Tensor, k_PKA: torch.Tensor, variant: Any) -> torch.Tensor:
    """Scores by which any tokens stay, the same of all heads of a layer."""
    tokens, kv_heads, _ = k_PKA.shape
    return (1e6 * torch.rand(tokens)).expand(kv_heads, -1).clone()


WAYS: dict[str, Scores] = {"scores": key_scores, "recent": most_recent, "random": random_scores}


@dataclass
class Prompt:
    """A request of a stage that holds all layers, whose prompt may be cut in several ways."""

    stage: StageExecutor
    begun: list[int]
    """Tokens that are computed once, whole."""
    _kept: list[torch.Tensor] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._admit(len(self.begun), 1.0)
        for start in range(0, len(self.begun), SPAN_ROWS):
            self._rows(start, self.begun[start : start + SPAN_ROWS], 0)
        self._kept = [rows[self._blocks].clone() for rows in self.stage.kv_memory.block_rows()]

    @cached_property
    def _blocks(self) -> list[int]:
        return list(self.stage.kv.table(1))

    def ask(self, last: Sequence[int], budget: float, way: str) -> int:
        """Compute the prompt's last tokens, and cut it; returns the likeliest token behind it."""
        rows = self.stage.kv_memory.block_rows()
        for whole, kept in zip(rows, self._kept, strict=True):
            whole[self._blocks] = kept
        end = len(self.begun) + len(last)
        self._admit(end, budget)
        with patch.object(prompt_cuts, "key_scores", WAYS[way]):
            return int(self._rows(len(self.begun), last, 1)[-1].argmax())

    def loss(self, start: int, following: Sequence[int]) -> float:
        """Nats of each token but the first of what follows, in the mean."""
        logits = self._rows(start, following[:-1], len(following) - 1)
        return torch.nn.functional.cross_entropy(logits, torch.tensor(following[1:])).item()

    def answer(self, start: int, token: int, tokens: int) -> list[int]:
        """The likeliest tokens, from the first one on."""
        found = [token]
        while len(found) < tokens:
            found.append(int(self._rows(start, found[-1:], 1)[-1].argmax()))
            start += 1
        return found

    def _admit(self, prompt_tokens: int, budget: float) -> None:
        sampling = SamplingParams(max_tokens=1, kv_budget=budget)
        self.stage.cuts.release(1)
        self.stage.cuts.admit(Admission(1, prompt_tokens, prompt_tokens + 1, sampling))

    def _rows(self, start: int, token_ids: Sequence[int], count: int) -> torch.Tensor:
        """Logits of the last `count` rows."""
        rows, stage = len(token_ids), self.stage
        span = Span(1, start, start + rows, samples=False)
        batch = Batch(0, PREFILL, -1, (span,))
        stage.kv.grow(1, span.end, span.end)
        with torch.inference_mode():
            kept = list(range(rows - max(count, 1), rows))
            logits, _ = stage.launched_rows(batch, token_ids, None, kept)
            stage.cuts.computed(batch.spans, stage.kv, stage.kv_memory)
        return logits.float()

    def close(self) -> None:
        """Give its blocks back."""
        self.stage.kv.release(1)
        self.stage.cuts.release(1)


def conditions() -> Iterator[tuple[str, float]]:
    """Ways and budgets; whole first."""
    yield "scores", 1.0
    for budget in BUDGETS:
        for way in WAYS:
            yield way, budget


def the_losses(stage: StageExecutor, text: list[int], prompt: int) -> dict[str, float]:
    """Loss of what follows a prompt in a text, by condition."""
    asked = Prompt(stage, text[: prompt - SCORED_ROWS])
    found = {}
    for way, budget in conditions():
        asked.ask(text[prompt - SCORED_ROWS : prompt], budget, way)
        # The first token behind the prompt is the whole prompt's: all ways draw the same.
        found[f"{way} {budget:g}"] = asked.loss(prompt, text[prompt:])
    asked.close()
    return found


@experiment
@click.argument("which", type=click.Choice(["demo", "real"]))
@click.option("--model", default=str(DEMO), show_default=True, help="Folder of the checkpoint.")
@click.option("--tokens", default=2_000, show_default=True, help="Of a real text's prompt.")
@click.option("--texts", default=8, show_default=True, help="Real texts, eight needles in each.")
@click.option("--dtype", default="float32", show_default=True)
def main(out: Path, which: str, model: str, tokens: int, texts: int, dtype: str) -> None:
    """Print what is lost, by the tokens that are kept and the way in which they are chosen."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = json.loads((Path(model) / "config.json").read_text())
    layers, room = (0, config["num_hidden_layers"]), max(1_024, tokens + 512)
    work = StageWork(layers, device="cpu", dtype=dtype, kv_tokens=room)
    stage = load_stage(model, work, self_test=False)
    tokenizer = AutoTokenizer.from_pretrained(model)
    results: list[dict[str, Any]] = []
    runs = demo_texts(stage, tokenizer) if which == "demo" else real(stage, tokenizer, tokens)
    for result in runs:
        results.append(result)
        write_report(out, f"cut_quality_{which}", {"results": results})
        if len(results) == (DEMO_DOCUMENTS if which == "demo" else texts):
            break
    show(table(results))


def demo_texts(stage: StageExecutor, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Losses of held-out documents that are long enough, one after the other."""
    for line in HELD_OUT.read_text().splitlines():
        text = tokenizer.encode(json.loads(line), add_special_tokens=False)[:DEMO_TOKENS]
        if len(text) >= DEMO_PROMPT + 32:
            yield {"loss": the_losses(stage, text, DEMO_PROMPT)}


def real(stage: StageExecutor, tokenizer: Any, tokens: int) -> Iterator[dict[str, Any]]:
    """Losses and found needles of one text after the other."""
    for number, text in enumerate(real_texts()):
        token_ids = tokenizer.encode(text)
        if len(token_ids) < tokens + FOLLOWING:
            continue
        losses = the_losses(stage, token_ids[: tokens + FOLLOWING], tokens)
        yield {"loss": losses, "found": needles(stage, tokenizer, text, tokens, number)}


def real_texts() -> Iterator[str]:
    """Pages of Python's reference and sources of its library, in turn; each begins elsewhere."""
    prose = "\n\n".join(str(topics[name]) for name in sorted(topics))
    for number, name in enumerate(SOURCES):
        module = importlib.import_module(name)
        yield prose[number * 60_000 :][:50_000]
        yield Path(str(module.__file__)).read_text()


def needles(
    stage: StageExecutor, tokenizer: Any, text: str, tokens: int, seed: int
) -> dict[str, int]:
    """How many of the numbers that stand in a text are found, by condition."""
    drawn = random.Random(seed)
    numbers = {city: str(drawn.randint(10_000, 99_999)) for city in CITIES[:NEEDLES_A_TEXT]}
    lines = text[: 5 * tokens].split("\n")
    for city, number in numbers.items():
        lines.insert(drawn.randrange(len(lines)), f"The secret number of {city} is {number}.")
    begun = tokenizer.encode("\n".join(lines))[:tokens]
    asked, found = Prompt(stage, begun), dict[str, int]()
    for city, number in numbers.items():
        question = tokenizer.encode(
            "\n\nThat was the text. Now answer a question about it, in one line.\n"
            f"Question: What is the secret number of {city}?\n"
            f"Answer: The secret number of {city} is"
        )
        for way, budget in conditions():
            token = asked.ask(question, budget, way)
            end = len(begun) + len(question)
            answer = tokenizer.decode(asked.answer(end, token, ANSWER_TOKENS))
            name = f"{way} {budget:g}"
            found[name] = found.get(name, 0) + (number in answer)
    asked.close()
    return found


def table(results: Sequence[dict[str, Any]]) -> str:
    """Mean loss against whole, its standard error, and needles."""
    rows = []
    for way, budget in conditions():
        name = f"{way} {budget:g}"
        more = [one["loss"][name] - one["loss"]["scores 1"] for one in results]
        mean = sum(more) / len(more)
        spread = math.sqrt(sum((one - mean) ** 2 for one in more) / max(1, len(more) - 1))
        found = sum(one.get("found", {}).get(name, 0) for one in results)
        rows.append(
            [way, f"{budget:g}", f"{mean:+.4f}", f"{spread / len(more) ** 0.5:.4f}", str(found)]
        )
    return markdown_table(["kept by", "keep", "nats more", "standard error", "needles"], rows)


if __name__ == "__main__":
    main()
