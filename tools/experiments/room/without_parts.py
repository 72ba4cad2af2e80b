"""What do parts, layer classes, lenders and folds cost a stage that has none of them?

    python -m tools.experiments.room.without_parts MODEL --out DIR

A stage with all layers of MODEL, in fp32 with one thread, as the repository has it now and as it
stood at the commit of --before, takes turns with itself: six requests of 64 tokens, 32 tokens of
answer each. Both are copies of what is committed. Told are the processor time of a run, and whether
tokens are the same.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import IO

import click

from molink.errors import UserError
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

ROOT = Path(__file__).parents[3]
SOURCES = ("", "scheduler", "agent", "sim")

STAGE = """
import hashlib, sys, time
from pathlib import Path
import torch
from transformers import AutoConfig
from tests.engine.ring_driver import Job, RingDriver, load_stages
torch.set_num_threads(1)
model = Path(sys.argv[1])
stages = load_stages(model, (0, AutoConfig.from_pretrained(model).num_hidden_layers))
for line in sys.stdin:
    jobs = [Job(n, [3 + (7 * n + 5 * at) % 90 for at in range(64)], 32) for n in range(6)]
    began = time.process_time()
    tokens = RingDriver(stages, span_tokens=64).run(jobs)
    took_s = time.process_time() - began
    print(took_s, hashlib.sha256(repr(tokens).encode()).hexdigest(), flush=True)
"""
"""Runs once for each line that it reads."""


@experiment
@click.argument("model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--before", metavar="COMMIT", required=True, help="Commit to compare with.")
@click.option("--rounds", type=click.IntRange(min=4), default=12, show_default=True)
def main(out: Path, model: Path, before: str, rounds: int) -> None:
    """Print processor times of both, and the median of their ratios."""
    with TemporaryDirectory() as scratch, ExitStack() as ends:
        trees = {"before": before, "now": "HEAD"}
        copies = {name: _copied(commit, Path(scratch) / name) for name, commit in trees.items()}
        stages = {
            name: ends.enter_context(_stage(copy, model.resolve())) for name, copy in copies.items()
        }
        for stage in stages.values():
            _run(stage)  # Kernels are compiled and proven by the first one.
        runs = [_in_turn(stages, is_reversed=bool(turn % 2)) for turn in range(rounds)]
    ratios = [one["now"][0] / one["before"][0] for one in runs]
    answers = {tokens for one in runs for _, tokens in one.values()}
    report = {"runs": runs, "ratios": ratios, "are_same": len(answers) == 1}
    write_report(out, "without_parts", report)
    times = [f"{1e3 * median(one[name][0] for one in runs):,.0f}" for name in ("before", "now")]
    low, _, high = quantiles(ratios, n=4)
    spread = f"{median(ratios):.3f} ({low:.3f} to {high:.3f})"
    head = ["", "before, ms", "now, ms", "now / before, middle half", "tokens"]
    same = "the same" if report["are_same"] else "others"
    show(markdown_table(head, [[f"{rounds} runs", *times, spread, same]]))


def _copied(commit: str, at: Path) -> Path:
    at.mkdir()
    made = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True)
    if made.returncode:
        raise UserError(f"no such commit is here: {made.stderr.decode(errors='replace').strip()}")
    subprocess.run(["tar", "-x", "-C", str(at)], input=made.stdout, check=True)
    return at


Stage = tuple[IO[str], IO[str]]
"""Where its runs are asked for, and where it answers."""


@contextmanager
def _stage(copy: Path, model: Path) -> Iterator[Stage]:
    paths = os.pathsep.join(str(copy / source) for source in SOURCES)
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", STAGE, str(model)]
    with subprocess.Popen(command, cwd=copy, env=environment, **pipes) as process:  # type: ignore[call-overload]
        yield process.stdin, process.stdout
        process.stdin.close()


def _run(stage: Stage) -> tuple[float, str]:
    """Seconds of a processor, and a digest of all tokens."""
    asks, answers = stage
    asks.write("\n")
    asks.flush()
    if not (line := answers.readline()):
        raise UserError("the stage has ended: what it printed says why")
    took_s, tokens = line.split()
    return float(took_s), tokens


def _in_turn(stages: Mapping[str, Stage], *, is_reversed: bool) -> dict[str, tuple[float, str]]:
    names = sorted(stages, reverse=is_reversed)
    return {name: _run(stages[name]) for name in names}


if __name__ == "__main__":
    main()
