"""Records what the dashboard sees while one PC becomes slow and another is lost and comes back.

    python -m tools.experiments.dashboard.node_loss --out DIR

Real processes on this machine: `molink up`, agents, users who ask all the time, and `molink
dashboard --record` beside them. First all is well. Then one PC computes a third of the time: its
stage's process is stopped and continued again and again. Then another PC is killed, as by a power
cut, and joins again. OUT/node_loss.jsonl.gz is the recording, from which the pictures of
docs/dashboard.md are drawn.
"""

import time
from pathlib import Path

import click
import psutil

from molink.errors import UserError
from tools.experiments.dashboard.stories import members, slowed, stage_process, users
from tools.experiments.harness.agents import AgentsRun, agents_run
from tools.experiments.harness.experiment import experiment, write_report
from tools.experiments.harness.processes import MOLINK, Running, running

__all__ = ["main"]

NAMES = ("anna", "ben", "carl")

SLOW, LOST = "ben", "carl"
"""Who becomes slow, and who is lost."""

RUN_S, STOPPED_S = 0.033, 0.067
"""A third of the time it computes, as with a quota of a container."""

READY_WITHIN_S = 180.0


@experiment
@click.option("--steady-s", default=15.0, show_default=True, help="Of each part of the story.")
def main(out: Path, steady_s: float) -> None:
    """Record the story, and say when its parts began."""
    recording = out / "node_loss.jsonl.gz"
    if recording.exists():
        raise UserError(f"{recording} exists: give another --out")
    with agents_run("demo", ("--split", "even", "--min-nodes", str(len(NAMES)))) as run:
        for name in NAMES:
            run.join(name)
        run.wait(lambda report: members(report) == set(NAMES), READY_WITHIN_S)
        with (
            users(run.url),
            running(MOLINK, "dashboard", "--url", run.url, "--record", str(recording)),
        ):
            parts = _story(run, steady_s)
    began = {name: at_s - parts["steady"] for name, at_s in parts.items()}
    write_report(out, "node_loss", {"began_s": began})


def _story(run: AgentsRun, steady_s: float) -> dict[str, float]:
    """Let it happen; when each part began, in seconds since 1970."""
    parts = {"steady": time.time()}
    time.sleep(steady_s)
    parts["slowed"] = time.time()
    with slowed(stage_process(run, NAMES.index(SLOW)), RUN_S, STOPPED_S):
        time.sleep(2 * steady_s)
    parts["as before"] = time.time()
    time.sleep(steady_s)
    parts["lost"] = time.time()
    _kill(run.agents[NAMES.index(LOST)])
    run.wait(lambda report: LOST not in members(report) and bool(report["rings"]), READY_WITHIN_S)
    parts["recovered"] = time.time()
    time.sleep(steady_s)
    run.join(LOST)
    run.wait(lambda report: LOST in members(report), READY_WITHIN_S)
    parts["back"] = time.time()
    time.sleep(steady_s)
    return parts


def _kill(agent: Running) -> None:
    """End an agent and its stage at once."""
    family = [psutil.Process(agent.pid), *psutil.Process(agent.pid).children(recursive=True)]
    for one in family:
        one.kill()
    psutil.wait_procs(family, timeout=10)


if __name__ == "__main__":
    main()
