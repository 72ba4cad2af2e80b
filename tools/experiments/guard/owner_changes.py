"""An owner changes every limit and device of a PC that serves, in random order, 200 times.

    python -m tools.experiments.guard.owner_changes --out DIR

Anna lends enough for the whole model, beside what she holds of it, so that there is always a plan;
carl's owner cannot make up his mind, and types `molink agent set`, `pause` and `resume` of all that
can be set, while four users ask without a pause. No request may fail that a plan could keep.
"""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import click

from molink.errors import UserError
from tools.experiments.guard.cluster import GuardedCluster, guarded_cluster, verdict
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.experiments.harness.processes import MOLINK

__all__ = ["main"]

HONEST = {"anna": "0.107", "carl": "0.0322"}
FICKLE = "carl"
BEFORE_S = 10.0
LIMITS: dict[str, tuple[str, ...]] = {
    "device": ("cpu", "cuda:0", "auto", "cpu,cpu", "none"),
    "memory_gb": ("0.0322", "0.0129", "0.001", "1", "none"),
    "threads": ("1", "2", "none"),
    "upload_mbps": ("5", "100", "none"),
    "disk_gb": ("1", "0.001", "none"),
    "hours": ("00:00-24:00", "03:00-03:01", "none"),
    "only_when_idle_minutes": ("1", "600", "none"),
    "pause_on_battery": ("true", "false", "none"),
    "pause_on_game": ("true", "false", "none"),
    "vram_gb": ("1", "none"),
    "direct": ("true", "false", "none"),
}
"""What is tried of each."""

WORDS = (("pause",), ("resume",))
PAUSES_S = (0.0, 0.0, 0.2, 1.0, 4.0)


@experiment
@click.option("--changes", default=200, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Of their order.")
def main(out: Path, changes: int, seed: int) -> None:
    """Change what is lent, again and again."""
    row = asyncio.run(_row(changes, Random(seed)))
    write_report(out, "owner_changes", row, "guard-owner-changes")
    show(table(row))


async def _row(changes: int, random: Random) -> dict[str, Any]:
    async with guarded_cluster(honest=HONEST) as cluster:
        await cluster.window()
        await asyncio.sleep(BEFORE_S)
        before = await cluster.window()
        cluster.start_watch()
        files_before, began_s = cluster.open_files(), time.monotonic()
        answers: dict[str, int] = {}
        for _ in range(changes):
            answer = await asyncio.to_thread(_typed, cluster, _change(random))
            answers[answer] = answers.get(answer, 0) + 1
            await asyncio.sleep(random.choice(PAUSES_S))
            if not cluster.alive:
                break
        took_s = time.monotonic() - began_s
        during = await cluster.window()
        row = {"changes": sum(answers.values()), "took_s": took_s, "answers": answers}
        row |= await verdict(cluster, before, during)
        return row | await _settled(cluster) | {"files_before": files_before}


async def _settled(cluster: GuardedCluster) -> dict[str, Any]:
    """Whether the PC can be lent again as it was, and what has been kept open for nothing."""
    for words in (("set", "device", "cpu"), ("set", "memory_gb", "0.0322"), ("resume",)):
        await asyncio.to_thread(_typed, cluster, words)
    for name in LIMITS.keys() - {"device", "memory_gb"}:
        await asyncio.to_thread(_typed, cluster, ("set", name, "none"))
    try:
        served_again_s = await cluster.recovered()
    except UserError as error:
        return {"serves_again": str(error), "log": cluster.log()}
    return {
        "serves_again_s": served_again_s,
        "files_after": cluster.open_files(),
        "log": cluster.log(),
    }


def _change(random: Random) -> tuple[str, ...]:
    if random.random() < 0.15:
        return random.choice(WORDS)
    name = random.choice(list(LIMITS))
    return ("set", name, random.choice(LIMITS[name]))


def _typed(cluster: GuardedCluster, words: tuple[str, ...]) -> str:
    """What the owner's command came to."""
    command = [sys.executable, "-m", MOLINK, "agent", *words]
    ended = subprocess.run(
        [*command, "--data-dir", str(cluster.run.folder / FICKLE)],
        capture_output=True,
        check=False,
        text=True,
    )
    if ended.returncode == 0:
        return "done"
    sentence = (ended.stderr.strip().splitlines() or ["no sentence"])[-1]
    return sentence[:120] if "Traceback" not in ended.stderr else f"TRACEBACK {sentence[:120]}"


def _count(files: dict[str, int]) -> int:
    return sum(files.values())


def table(row: dict[str, Any]) -> str:
    """Return the trial as the one row of a table."""
    head = (
        "changes",
        "coordinator and agents",
        "broken off",
        "refused",
        "silence, s",
        "answers",
        "open files",
    )
    cells = [
        str(row["changes"]),
        "live" if row["alive"] else "ENDED",
        str(sum(row["failures"].values())),
        str(sum(row["refused"].values())),
        f"{row['silence_s']:.1f}",
        str(row["answers"]) if isinstance(row["answers"], int) else json.dumps(row["answers"]),
        f"{_count(row['files_before'])} → {_count(row.get('files_after', {}))}",
    ]
    return markdown_table(head, [cells])


if __name__ == "__main__":
    main()
