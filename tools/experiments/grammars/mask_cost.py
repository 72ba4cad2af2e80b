"""What following a grammar costs a tail: compiling it, taking a token, and the next mask.

    python -m tools.experiments.grammars.mask_cost TOKENIZER --out DIR

For every schema of `schemas` a text that matches it is written at random, and cut into tokens by
the model's own tokenizer, as a model would have learned it. Then it is followed token by token with
the tail's own code. Three times are taken. *Take*: what the step itself spends on a token. *Mask*:
from then until the mask lies ready as a tensor, by another thread, while the sequence is on its
way. *Lay*: to lay a ready mask over a row of logits, in the step again. All are processor
time of the whole process, the hand-over between threads included, so that whoever else uses the
machine does not count.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from random import Random
from typing import Any

import click
import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer

from molink.checkpoint.description import ModelDescription
from molink.engine.sampling.grammar import Grammars
from molink.engine_protocol.drawn import GrammarState
from molink.serving.grammar_check import GrammarQuestion, answer_to
from molink.workload.figures import percentile
from molink_scheduler.batch import Admission
from molink_scheduler.request import SamplingParams
from tools.experiments.grammars.schemas import json_schemas
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

TEXT_BYTES_MAX = 400
"""Of what is written for a schema; what is cut off there is followed all the same."""

READABLE = range(32, 127)

MICROSECONDS = 1e6

Times = dict[str, list[float]]


@experiment
@click.argument("tokenizer")
@click.option("--rounds", default=3, show_default=True, help="Texts for each schema.")
def main(out: Path, tokenizer: str, rounds: int) -> None:
    """Print what a token of a guided answer costs; TOKENIZER is a folder that holds one."""
    words = _tokenizer(tokenizer)
    torch.set_num_threads(1)
    began = time.process_time()
    grammars = _grammars(words)
    times: Times = defaultdict(list)
    for number in range(rounds):
        for name, schema in json_schemas():
            grammar = answer_to(GrammarQuestion("json", dumps(schema))).grammar
            text = _matching_text(grammar, Random(f"{name}-{number}"))
            token_ids = words.encode(text, add_special_tokens=False)
            _follow(grammars, grammar, token_ids, len(words), times)
            if len(times["compile"]) == 1:
                click.echo(
                    f"ready for grammars after {time.process_time() - began:.1f} s", err=True
                )
    figures = {name: _figures(values) for name, values in times.items()}
    show(_table(figures))
    facts = {"vocabulary": len(words), "schemas": len(json_schemas()), "rounds": rounds}
    report = {**facts, "tokens": len(times["take"]), "us": figures}
    write_report(out, "mask_cost", report, f"mask_cost-{len(words)}")


def _tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def _grammars(words: Any) -> Grammars:
    eos = (words.eos_token_id,)
    facts = ("tokenizer", Path(), "llama", 1, 64, len(words), 4096, eos, "float32")
    return Grammars(words, ModelDescription(*facts), torch.device("cpu"))


def _matching_text(grammar: str, random: Random) -> str:
    """A text that the grammar allows, byte by byte; characters that people read where it may be
    any."""
    matcher, written = LLMatcher(LLTokenizer("byte"), grammar, log_level=0), bytearray()
    while len(written) < TEXT_BYTES_MAX and not matcher.is_stopped():
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()
        readable = [byte for byte in allowed if byte in READABLE]
        byte = random.choice(readable or [byte for byte in allowed if byte < 256] or [-1])
        if byte < 0:
            break
        matcher.consume_token(byte)
        written.append(byte)
    return written.decode(errors="ignore")


def _follow(
    grammars: Grammars, grammar: str, token_ids: Sequence[int], words: int, times: Times
) -> None:
    logits_W = torch.zeros(words)
    sampling = SamplingParams(max_tokens=10_000, grammar=grammar)
    began = time.process_time()
    constraint = grammars.constrain(Admission(1, 1, 10_000, sampling))
    constraint.forbidden()
    times["compile"].append(time.process_time() - began)
    for token_id in token_ids:
        taken_at = time.process_time()
        state = constraint.take(token_id)
        known_at = time.process_time()
        if state is not GrammarState.OPEN:
            break
        forbidden_W = constraint.forbidden()
        ready_at = time.process_time()
        logits_W.masked_fill_(forbidden_W, float("-inf"))
        times["lay"].append(time.process_time() - ready_at)
        times["take"].append(known_at - taken_at)
        times["mask"].append(ready_at - known_at)


def _figures(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    shares = {f"p{share}": percentile(ordered, share) for share in (50, 95, 99)}
    return {name: value * MICROSECONDS for name, value in {**shares, "max": ordered[-1]}.items()}


def _table(figures: dict[str, dict[str, float]]) -> str:
    columns = ("p50", "p95", "p99", "max")
    rows = [
        (name, *(f"{figures[name][column]:,.0f}" for column in columns))
        for name in ("compile", "take", "mask", "lay")
    ]
    return markdown_table(("microseconds", *columns), rows)


if __name__ == "__main__":
    main()
