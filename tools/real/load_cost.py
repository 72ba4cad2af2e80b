"""What trying swapped modules once more at load costs (docs/decisions/0059).

    python -m tools.real.load_cost --out DIR [--page]

Loads a published model in one process after another, with that trial and with it left out, in turn.
Counted is the time of `load_stage` in a stage's process of one thread: by the clock, and of the
processor, which other work on the machine does not lengthen. The files have been read before, so
the disk makes nothing longer.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import click
import torch

from molink.engine.loading import load_stage
from molink.engine.proof import Swaps
from molink.stage_protocol.messages import StageWork
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.real.exactness import GGUF, INT4, INT8, PLAIN
from tools.real.library import save_plain
from tools.real.page import write_section
from tools.real.published import cache_folder, fetch, read_manifest
from tools.real.served import Form, import_model

__all__ = ["cost_table", "main"]

MODEL = "qwen2.5-coder-0.5b"
LAYERS = 24
FORMS = (PLAIN, INT8, INT4)
KV_TOKENS = 2048
COST_MAX_S, COST_MAX = 1.0, 0.02
"""Of a load, at most: seconds, and of its time without."""

Times = Mapping[str, list[float]]
"""Seconds of each load: `clock` and `cpu` with the trial, `clock_without` and `cpu_without`."""


@experiment
@click.option("--rounds", default=5, show_default=True, help="Of which the medians count.")
@click.option("--page", is_flag=True, help="Write the table into docs/benchmarks/real.md.")
def main(out: Path, rounds: int, page: bool) -> None:
    """Print how much longer a stage loads because its weights are tried."""
    found = {form.name: _measured(_checkpoint(form), rounds) for form in FORMS}
    write_report(out, "load_cost", {"model": MODEL, "loads": found})
    show(cost_table(found))
    if page:
        write_section("load cost", cost_table(found))


def _checkpoint(form: Form) -> Path:
    """The model's folder in this form, made of the published file where it is not there."""
    model = next(one for one in read_manifest() if one.name == MODEL)
    work = cache_folder() / f"{MODEL}-made"
    gguf, plain = fetch(model, cache_folder()), work / PLAIN.name
    work.mkdir(exist_ok=True)
    if form is not GGUF and not plain.exists():
        save_plain(gguf, plain)
    if form is not PLAIN:
        import_model(gguf if form is GGUF else plain, work / form.name, form)
    return work / form.name


def _measured(checkpoint: Path, rounds: int) -> dict[str, list[float]]:
    """All loads of a checkpoint, after one that only reads its files."""
    _loaded(checkpoint, True)
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for is_tried, ending in ((True, ""), (False, "_without")):
            for name, seconds in _loaded(checkpoint, is_tried).items():
                times.setdefault(name + ending, []).append(seconds)
    return times


def _loaded(checkpoint: Path, is_tried: bool) -> dict[str, float]:
    words = ["-m", __spec__.name, "load", str(checkpoint), *([] if is_tried else ["untried"])]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return dict[str, float](json.loads(done.stdout.splitlines()[-1]))


def _load(folder: str, is_tried: bool) -> None:
    """Load all layers in this process and print how long that took."""
    if not is_tried:
        Swaps.seen = classmethod(_seen_nothing)  # type: ignore[method-assign, assignment]
    work = StageWork((0, LAYERS), "cpu", "bfloat16", KV_TOKENS)
    torch.set_num_threads(1)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    load_stage(folder, work)
    clock_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    click.echo(json.dumps({"clock": clock_s, "cpu": cpu_s}))


def _seen_nothing(cls: type[Swaps], model: object, run: Callable[[], object]) -> Swaps:
    """No rows to try anything with. The run shows what reads the same rows, as it did before."""
    run()
    return cls()


def cost_table(found: Mapping[str, Times]) -> str:
    """Seconds of a load with and without, and what the difference is of it."""
    head = [
        "weights",
        "load, s",
        "without, s",
        "processor, s",
        "without, s",
        "more, s",
        "share",
        "",
    ]
    return markdown_table(head, [[name, *_cells(times)] for name, times in found.items()])


def _cells(times: Times) -> list[str]:
    keys = ("clock", "clock_without", "cpu", "cpu_without")
    clock, clock_without, cpu, cpu_without = (median(times[key]) for key in keys)
    more = cpu - cpu_without
    is_reached = more <= COST_MAX_S and more <= COST_MAX * cpu_without
    shown = [f"{one:.2f}" for one in (clock, clock_without, cpu, cpu_without, more)]
    return [*shown, f"{more / cpu_without:.1%}", "reached" if is_reached else "MISSED"]


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        _load(sys.argv[2], len(sys.argv) == 3)
    else:
        main()
