"""Models of 8 and 20 billion parameters in four bits over three agents of one machine.

    python -m tools.real.big_shapes --out DIR [--page]

Writes a random checkpoint, starts `molink up` and three agents, which fetch their layers, and asks
for an answer. Memory and download of each stage stand beside what `molink plan` says of the same
cluster. Needs some 20 GB of memory and 30 GB of disk in DIR for the larger one; what is written is
removed.
"""

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import psutil

from molink.errors import UserError
from tools.experiments.harness.agents import AgentsRun, agents_run
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.real.big_checkpoints import SHAPES, BigShape, write_checkpoint
from tools.real.page import write_section

__all__ = ["Stage", "main", "stages_table"]

STAGES = 3
CONTEXT_TOKENS = 1024

FIXED_BYTES = 300 * 2**20
"""Of a stage without weights (docs/benchmarks/quantized.md, "nothing")."""

READY_WITHIN_S = 1800.0
"""For agents to time a layer and fetch their weights, over loopback, and to load them."""

ASKED_WITHIN_S = 600.0

SHARE_MAX = 0.1
"""By which memory and download may be beside what the plan says."""

PROMPT = list(range(1000, 1064))
ANSWER_TOKENS = 16
GB = 1e9


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage has taken, beside what the plan says."""

    model: str
    layers: tuple[int, int]
    planned_weights: int
    held_weights: int
    resident: int
    """The process's own pages, without the fixed part."""
    planned_fetch: int
    fetched: int

    def is_as_planned(self) -> bool:
        """Whether all is within ten per cent."""
        pairs = (
            (self.held_weights, self.planned_weights),
            (self.resident, self.planned_weights),
            (self.fetched, self.planned_fetch),
        )
        return all(abs(found / planned - 1) <= SHARE_MAX for found, planned in pairs)


@experiment
@click.option(
    "--shape",
    "names",
    multiple=True,
    type=click.Choice([shape.name for shape in SHAPES]),
    help="Only this one; may be given again.",
)
@click.option("--layers", type=click.IntRange(min=STAGES), help="Fewer layers, for a trial.")
@click.option("--page", is_flag=True, help="Write the table into docs/benchmarks/real.md.")
def main(out: Path, names: Sequence[str], layers: int | None, page: bool) -> None:
    """Print memory and download of big models' stages beside the plan's."""
    found = list[Stage]()
    for shape in SHAPES:
        if not names or shape.name in names:
            found += _tried(shape, out / shape.name, layers)
    write_report(out, "big_shapes", {"stages": [asdict(one) for one in found]}, "big_shapes")
    show(stages_table(found))
    if page:
        write_section("big shapes", stages_table(found))
    others = sum(not one.is_as_planned() for one in found)
    if others:
        raise UserError(f"{others} stages take more than {SHARE_MAX:.0%} beside the plan")


def _tried(shape: BigShape, folder: Path, layers: int | None) -> list[Stage]:
    try:
        size = write_checkpoint(shape, folder, layers)
        show(f"{shape.name}: {size / GB:.1f} GB written")
        lent = _lent_gb(size)
        options = ("--split", "even", "--min-nodes", str(STAGES))
        lengths = ("--context-tokens", str(CONTEXT_TOKENS), "--max-model-len", str(CONTEXT_TOKENS))
        with agents_run(str(folder), (*options, *lengths)) as cluster:
            for number in range(STAGES):
                cluster.join(
                    f"pc{number}", "--device", "cpu", "--threads", "1", "--memory-gb", lent
                )
            report = cluster.wait(_serves, READY_WITHIN_S)
            show(f"{shape.name}: answered {_asked(cluster.url)}")
            return _stages(shape.name, cluster, report)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serves(report: Mapping[str, Any]) -> bool:
    """Whether a ring of all stages answers."""
    return report["unready_reason"] is None and len(report["stages"]) == STAGES


def _lent_gb(size: int) -> str:
    """A little more than a third of the model for each, so that none could hold two thirds."""
    return f"{size / GB / STAGES * 1.6 + 1:.1f}"


def _asked(url: str) -> list[int]:
    body = {"prompt_token_ids": PROMPT, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ASKED_WITHIN_S) as answer:
        tokens: list[int] = json.load(answer)["token_ids"]
    return tokens


def _stages(model: str, cluster: AgentsRun, report: Mapping[str, Any]) -> list[Stage]:
    planned = {one["name"]: one for one in _plan(cluster.url)["rings"][0]["stages"]}
    found = list[Stage]()
    for served in report["stages"]:
        plan = planned[served["node"]]
        own_pages = max(map(_own_pages, cluster.family(cluster.names.index(served["node"]))))
        first, last = served["layers"]
        found.append(
            Stage(
                model,
                (first, last),
                plan["weights_bytes"],
                served["weights_bytes"],
                own_pages - FIXED_BYTES,
                plan["fetched_bytes"],
                _on_disk(cluster.folder / served["node"]),
            )
        )
    return found


def _own_pages(process: psutil.Process) -> int:
    """Bytes of memory that are no file's; of an agent's processes the stage has the most."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def _plan(url: str) -> dict[str, Any]:
    """What `molink plan` says of the running cluster."""
    words = ("-m", "molink.cli.main", "plan", "--url", url, "--json")
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"molink plan failed: {done.stderr.strip()}")
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def _on_disk(folder: Path) -> int:
    """Bytes that an agent has fetched: of parts of files only what is there; models' folders hold
    links to them."""
    found = folder.rglob("*.safetensors*")
    files = (path for path in found if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_blocks * 512 for path in files)


def stages_table(stages: Sequence[Stage]) -> str:
    """Each stage's memory and download beside the plan's, in GB."""
    lines = [
        [
            stage.model,
            f"{stage.layers[0]} to {stage.layers[1]}",
            *(f"{size / GB:.2f}" for size in (stage.planned_weights, stage.held_weights)),
            f"{stage.resident / GB:.2f}",
            *(f"{size / GB:.2f}" for size in (stage.planned_fetch, stage.fetched)),
            "yes" if stage.is_as_planned() else "no",
        ]
        for stage in stages
    ]
    columns = ("weights: planned", "held", "resident", "to fetch: planned", "fetched")
    return markdown_table(["model", "layers", *columns, "within 10 %"], lines)


if __name__ == "__main__":
    main()
