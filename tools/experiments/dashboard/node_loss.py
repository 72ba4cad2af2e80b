"""Records what the dashboard sees while one PC becomes slow and another is lost and comes back.

    python -m tools.experiments.dashboard.node_loss --out DIR

Real processes on this machine: `molink up`, agents, users who ask all the time, and `molink
dashboard --record` beside them. First all is well. Then one PC computes a third of the time: its
stage's process is stopped and continued again and again. Then another PC is killed, as by a power
cut, and joins again. OUT/node_loss.jsonl.gz is the recording, from which the pictures of
docs/dashboard.md are drawn.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import psutil

from molink.errors import UserError
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

USERS = 3
PROMPT_TOKENS, ANSWER_TOKENS = 120, 60


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
        run.wait(lambda report: _members(report) == set(NAMES), READY_WITHIN_S)
        with (
            _users(run.url),
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
    with _slowed(_stage_process(run, SLOW)):
        time.sleep(2 * steady_s)
    parts["as before"] = time.time()
    time.sleep(steady_s)
    parts["lost"] = time.time()
    _kill(run.agents[NAMES.index(LOST)])
    run.wait(lambda report: LOST not in _members(report) and bool(report["rings"]), READY_WITHIN_S)
    parts["recovered"] = time.time()
    time.sleep(steady_s)
    run.join(LOST)
    run.wait(lambda report: LOST in _members(report), READY_WITHIN_S)
    parts["back"] = time.time()
    time.sleep(steady_s)
    return parts


def _members(report: dict[str, Any]) -> set[str]:
    """Names of the nodes that serve."""
    return {stage["node"] for ring in report["rings"] for stage in ring["stages"]}


@contextmanager
def _users(url: str) -> Iterator[None]:
    """Users who ask until the block ends; those whose ring is lost ask again."""
    words = ("bench", "--url", url, "--concurrency", str(USERS), "--requests", "100000")
    lengths = ("--input-tokens", str(PROMPT_TOKENS), "--output-tokens", str(ANSWER_TOKENS))
    with running(MOLINK, *words, *lengths, quiet=True):
        yield


def _stage_process(run: AgentsRun, name: str) -> psutil.Process:
    """The process that computes a node's layers."""
    agent = psutil.Process(run.agents[NAMES.index(name)].pid)
    found = [one for one in agent.children(recursive=True) if "molink.stage" in str(one.cmdline())]
    if not found:
        raise UserError(f"{name} has no stage process")
    return found[0]


@contextmanager
def _slowed(process: psutil.Process) -> Iterator[None]:
    """Let a process run for a part of the time only, until the block ends."""
    done = threading.Event()

    def hold_up() -> None:
        while not done.wait(RUN_S):
            process.send_signal(signal.SIGSTOP)
            time.sleep(STOPPED_S)
            process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=hold_up)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _kill(agent: Running) -> None:
    """End an agent and its stage at once."""
    family = [psutil.Process(agent.pid), *psutil.Process(agent.pid).children(recursive=True)]
    for one in family:
        one.kill()
    psutil.wait_procs(family, timeout=10)


if __name__ == "__main__":
    main()
