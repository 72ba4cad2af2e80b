"""What do TLS and keys cost: time to join, processor time of an agent, time to first token?

    python -m tools.experiments.guard.protection_cost --out DIR

There is no switch that turns TLS off. So this checkout, asked with a key, is compared with one of a
commit from before both (`git worktree add TREE COMMIT`, then `--before TREE`), all else alike: one
agent that holds the whole demo model. Both run at once and are asked by turns.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import psutil

from molink.errors import UserError
from tools.experiments.guard.users import percentile
from tools.experiments.harness.experiment import (
    Figures,
    experiment,
    markdown_table,
    median_figures,
    milliseconds,
    rounds_option,
    show,
    write_report,
)
from tools.experiments.harness.processes import MOLINK, Running, cpu_s, running

__all__ = ["main"]

HERE = Path(__file__).parents[3]
SERVES_WITHIN_S = 120.0
SETTLE_S = 5.0
QUESTIONS = 100
MEMORY_GB = "0.0322"


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
    trees = {"with": Checkout(HERE, True), "without": Checkout(before.resolve(), False)}
    runs: dict[str, list[Figures]] = {name: [] for name in trees}
    for number in range(rounds):
        order = sorted(trees, reverse=bool(number % 2))
        for name, figures in _round({name: trees[name] for name in order}, watch_s).items():
            runs[name].append(figures)
            click.echo(f"round {number + 1}, {name}: {figures}", err=True)
    middle = {name: median_figures(rows) for name, rows in runs.items()}
    write_report(out, "protection_cost", {"medians": middle, "runs": runs}, "guard-protection-cost")
    show(table(middle))


def _round(trees: dict[str, Checkout], watch_s: float) -> dict[str, Figures]:
    """Both at once, asked by turns: what else the machine does falls on both alike."""
    with ExitStack() as stack:
        asking = {name: stack.enter_context(_started(tree)) for name, tree in trees.items()}
        for one in asking.values():
            one.until_serving()
        time.sleep(SETTLE_S)
        for _ in range(QUESTIONS):
            for one in asking.values():
                one.ask()
        used_s = {name: cpu_s(one.agent) for name, one in asking.items()}
        time.sleep(watch_s)
        return {
            name: one.figures() | {"agent_cpu_share": (cpu_s(one.agent) - used_s[name]) / watch_s}
            for name, one in asking.items()
        }


@contextmanager
def _started(checkout: Checkout) -> "Iterator[_Asking]":
    with tempfile.TemporaryDirectory(prefix="molink-bench-") as folder, ExitStack() as stack:
        data = ("--data-dir", f"{folder}/coordinator")
        names = ["port", "broker-port", "relay-port"] + ["agents-port"] * checkout.guarded
        ports = [word for name in names for word in (f"--{name}", "0")]
        up = checkout.started("up", "demo", "--host", "127.0.0.1", *ports, *data)
        coordinator = stack.enter_context(up)
        invite = coordinator.line("molink agent join")[1].split()[-1]
        url = coordinator.line("listening")[1].split()[-1]
        key = checkout.printed("key", "create", "--admin", *data) if checkout.guarded else ""
        place = ("--data-dir", f"{folder}/anna", "--listen", "127.0.0.1", "--no-map-ports")
        limits = ("--device", "cpu", "--threads", "1", "--memory-gb", MEMORY_GB)
        joining = checkout.started("agent", "join", invite, "--name", "anna", *place, *limits)
        agent = stack.enter_context(joining)
        joined_s = agent.line("joined")[0] - agent.started_s
        secret = next((one for one in key.split() if one.startswith("molink-")), "")
        yield _Asking(url, secret, psutil.Process(agent.pid), joined_s)


@dataclass(slots=True)
class _Asking:
    """User of one cluster, who asks with a key where there is one."""

    url: str
    key: str
    agent: psutil.Process
    joined_s: float
    times_s: list[float] = field(default_factory=list)

    def until_serving(self) -> None:
        """Wait until it serves. Raises UserError when it does not."""
        give_up_s = time.perf_counter() + SERVES_WITHIN_S
        while time.perf_counter() < give_up_s:
            try:
                self.ask()
            except OSError:
                time.sleep(0.2)
            else:
                self.times_s.clear()
                return
        raise UserError(f"nothing served within {SERVES_WITHIN_S:g} s")

    def figures(self) -> Figures:
        """How long it took to join, and to the first token."""
        return {
            "joined_s": self.joined_s,
            "ttft_p50_s": percentile(self.times_s, 0.5),
            "ttft_p95_s": percentile(self.times_s, 0.95),
        }

    def ask(self) -> None:
        """Ask for one token. Raises OSError."""
        body = json.dumps({"prompt_token_ids": [5, 6, 7, 8] * 4, "max_tokens": 1}).encode()
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(f"{self.url}/generate", body, headers)
        began_s = time.perf_counter()
        urllib.request.urlopen(request, timeout=30.0).read()
        self.times_s.append(time.perf_counter() - began_s)


def table(middle: dict[str, Figures]) -> str:
    """A row for each checkout, and how they compare."""
    head = ("", "until joined, s", "TTFT p50, ms", "p95, ms", "CPU of the agent")
    rows = [
        [
            name,
            f"{one['joined_s']:.2f}",
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
