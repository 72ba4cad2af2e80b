"""What does an answer lose where a prompt's KV is cut, by which tokens are kept?

    python -m tools.experiments.room.cut_quality WHICH --out DIR

WHICH is `demo`: loss of the demo model on what follows the prompt in held-out documents, which
tools/demo_model/corpus.py writes; or `real`: a checkpoint in a folder, `--model`, on pages of
Python's reference and on its library's sources: loss of what follows, and numbers that were put
between lines and are asked for at the prompt's end. All layers are one stage of the product, which
computes a text once, and behind it the end of each prompt; then its KV is cut as each way says.
Nothing depends on time. What `real` has written to DIR it does not compute again: it goes on.
"""

import importlib
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
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
from molink.engine.memory.prompt_cuts import LastQueries
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
FOLLOWING = 128
LOSS = "loss"
SOURCES = ("argparse", "asyncio.base_events", "datetime", "decimal", "difflib", "inspect", "typing")
CITIES = (
    *("Oslo", "Lima", "Cairo", "Quito", "Hanoi", "Dakar", "Turin", "Perth"),
    *("Tunis", "Delhi", "Paris", "Kyoto", "Accra", "Sofia", "Miami", "Seoul"),
)
QUESTION = (
    "\n\nThat was the text. Now answer a question about it, in one line.\n"
    "Question: What is the secret number of {city}?\n"
    "Answer: The secret number of {city} is"
)

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
    """A request of a stage that holds all layers: its prompt is computed once, all ways of cutting
    it begin with what was computed."""

    stage: StageExecutor
    begun: list[int]
    """Tokens with which all prompts begin."""
    _kept: list[torch.Tensor] = field(init=False, default_factory=list)
    """All KV of the request before it is cut."""
    _blocks: list[int] = field(init=False, default_factory=list)
    _last: Span = field(init=False)
    _queries: dict[int, LastQueries] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for start in range(0, len(self.begun), SPAN_ROWS):
            self._rows(start, self.begun[start : start + SPAN_ROWS], 1)
        self._keep()

    def end_with(self, last: Sequence[int]) -> int:
        """Compute the prompt's last tokens, at least as many as choose what is kept; returns the
        likeliest token behind it. It is the same of all ways: a prompt is attended to whole."""
        self._restore()
        start = len(self.begun)
        self._last = Span(1, start, start + len(last), samples=False)
        self._admit(BUDGETS[0])
        logits = self._rows(start, last, 1)
        self._queries = dict(self.stage.cuts._requests[1].queries)
        self._keep()
        return int(logits[-1].argmax())

    def cut(self, budget: float, way: str) -> None:
        """Cut the prompt, as it was computed, in one way."""
        self._restore()
        self._admit(budget)
        if budget < 1:
            self.stage.cuts._requests[1].queries.update(self._queries)
        with patch.object(prompt_cuts, "key_scores", WAYS[way]):
            self.stage.cuts.computed((self._last,), self.stage.kv, self.stage.kv_memory)

    def behind(self, following: Sequence[int]) -> torch.Tensor:
        """Logits of rows behind the prompt, [R, V]."""
        return self._rows(self._last.end, following, len(following))

    def _admit(self, budget: float) -> None:
        sampling, end = SamplingParams(max_tokens=1, kv_budget=budget), self._last.end
        self.stage.cuts.release(1)
        self.stage.cuts.admit(Admission(1, end, end + 1, sampling))

    def _keep(self) -> None:
        self._blocks = list(self.stage.kv.table(1))
        self._kept = [rows[self._blocks] for rows in self.stage.kv_memory.block_rows()]

    def _restore(self) -> None:
        for rows, kept in zip(self.stage.kv_memory.block_rows(), self._kept, strict=True):
            rows[self._blocks] = kept

    def _rows(self, start: int, token_ids: Sequence[int], count: int) -> torch.Tensor:
        """Logits of the last `count` rows."""
        rows, stage = len(token_ids), self.stage
        span = Span(1, start, start + rows, samples=False)
        stage.kv.grow(1, span.end, span.end)
        with torch.inference_mode():
            kept = list(range(rows - count, rows))
            logits, _ = stage.launched_rows(Batch(0, PREFILL, -1, (span,)), token_ids, None, kept)
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


def the_losses(prompt: Prompt, last: list[int], following: list[int]) -> dict[str, float]:
    """Nats of each token but the first of what follows a prompt, in the mean, by condition."""
    prompt.end_with(last)
    wanted, found = torch.tensor(following[1:]), dict[str, float]()
    for way, budget in conditions():
        prompt.cut(budget, way)
        # The first token behind the prompt is the whole prompt's: all ways draw the same.
        logits = prompt.behind(following[:-1])
        found[f"{way} {budget:g}"] = torch.nn.functional.cross_entropy(logits, wanted).item()
    return found


def is_answered(prompt: Prompt, question: list[int], answer: list[int]) -> dict[str, bool]:
    """Whether these tokens are the likeliest ones behind a question, by condition. They are
    computed together, each behind the right ones: the first that is wrong shows."""
    first, found = prompt.end_with(question), dict[str, bool]()
    for way, budget in conditions():
        prompt.cut(budget, way)
        likeliest = [first, *prompt.behind(answer[:-1]).argmax(-1).tolist()]
        found[f"{way} {budget:g}"] = likeliest == answer
    return found


@dataclass(frozen=True, slots=True)
class RealText:
    """A text between whose lines numbers are told."""

    number: int
    text: str
    tokens: int
    """Of the text with its needles."""
    numbers: dict[str, str]
    """By city, of five digits."""

    def with_needles(self, tokenizer: Any) -> tuple[list[int], list[int]]:
        """Its beginning with a sentence for each number, so many tokens in all; and what follows
        there."""
        needles = [f"The secret number of {city} is {n}." for city, n in self.numbers.items()]
        told = len(tokenizer.encode("\n".join(needles) + "\n"))
        token_ids = tokenizer.encode(self.text)
        lines = tokenizer.decode(token_ids[: self.tokens - told]).split("\n")
        drawn = random.Random(self.number)
        for needle in needles:
            # Before the last line: what follows goes on with that one.
            lines.insert(drawn.randrange(len(lines)), needle)
        return tokenizer.encode("\n".join(lines)), token_ids[self.tokens - told :]


@experiment
@click.argument("which", type=click.Choice(["demo", "real"]))
@click.option("--model", default=str(DEMO), show_default=True, help="Folder of the checkpoint.")
@click.option("--tokens", default=8_000, show_default=True, help="Of a real text's prompt.")
@click.option("--texts", default=4, show_default=True, help="Real texts.")
@click.option("--needles", default=16, show_default=True, help="In each of them, at most 16.")
@click.option("--dtype", default="float32", show_default=True)
def main(
    out: Path, which: str, model: str, tokens: int, texts: int, needles: int, dtype: str
) -> None:
    """Print what is lost, by the tokens that are kept and the way in which they are chosen."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = json.loads((Path(model) / "config.json").read_text())
    layers, room = (0, config["num_hidden_layers"]), max(1_024, tokens + 512)
    work = StageWork(layers, device="cpu", dtype=dtype, kv_tokens=room)
    stage = load_stage(model, work, self_test=False)
    tokenizer = AutoTokenizer.from_pretrained(model)
    name, results = f"cut_quality_{which}", list[dict[str, Any]]()
    runs = demo_texts(stage, tokenizer)
    if which == "real":
        if (before := out / f"{name}.json").exists():
            results += json.loads(before.read_text())["results"]
        runs = real(stage, tokenizer, parts(tokens, texts, needles, results))
    for result in runs:
        results.append(result)
        write_report(out, name, {"results": results})
    show(table(results))


def demo_texts(stage: StageExecutor, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Losses of held-out documents that are long enough, one after the other."""
    lines = HELD_OUT.read_text().splitlines()
    texts = (tokenizer.encode(json.loads(line), add_special_tokens=False) for line in lines)
    long = (text[:DEMO_TOKENS] for text in texts if len(text) >= DEMO_PROMPT + SCORED_ROWS)
    for text in islice(long, DEMO_DOCUMENTS):
        begun = DEMO_PROMPT - SCORED_ROWS
        prompt = Prompt(stage, text[:begun])
        yield {"loss": the_losses(prompt, text[begun:DEMO_PROMPT], text[DEMO_PROMPT:])}
        prompt.close()


def parts(
    tokens: int, texts: int, needles: int, done: Sequence[dict[str, Any]]
) -> Iterator[tuple[RealText, list[str]]]:
    """Texts, and what is still to be found out about each: its loss, and some cities' numbers."""
    for number, text in enumerate(islice(real_texts(), texts)):
        known = {one["what"] for one in done if (one["tokens"], one["text"]) == (tokens, number)}
        drawn = random.Random(number)
        numbers = {city: str(drawn.randint(10_000, 99_999)) for city in CITIES[:needles]}
        left = [what for what in (LOSS, *numbers) if what not in known]
        if left:
            yield RealText(number, text, tokens, numbers), left


def real(
    stage: StageExecutor, tokenizer: Any, asked: Iterable[tuple[RealText, list[str]]]
) -> Iterator[dict[str, Any]]:
    """Losses of what follows one text after the other, and answers to what is asked about it."""
    for text, left in asked:
        begun, rest = text.with_needles(tokenizer)
        prompt = Prompt(stage, begun)
        for what in left:
            result = {"tokens": text.tokens, "text": text.number, "what": what}
            if what == LOSS:
                last, following = rest[:SCORED_ROWS], rest[SCORED_ROWS:][:FOLLOWING]
                yield result | {"loss": the_losses(prompt, last, following)}
            else:
                question = tokenizer.encode(QUESTION.format(city=what))
                answer = tokenizer.encode(f" {text.numbers[what]}")
                yield result | {"found": is_answered(prompt, question, answer)}
        prompt.close()


def real_texts() -> Iterator[str]:
    """Pages of Python's reference and sources of its library, in turn; each begins elsewhere."""
    prose = "\n\n".join(str(topics[name]) for name in sorted(topics))
    for number, name in enumerate(SOURCES):
        module = importlib.import_module(name)
        yield prose[number * 60_000 :][:60_000]
        yield Path(str(module.__file__)).read_text()


def table(results: Sequence[dict[str, Any]]) -> str:
    """Mean loss against whole, its standard error, and needles."""
    rows, losses = [], [one["loss"] for one in results if "loss" in one]
    answers = [one["found"] for one in results if "found" in one]
    for way, budget in conditions():
        name = f"{way} {budget:g}"
        more = [one[name] - one["scores 1"] for one in losses]
        mean = sum(more) / len(more)
        spread = math.sqrt(sum((one - mean) ** 2 for one in more) / max(1, len(more) - 1))
        found = f"{sum(one[name] for one in answers)} of {len(answers)}"
        rows.append([way, f"{budget:g}", f"{mean:+.4f}", f"{spread / len(more) ** 0.5:.4f}", found])
    return markdown_table(["kept by", "keep", "nats more", "standard error", "needles"], rows)


if __name__ == "__main__":
    main()
