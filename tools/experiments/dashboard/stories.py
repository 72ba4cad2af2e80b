"""What the recordings of the documents have in common: PCs, users who ask, a PC that is slowed."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from molink.errors import UserError
from tools.experiments.harness.agents import AgentsRun
from tools.experiments.harness.processes import MOLINK, running

__all__ = ["USERS", "members", "slowed", "stage_process", "users"]

USERS = 3
PROMPT_TOKENS, ANSWER_TOKENS = 120, 60


def members(report: dict[str, Any]) -> set[str]:
    """Names of the nodes that serve."""
    return {stage["node"] for ring in report["rings"] for stage in ring["stages"]}


@contextmanager
def users(url: str) -> Iterator[None]:
    """Users who ask until the block ends; those whose ring is lost ask again."""
    words = ("bench", "--url", url, "--concurrency", str(USERS), "--requests", "100000")
    lengths = ("--input-tokens", str(PROMPT_TOKENS), "--output-tokens", str(ANSWER_TOKENS))
    with running(MOLINK, *words, *lengths, quiet=True):
        yield


def stage_process(run: AgentsRun, agent: int) -> psutil.Process:
    """The process that computes the layers of one of the agents."""
    children = psutil.Process(run.agents[agent].pid).children(recursive=True)
    found = [one for one in children if "molink.stage.stage_process" in str(one.cmdline())]
    if not found:
        raise UserError(f"agent {agent} has no stage process")
    return found[0]


@contextmanager
def slowed(process: psutil.Process, run_s: float, stopped_s: float) -> Iterator[None]:
    """Let a process run for a part of the time only, until the block ends."""
    done = threading.Event()

    def hold_up() -> None:
        while not done.wait(run_s):
            process.send_signal(signal.SIGSTOP)
            time.sleep(stopped_s)
            process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=hold_up)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
