"""How long from an invite to the first token, and where does the time go?

    python -m tools.experiments.control.cluster_start MODEL --json FILE

Agents start at the same moment, each with one command; what they are doing is asked of GET /cluster
ten times a second. Every agent is limited to so little memory that the model takes all of them. All
of it shares this machine: on PCs of their own the agents would not wait for each other's processor.
"""

import asyncio
import json
import statistics
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from molink.config.link_shape import LinkShape
from molink.config.ring_hosts import RingHosts
from molink.errors import UserError
from tools.experiments.harness.agents import AgentsRun, agents_run
from tools.experiments.harness.results import markdown_table
from tools.experiments.homes.home_lines import home_lines
from tools.experiments.homes.home_network import check_available

__all__ = ["main"]

LOOK_S = 0.1
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
    """As typed."""

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


@click.command()
@click.argument("model")
@click.option("--agents", default=3, show_default=True, help="Started at once.")
@click.option("--memory-gb", default="0.012", show_default=True, help="Lent by each.")
@click.option("--relay-only", is_flag=True, help="Nobody may connect to the last agent.")
@click.option("--link", metavar="MBPS:MS", help="Of every home, real TCP; needs root.")
@click.option("--rounds", default=3, show_default=True, help="Of which medians are taken.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    model: str,
    agents: int,
    memory_gb: str,
    relay_only: bool,
    link: str | None,
    rounds: int,
    json_file: Path | None,
) -> None:
    """Measure MODEL's way from an invite to the first token."""
    settings = Settings(model, agents, memory_gb, relay_only, link)
    runs = [asdict(asyncio.run(_round(settings))) for _ in range(rounds)]
    middle = {part: statistics.median(run[part] for run in runs) for part in PARTS}
    click.echo(_table(middle))
    if json_file is not None:
        report = {**asdict(settings), "medians": middle, "runs": runs}
        json_file.write_text(json.dumps(report, indent=2) + "\n")


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
    """Until a ring serves; note when the last node reached each state."""
    while True:
        now_s = time.perf_counter() - started_s
        report = _cluster(run.url)
        nodes = report["nodes"]
        if sum(_is_measured(node) for node in nodes) == agents:
            moments.measured_s = moments.measured_s or now_s
        held = [node for node in nodes if node["layers"]]
        if held:
            moments.loading_s = moments.loading_s or now_s
        if report["unready_reason"] is None:
            moments.serving_s = now_s
            return
        if now_s > GIVE_UP_S:
            raise UserError(f"nothing serves after {GIVE_UP_S:g} s: {report['unready_reason']}")
        time.sleep(LOOK_S)


def _is_measured(node: dict[str, Any]) -> bool:
    return bool(node["profile"] and node["profile"]["steps"])


def _cluster(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/cluster") as answer:
        report: dict[str, Any] = json.load(answer)
    return report


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
