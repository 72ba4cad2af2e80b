"""Everything that wants a card, in ten minutes: is it right, how fast is it, was it predicted?

    python -m tools.experiments.cards.ten_minutes --out DIR

Correctness first, each part a process of its own under a time limit: a kernel that fails takes its
process's card with it, and nothing else. OUT has a log and figures of each part as they come, and
`ten_minutes.json` with all of them after each part, so that a machine that goes away leaves what is
known. `--page` writes them into a page under the card's name (`make gpu`).

With `--device cpu` all of it runs in small, in this one process: that proves the scripts, before
there is a card to lose time on. The tests of `tests/gpu` do so in `make test`.
"""

import contextlib
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import torch

from molink.errors import UserError
from tools.experiments.cards.figures import Figure, card_name, figure_rows, figures_in
from tools.experiments.cards.measured_page import with_card
from tools.experiments.harness.experiment import experiment, markdown_table, write_report

__all__ = ["PARTS", "Outcome", "Part", "main"]

ROOM = "tools.experiments.cards"

KERNEL_PROCESSES, KERNEL_BATCHES = 8, 8
"""Most of their time the host compiles: each batch has its own kind of layer, in three formats. A
process takes up to a gigabyte and a half of the card."""

SOME_NAMES = "llama or qwen or mistral or gemma or phi"
"""About half of the architectures, which share most kinds of layers."""


SMALL_BATCH = ["--first", "24", "--batches", "1"]
"""Two decode rows with a window and sinks: the interpreter has little to do."""


@dataclass(frozen=True, slots=True)
class Part:
    """Something that is run on its own, for so long at most."""

    name: str
    question: str
    limit_s: float
    module: str
    """An experiment of this room, or pytest."""
    arguments: tuple[tuple[str, ...], ...] = ((),)
    """Of commands that run side by side."""

    def commands(self, out: Path, device: str) -> list[list[str]]:
        """What it runs, without the interpreter: module and arguments."""
        if self.module == "pytest":
            return [["pytest", "-q", "-p", "no:cacheprovider", *given] for given in self.arguments]
        return [
            [f"{ROOM}.{self.module}", "--device", device, "--out", str(folder), *given]
            for folder, given in zip(self.folders(out), self.arguments, strict=True)
        ]

    def folders(self, out: Path) -> list[Path]:
        """Where its commands leave their figures."""
        return [out / self.name / str(number) for number in range(len(self.arguments))]


_SLICES = tuple(
    ("--first", str(number * KERNEL_BATCHES), "--batches", str(KERNEL_BATCHES))
    for number in range(KERNEL_PROCESSES)
)

_FORMATS = tuple(("--format", name) for name in ("float32", "float16", "bfloat16"))

_EXACTNESS = tuple(
    ("tests/gpu/test_exactness.py", "-k", words)
    for words in ("bf16", f"generate and ({SOME_NAMES})", f"generate and not ({SOME_NAMES})")
)

_MODELS = (
    ("tests/gpu/test_memory.py",),
    *(
        ("tests/gpu/test_exactness.py", "-k", words)
        for words in (
            "hybrids and Qwen",
            "hybrids and (Granite or Falcon)",
            "hybrids and (Bamba or Nemotron or LFM2)",
            "hybrids and not (Qwen or Granite or Falcon or Bamba or Nemotron or LFM2)",
            "quantized and (pack or awq or gptq)",
            "quantized and not (pack or awq or gptq)",
        )
    ),
)
"""By what each model took on an H100: at most 41 seconds together, beside ten to begin."""

PARTS = (
    Part("facts", "what is this machine", 25, "facts"),
    Part("kernel", "is attention right, and the same alone", 65, "attention_check", _SLICES),
    Part("fused", "are the kernels between products right", 25, "fused_check", _FORMATS),
    Part("exactness", "do stages answer right", 75, "pytest", _EXACTNESS),
    Part("models", "hybrids, few bits, full cards, tiers", 65, "pytest", _MODELS),
    Part("graphs", "do steps replay", 30, "pytest", (("tests/gpu/test_graphs.py",),)),
    Part("transfers", "do streams keep order", 15, "pytest", (("tests/gpu/test_transfers.py",),)),
    Part("decode", "what does a layer take", 60, "decode_steps"),
    Part("attention", "how near is the kernel to memory", 30, "attention_speed"),
    Part("prefill", "prompts, and what decode waits", 35, "prefill_steps"),
    Part("copies", "what do copies and waits cost", 15, "copies"),
    Part("sample", "what does drawing tokens take", 20, "sample_speed"),
    Part("serve", "does a ring answer as on CPUs", 90, "serve_stages"),
    Part("int4", "four-bit products", 20, "int4_products"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a part."""

    part: str
    question: str
    ended: str
    """`ok`, or what went wrong."""
    seconds: float
    figures: tuple[Figure, ...] = field(default=())

    @property
    def missed(self) -> int:
        """Figures outside of what was predicted."""
        return sum(figure.is_missed for figure in self.figures)


@experiment
@click.option("--device", default="cuda:0", show_default=True, help="cpu: all in small.")
@click.option("--only", multiple=True, help="Name of a part; several times.")
@click.option("--without", multiple=True, help="Name of a part that is left out.")
@click.option("--page", type=click.Path(exists=True, path_type=Path), help="To write figures in.")
def main(
    out: Path, device: str, only: Sequence[str], without: Sequence[str], page: Path | None
) -> None:
    """Run the parts and print what came of them; the command fails where one did."""
    _refuse_unknown({*only, *without})
    on = torch.device(device)
    if page is not None and on.type == "cpu":
        raise UserError("figures of a CPU in small say nothing: leave --page away")
    run = _run_here if on.type == "cpu" else _run_apart
    outcomes = list[Outcome]()
    for part in PARTS:
        skipped = (only and part.name not in only) or part.name in without
        if skipped or (on.type == "cpu" and part.module == "pytest"):
            continue
        outcomes.append(_outcome(part, run, out, device))
        last = outcomes[-1]
        missed = f", {last.missed} predictions missed" if last.missed else ""
        click.echo(f"{part.name}: {last.ended}, {last.seconds:.0f} s{missed}", err=True)
        report = {"card": card_name(on), "parts": [_shown(one) for one in outcomes]}
        write_report(out, "ten_minutes", report)
    if page is not None:
        page.write_text(with_card(page.read_text(), card_name(on), _section(outcomes)))
    for failed in (one for one in outcomes if one.ended != "ok"):
        raise UserError(f"{failed.part} {failed.ended}: {out / failed.part}.log")


def _refuse_unknown(named: set[str]) -> None:
    for name in named - {part.name for part in PARTS}:
        raise UserError(f"no part is called {name}: {', '.join(part.name for part in PARTS)}")


def _outcome(part: Part, run: Any, out: Path, device: str) -> Outcome:
    began = time.perf_counter()
    for folder in part.folders(out):
        folder.mkdir(parents=True, exist_ok=True)
    with (out / f"{part.name}.log").open("w") as log:
        ended = run(part, part.commands(out, device), log)
    seconds = time.perf_counter() - began
    return Outcome(part.name, part.question, ended, seconds, _figures(part.folders(out)))


def _run_apart(part: Part, commands: list[list[str]], log: Any) -> str:
    """Run commands side by side, each a process, until the part's time is up."""
    deadline = time.monotonic() + part.limit_s
    started = [
        subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # So that what they start ends with them.
        )
        for command in commands
    ]
    try:
        codes = [one.wait(max(0.0, deadline - time.monotonic())) for one in started]
    except subprocess.TimeoutExpired:
        return f"took over {part.limit_s:.0f} s"
    finally:
        for one in (one for one in started if one.poll() is None):
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()
    return "ok" if not any(codes) else f"failed ({max(codes, key=abs)})"


def _run_here(part: Part, commands: list[list[str]], log: Any) -> str:
    """Run the first of the commands in this process, on one batch where it takes many."""
    os.environ["TRITON_INTERPRET"] = "1"  # Read when Triton is imported.
    module, *arguments = commands[0]
    if part.name == "kernel":
        arguments += SMALL_BATCH
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            importlib.import_module(module).main.main(arguments, standalone_mode=False)
    except Exception as error:  # Whatever it is: the other parts are run all the same.
        return f"failed ({type(error).__name__}: {error})"
    finally:
        log.write(said.getvalue())
    return "ok"


# -- what came of it -------------------------------------------------------------------------------


def _figures(folders: Sequence[Path]) -> tuple[Figure, ...]:
    """Of all commands of a part; of what several have found, the largest."""
    found = dict[str, Figure]()
    for file in (file for folder in folders for file in sorted(folder.glob("*.json"))):
        for figure in figures_in(json.loads(file.read_text())):
            other = found.get(figure.what)
            if other is None or (
                not isinstance(figure.value, str)
                and not isinstance(other.value, str)
                and figure.value > other.value
            ):
                found[figure.what] = figure
    return tuple(found.values())


def _shown(outcome: Outcome) -> dict[str, Any]:
    return asdict(outcome) | {"missed": outcome.missed}


def _section(outcomes: Sequence[Outcome]) -> str:
    """Text about a card, for a page."""
    rows = [
        [one.part, one.question, one.ended, f"{one.seconds:.0f}", str(one.missed)]
        for one in outcomes
    ]
    tables = [markdown_table(["part", "asks", "ended", "s", "missed"], rows)]
    for one in outcomes:
        if one.figures:
            table = markdown_table(["", "measured", "predicted", ""], figure_rows(one.figures))
            tables.append(f"**{one.part}**: {one.question}\n\n{table}")
    return "\n\n".join(tables)


if __name__ == "__main__":
    main()
