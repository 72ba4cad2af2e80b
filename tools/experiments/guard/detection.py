"""Something happens to the stage in the middle: how soon is it noticed, and how soon made good?

    python -m tools.experiments.guard.detection --out DIR

Real processes on this machine: `molink up`, three agents that serve the demo model, users who ask
all the time. A cluster of its own for each fault. When it was noticed stands in the
cluster's own ledger of events; a line that vanishes is emulated by stopping processes, whose
sockets the kernel then keeps open.
"""

import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from molink.errors import UserError
from tools.experiments.dashboard.stories import members, slowed, stage_process, users
from tools.experiments.harness.agents import AgentsRun, agents_run, get_json
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.experiments.harness.processes import suspended

__all__ = ["main"]

NAMES = ("anna", "ben", "carl")
READY_WITHIN_S, BEFORE_S = 180.0, 6.0
RUN_S, STOPPED_S = 0.02, 0.08
"""A fifth of the time it computes."""

NOTICED = ("stage_silent", "node_slow", "stage_lost", "node_lost", "ring_ended", "ring_resumed")
"""Kinds of events that show that the coordinator knows..."""

LOST = NOTICED[2:]
"""...and that it does something about it."""

POLL_S = 0.1

Harm = Callable[[AgentsRun, int], Iterator[None]]


def _stage_killed(run: AgentsRun, agent: int) -> Iterator[None]:
    stage_process(run, agent).kill()
    yield


def _pc_killed(run: AgentsRun, agent: int) -> Iterator[None]:
    run.kill(agent)
    yield


def _pc_vanishes(run: AgentsRun, agent: int) -> Iterator[None]:
    with suspended(run.family(agent)):
        yield


def _stage_stands(run: AgentsRun, agent: int) -> Iterator[None]:
    with suspended([stage_process(run, agent)]):
        yield


def _stage_slow(run: AgentsRun, agent: int) -> Iterator[None]:
    with slowed(stage_process(run, agent), RUN_S, STOPPED_S):
        yield


def _nothing(run: AgentsRun, agent: int) -> Iterator[None]:
    yield


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the stage in the middle."""

    name: str
    harm: Harm
    watched_s: float = 40.0


FAULTS = (
    Fault("its stage is killed", _stage_killed),
    Fault("agent and stage are killed", _pc_killed),
    Fault("the PC vanishes, nothing is closed", _pc_vanishes),
    Fault("its stage process stands still", _stage_stands),
    Fault("its steps take five times as long", _stage_slow, 150.0),
    Fault("nothing", _nothing),
)


@experiment
@click.option("--only", default="", help="Faults whose name holds this.")
def main(out: Path, only: str) -> None:
    """Let each fault happen to a cluster that serves."""
    rows = []
    for fault in FAULTS:
        if only in fault.name:
            rows.append(_row(fault))
            click.echo(str(rows[-1]), err=True)
            write_report(out, "detection", {"rows": rows})
    show(table(rows))


def _row(fault: Fault) -> dict[str, Any]:
    options = ("--split", "even", "--min-nodes", str(len(NAMES)))
    with agents_run("demo", options) as run:
        for name in NAMES:
            run.join(name)
        report = run.wait(lambda report: members(report) == set(NAMES), READY_WITHIN_S)
        middle = report["rings"][0]["stages"][1]["node"]
        run.wait(lambda report: report["unready_reason"] is None, READY_WITHIN_S)
        with users(run.url):
            time.sleep(BEFORE_S)
            seen = get_json(f"{run.url}/cluster/events?after=0")["next"]
            began_unix_s = time.time()
            with contextmanager(fault.harm)(run, NAMES.index(middle)):
                times = _watched(run, seen, fault.watched_s, began_unix_s)
    return {"fault": fault.name, **times}


def _watched(run: AgentsRun, seen: int, for_s: float, began_unix_s: float) -> dict[str, Any]:
    """Seconds until it was noticed, until the stage was given up, and until users were served
    again; what was noted."""
    noticed_s = lost_s = served_s = None
    noted: list[str] = []
    while time.time() < began_unix_s + for_s and served_s is None:
        time.sleep(POLL_S)
        try:
            news = get_json(f"{run.url}/cluster/events?after={seen}")
        except urllib.error.URLError as error:
            raise UserError(f"the coordinator is gone: {error}") from None
        seen = news["next"]
        for event in news["events"]:
            after_s = event["unix_s"] - began_unix_s
            noted.append(f"{after_s:.2f} {event['kind']}: {event['text']}")
            if event["kind"] in NOTICED and noticed_s is None:
                noticed_s = after_s
            if event["kind"] in LOST and lost_s is None:
                lost_s = after_s
            if event["kind"] in ("ring_resumed", "ring_serving") and lost_s is not None:
                served_s = after_s
    return {"noticed_s": noticed_s, "lost_s": lost_s, "served_s": served_s, "noted": noted}


def table(rows: list[dict[str, Any]]) -> str:
    """One row for each fault."""
    head = ("what happens", "noticed after, s", "given up after, s", "served again after, s")
    return markdown_table(head, [[row["fault"], *_cells(row)] for row in rows])


def _cells(row: dict[str, Any]) -> list[str]:
    figures = (row["noticed_s"], row["lost_s"], row["served_s"])
    return [f"{one:.2f}" if one is not None else "not" for one in figures]


if __name__ == "__main__":
    main()
