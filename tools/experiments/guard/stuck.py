"""A member that is there and does not work: how soon do requests go on elsewhere, and who rests?

    python -m tools.experiments.guard.stuck --out DIR

Honest agents with real stages serve four users: anna holds the whole model, dora and emil half of
it each. The culprit claims to be faster than all of them, so planners prefer it.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from molink.control.messages.payloads import NodeWish
from molink.control.messages.topics import WISH
from molink.coordinator.ring.stage_watch import LoadLimits
from molink.errors import UserError
from molink.tasks import cancel
from tools.experiments.guard.cluster import GuardedCluster, guarded_cluster, verdict
from tools.experiments.guard.fake_node import FakeNode
from tools.experiments.harness.agents import Report
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

HONEST = {"anna": "0.03", "dora": "0.012", "emil": "0.012"}
BEFORE_S = 8.0
CULPRIT = "mallory"
HALF_BYTES = 12 * 10**6
"""About half of the demo model."""

LOAD_GIVEN_UP_S = LoadLimits().download_s + 30.0
"""A download that does not go on is given up by then, however busy the machine; whoever is watched
for less is not seen to rest."""

FLAP_S = 0.45
AIM_S = 15.0


@dataclass(frozen=True, slots=True)
class Culprit:
    """A way of not working."""

    name: str
    traits: dict[str, Any]
    flaps: bool = False
    loses: str = ""
    """An honest agent that ends meanwhile, so that others have to be planned for its users."""
    watched_s: float = 0.0
    """For which it has to be watched, at least."""


CULPRITS = (
    Culprit("acknowledges and does not compute", {}),
    Culprit("acknowledges and says nothing of its stage", {"beats": False}),
    Culprit("loads for ever", {"loads": False}, loses="anna", watched_s=LOAD_GIVEN_UP_S),
    Culprit("creeps", {"loads": False, "creeps_per_s": 0.011 / 50}, loses="anna"),
    Culprit("flips its wish twice a second", {"memory_bytes": HALF_BYTES}, True, "anna"),
    Culprit(
        "its links answer nothing",
        {"memory_bytes": HALF_BYTES, "answers": False, "measures": True},
        loses="anna",
    ),
    Culprit("none: an honest PC is lost", {"memory_bytes": 1}, loses="anna"),
)


@experiment
@click.option(
    "--for-s", default=90.0, show_default=True, help="How long each is watched, at least."
)
@click.option("--only", default="", help="Culprits whose name holds this.")
def main(out: Path, for_s: float, only: str) -> None:
    """Let each culprit into a cluster that serves."""
    rows = []
    for culprit in CULPRITS:
        if only in culprit.name:
            rows.append(asyncio.run(_row(culprit, for_s)))
            click.echo(json.dumps(rows[-1]), err=True)
            write_report(out, "stuck", {"for_s": for_s, "rows": rows}, "guard-stuck")
    show(table(rows))


async def _row(culprit: Culprit, for_s: float) -> dict[str, Any]:
    watched_s = max(for_s, culprit.watched_s)
    async with guarded_cluster(honest=HONEST) as cluster:
        await cluster.window()
        await asyncio.sleep(BEFORE_S)
        before = await cluster.window()
        cluster.start_watch()
        fake = cluster.fake(CULPRIT, **culprit.traits)
        rested: dict[str, str] = {}
        async with fake.member(), _flapping(fake, culprit.flaps):
            await _taken(fake, culprit)
            if culprit.loses:
                cluster.lose(culprit.loses)
            await _watched(cluster, watched_s, rested)
        during = await cluster.window()
        row = {
            "culprit": culprit.name,
            "watched_s": watched_s,
            "taken": bool(fake.assignments),
            "rested": rested,
            "read": fake.requests_read,
        }
        return row | await verdict(cluster, before, during) | {"log": cluster.log()}


async def _taken(fake: FakeNode, culprit: Culprit) -> None:
    """Wait until it does its harm, as far as that can be seen."""
    if not culprit.loses:
        await fake.until_serving()
        return
    for _ in range(60):
        is_known = len(fake.paths.measured_by) == len(HONEST)
        if fake.assignments or culprit.flaps or is_known:
            return
        await asyncio.sleep(0.5)


async def _watched(cluster: GuardedCluster, for_s: float, rested: dict[str, str]) -> None:
    """Note who rests, and the first reason given for each."""

    def look(report: Report) -> bool:
        for node in report["nodes"]:
            if node["reason"].startswith("It rests"):
                rested.setdefault(node["name"], node["reason"])
        return False

    try:
        await cluster.until(look, for_s)
    except UserError:
        return


@asynccontextmanager
async def _flapping(fake: FakeNode, flaps: bool) -> AsyncIterator[None]:
    async def flap() -> None:
        while True:
            for wish in ("pause", "serve"):
                await fake.say(WISH, NodeWish(wish=wish))
                await asyncio.sleep(FLAP_S)

    task = asyncio.create_task(flap()) if flaps else None
    try:
        yield
    finally:
        if task is not None:
            await cancel(task)


def table(rows: list[dict[str, Any]]) -> str:
    """One row for each culprit."""
    head = ("culprit", "longest silence of a user, s", "aim", "broken off / refused", "rested")
    return markdown_table(head, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["culprit"],
        f"{row['silence_s']:.1f}",
        "reached" if row["silence_s"] <= AIM_S else "MISSED",
        f"{sum(row['failures'].values())} / {sum(row['refused'].values())}",
        ", ".join(row["rested"]) or ("nobody" if row["taken"] else "nobody, it was in no ring"),
    ]


if __name__ == "__main__":
    main()
