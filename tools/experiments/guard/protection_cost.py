"""What do TLS and keys cost: time to join, processor time of an agent, time to first token?

    python -m tools.experiments.guard.protection_cost --out DIR

There is no switch that turns TLS off. So this checkout, asked with a key, is compared in turn with
`--before TREE`, a checkout of a commit from before both (`git worktree add TREE COMMIT`), all else
alike: one agent that holds the whole demo model.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil

from molink.errors import UserError
from tools.experiments.guard.users import percentile
from tools.experiments.harness.experiment import (
    Condition,
    Measured,
    experiment,
    figures_of,
    in_turn,
    markdown_table,
    medians,
    milliseconds,
    rounds_option,
    show,
    write_report,
)
from tools.experiments.harness.processes import MOLINK, Running, cpu_s, running

__all__ = ["main"]

HERE = Path(__file__).parents[3]
WITH, WITHOUT = Condition("with"), Condition("without")
SERVES_WITHIN_S = 120.0
SETTLE_S = 5.0
QUESTIONS = 40
MEMORY_GB = "0.03"


@dataclass(frozen=True, slots=True)
class Checkout:
    """A tree of MoLink whose commands are run."""

    tree: Path
    guarded: bool
    """Whether it knows keys, and a port of its own for agents."""

    def environment(self) -> dict[str, str]:
        """In which Python finds this tree first."""
        parts = [self.tree, *(self.tree / one for one in ("agent", "scheduler", "sim"))]
        return {"PYTHONPATH": os.pathsep.join(map(str, parts)), "PYTHONSAFEPATH": "1"}

    def printed(self, *words: str) -> str:
        """What a command of this tree prints."""
        return subprocess.run(
            [sys.executable, "-m", MOLINK, *words],
            capture_output=True,
            check=True,
            text=True,
            env={**os.environ, **self.environment()},
        ).stdout

    @contextmanager
    def started(self, *words: str) -> Iterator[Running]:
        """A command of this tree that goes on."""
        with running(MOLINK, *words, environment=self.environment(), quiet=True) as process:
            yield process


@experiment
@click.option(
    "--before",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A checkout from before TLS and keys.",
)
@click.option("--watch-s", default=20.0, show_default=True, help="How long CPU is measured.")
@rounds_option()
def main(out: Path, before: Path, watch_s: float, rounds: int) -> None:
    """Compare this checkout with one that has neither TLS nor keys."""
    trees = {WITH.name: Checkout(HERE, True), WITHOUT.name: Checkout(before.resolve(), False)}

    async def measure(condition: Condition, number: int) -> Measured:
        figures = await asyncio.to_thread(_round, trees[condition.name], watch_s)
        return Measured(figures)

    runs = in_turn([WITH, WITHOUT], rounds, measure)
    middle = medians(runs)
    write_report(
        out,
        "protection_cost",
        {"medians": middle, "runs": figures_of(runs)},
        "guard-protection-cost",
    )
    show(_table(middle))


def _round(checkout: Checkout, watch_s: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="molink-bench-") as folder, ExitStack() as stack:
        data = ("--data-dir", f"{folder}/coordinator")
        names = (
            "port",
            "broker-port",
            "relay-port",
            *(["agents-port"] if checkout.guarded else []),
        )
        ports = [word for name in names for word in (f"--{name}", "0")]
        up = checkout.started("up", "demo", "--host", "127.0.0.1", *ports, *data)
        coordinator = stack.enter_context(up)
        invite = coordinator.line("molink agent join")[1].split()[-1]
        url = coordinator.line("listening")[1].split()[-1]
        key = checkout.printed("key", "create", "--admin", *data) if checkout.guarded else ""
        asking = _Asking(url, next((one for one in key.split() if one.startswith("molink-")), ""))
        place = ("--data-dir", f"{folder}/anna", "--listen", "127.0.0.1", "--no-map-ports")
        limits = ("--device", "cpu", "--threads", "1", "--memory-gb", MEMORY_GB)
        joining = checkout.started("agent", "join", invite, "--name", "anna", *place, *limits)
        agent = stack.enter_context(joining)
        joined_s = agent.line("joined")[0] - agent.started_s
        serving_s = asking.until_serving() - agent.started_s
        time.sleep(SETTLE_S)
        return {"joined_s": joined_s, "serving_s": serving_s} | asking.figures(agent, watch_s)


@dataclass(frozen=True, slots=True)
class _Asking:
    """User who asks with a key, where there is one."""

    url: str
    key: str

    def until_serving(self) -> float:
        """When it served, on the clock of `time.perf_counter`. Raises UserError."""
        give_up_s = time.perf_counter() + SERVES_WITHIN_S
        while time.perf_counter() < give_up_s:
            try:
                self._ask()
            except OSError:
                time.sleep(0.2)
            else:
                return time.perf_counter()
        raise UserError(f"nothing served within {SERVES_WITHIN_S:g} s")

    def figures(self, agent: Running, watch_s: float) -> dict[str, float]:
        """Times to first token, and what the agent itself costs while it serves."""
        process = psutil.Process(agent.pid)
        times_s = []
        for _ in range(QUESTIONS):
            began_s = time.perf_counter()
            self._ask()
            times_s.append(time.perf_counter() - began_s)
        used_s, began_s = cpu_s(process), time.perf_counter()
        time.sleep(watch_s)
        share = (cpu_s(process) - used_s) / (time.perf_counter() - began_s)
        return {
            "ttft_p50_s": percentile(times_s, 0.5),
            "ttft_p95_s": percentile(times_s, 0.95),
            "agent_cpu_share": share,
        }

    def _ask(self) -> None:
        body = json.dumps({"prompt_token_ids": [5, 6, 7, 8] * 4, "max_tokens": 1}).encode()
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(f"{self.url}/generate", body, headers)
        urllib.request.urlopen(request, timeout=30.0).read()


def _table(middle: dict[str, dict[str, Any]]) -> str:
    head = ("", "until joined, s", "until served, s", "TTFT p50, ms", "p95, ms", "CPU of the agent")
    rows = [
        [
            name,
            f"{one['joined_s']:.2f}",
            f"{one['serving_s']:.1f}",
            milliseconds(one["ttft_p50_s"]),
            milliseconds(one["ttft_p95_s"]),
            f"{one['agent_cpu_share']:.2%}",
        ]
        for name, one in middle.items()
    ]
    ratios = [f"{middle['with'][key] / middle['without'][key]:.2f}" for key in middle["with"]]
    rows.append(["ratio", *ratios])
    return markdown_table(head, rows)


if __name__ == "__main__":
    main()
