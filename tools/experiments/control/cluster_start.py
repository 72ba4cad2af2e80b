"""How long from an invite to the first token, and where does the time go?

    python -m tools.experiments.control.cluster_start MODEL --out DIR

Agents start at the same moment, each with one command; what they are doing is asked of GET /cluster
ten times a second. Every agent is limited to so little memory that the model takes all of them. All
of it shares this machine: on PCs of their own the agents would not wait for each other's processor.
"""

import asyncio
import json
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from molink.config.link_schedule import LinkShape
from molink.errors import UserError
from tools.experiments.harness.agents import AgentsRun, agents_run, is_timed
from tools.experiments.harness.experiment import (
    Condition,
    Measured,
    experiment,
    figures_of,
    in_turn,
    markdown_table,
    medians,
    rounds_option,
    show,
    write_report,
)
from tools.experiments.harness.hosts import RingHosts
from tools.experiments.homes.home_lines import home_lines
from tools.experiments.homes.home_network import check_available

__all__ = ["main"]

GIVE_UP_S = 180.0

QUEUE_BYTES = 1024 * 1024
"""Of each home's upload: what home routers have."""

PARTS = {
    "joined_s": "joined",
    "measured_s": "a layer timed",
    "loading_s": "placed",
    "serving_s": "weights fetched, layers loaded, links open",
    "first_token_s": "first token",
}
"""Moments, each counted from the start of the agents, the last agent's where each has its own."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options as typed."""

    model: str
    agents: int
    memory_gb: str
    relay_only: bool
    link: str | None


@dataclass(slots=True)
class Moments:
    """When all agents had done what, in seconds since they were started."""

    joined_s: float = 0.0
    measured_s: float = 0.0
    loading_s: float = 0.0
    serving_s: float = 0.0
    first_token_s: float = 0.0


@experiment
@click.argument("model")
@click.option("--agents", default=3, show_default=True, help="Started at once.")
@click.option("--memory-gb", default="0.0129", show_default=True, help="Lent by each.")
@click.option("--relay-only", is_flag=True, help="Nobody may connect to the last agent.")
@click.option("--link", metavar="MBPS:MS", help="Of every home, real TCP; needs root.")
@rounds_option()
def main(out: Path, rounds: int, **own: Any) -> None:
    """Measure MODEL's way from an invite to the first token."""
    settings = Settings(**own)

    async def measure(condition: Condition, number: int) -> Measured:
        return Measured(asdict(await _round(settings)))

    name = "cluster_start_relay" if settings.relay_only else "cluster_start"
    runs = in_turn([Condition(name)], rounds, measure)
    middle = medians(runs)[name]
    show(_table(middle))
    report = {**own, "medians": middle, "runs": figures_of(runs)[name]}
    write_report(out, "cluster_start", report, name)


async def _round(settings: Settings) -> Moments:
    if settings.link is None:
        return await asyncio.to_thread(_started, settings, None)
    check_available()
    plain = LinkShape.parse(settings.link)
    shape = LinkShape(plain.rate_mbps, plain.one_way_ms, QUEUE_BYTES)
    async with home_lines(shape, settings.agents, "cubic") as lines:
        return await asyncio.to_thread(_started, settings, lines.hosts)


def _started(settings: Settings, hosts: RingHosts | None) -> Moments:
    agents = settings.agents
    with agents_run(settings.model, ("--min-nodes", str(agents)), hosts) as run:
        started_s = time.perf_counter()
        for number in range(agents):
            closed = ("--relay-only",) if settings.relay_only and number == agents - 1 else ()
            limits = ("--memory-gb", settings.memory_gb, "--threads", "1")
            run.join(f"pc{number}", "--device", "cpu", *limits, *closed)
        moments = Moments()
        moments.joined_s = max(agent.line("joined")[0] for agent in run.agents) - started_s
        _watch(run, moments, started_s, agents)
        _ask(run.url)
        moments.first_token_s = time.perf_counter() - started_s
        return moments


def _watch(run: AgentsRun, moments: Moments, started_s: float, agents: int) -> None:
    """Wait until a ring serves; note when the last node reached each state."""

    def serves(report: dict[str, Any]) -> bool:
        now_s, nodes = time.perf_counter() - started_s, report["nodes"]
        if sum(is_timed(node) for node in nodes) == agents:
            moments.measured_s = moments.measured_s or now_s
        if any(node["layers"] for node in nodes):
            moments.loading_s = moments.loading_s or now_s
        moments.serving_s = now_s
        return report["unready_reason"] is None

    run.wait(serves, GIVE_UP_S)


def _ask(url: str) -> None:
    body = json.dumps({"prompt_token_ids": [1, 2, 3], "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as error:
        raise UserError(f"the first request failed: {error.read()[:200]!r}") from None


def _table(middle: dict[str, float]) -> str:
    rows, before = [], 0.0
    for part, meaning in PARTS.items():
        rows.append([meaning, f"{middle[part]:.1f}", f"{middle[part] - before:.1f}"])
        before = middle[part]
    return markdown_table(["until all are", "s since the start", "s of it"], rows)


if __name__ == "__main__":
    main()
