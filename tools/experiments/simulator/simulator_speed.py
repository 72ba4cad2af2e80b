"""How much processor time does a simulated token cost, and what would a thousand nodes take?

    python -m tools.experiments.simulator.simulator_speed --out DIR

Runs rings of ten RTX 4090 with Qwen-7B on ideal links, on one core: sixty users on one ring in five
micro-batches (*crowd*), and ten rings of which each has three requests a minute, for less than a
minute (*calm*). A thousand nodes are a hundred such rings; the time that they would take is the
time per token, times the tokens that ten minutes of 100 requests/s, or half an hour of 10,000 users
with a request each, have. A loop of additions tells how quick the machine was meanwhile.
"""

import resource
from collections.abc import Callable
from pathlib import Path

import click

from molink_sim.even_ring import even_ring
from molink_sim.scenario import LinkSpec, RequestArrival, Scenario
from molink_sim.simulate import World
from molink_sim.systems import system_named
from molink_sim.workload import generate
from tools.experiments.harness.experiment import (
    Figures,
    experiment,
    markdown_table,
    show,
    write_report,
)

__all__ = ["main"]

OUTPUT_TOKENS = 232
"""Mean answer of the load that ships."""

TOKENS = {"crowd": 100 * 600 * OUTPUT_TOKENS, "calm": 10_000 * OUTPUT_TOKENS}
"""Tokens of a thousand nodes: ten minutes of 100 requests/s, and half an hour of 10,000 users."""

ADDITIONS = 2_000_000


def _scenario(name: str, users: int, calm_s: float) -> Scenario:
    ring = even_ring("qwen-7b", "rtx4090", 10, LinkSpec(100, 0.03))
    if name == "crowd":
        arrivals = [RequestArrival(0.15 * number, 300, 120) for number in range(users)]
        system = system_named("molink", link_model="ideal", micro_batches=5)
        return Scenario((ring,), arrivals, system, duration_s=0.15 * users)
    system = system_named("molink", link_model="ideal")
    return Scenario((ring,) * 10, generate(0.555, calm_s, 0), system, duration_s=calm_s)


@experiment
@click.option("--rounds", default=3, show_default=True, help="Runs of each, in turn.")
@click.option("--users", default=60, show_default=True, help="Users of the crowd.")
@click.option("--calm-s", default=40.0, show_default=True, help="How long requests come calmly.")
def main(out: Path, rounds: int, users: int, calm_s: float) -> None:
    """Print processor time per token, and for a thousand nodes, of each load."""
    found: dict[str, list[Figures]] = {name: [] for name in TOKENS}
    for _ in range(rounds):
        for name, measured in found.items():
            measured.append(_measured(name, users, calm_s))
    show(_table(found))
    write_report(out, "simulator_speed", {"rounds": found})


def _measured(name: str, users: int, calm_s: float) -> Figures:
    world = World(_scenario(name, users, calm_s))
    seconds = _user_s(world.run)
    tokens = sum(len(one.token_times_s) for one in world.coordinator.requests)
    return {
        "tokens": tokens,
        "events": world.clock.events,
        "us_per_token": round(1e6 * seconds / tokens, 1),
        "thousand_nodes_s": round(TOKENS[name] * seconds / tokens),
        "additions_s": round(_user_s(_add), 3),
    }


def _user_s(action: Callable[[], object]) -> float:
    began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    action()
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime - began


def _add() -> int:
    total = 0
    for number in range(ADDITIONS):
        total += number
    return total


def _table(found: dict[str, list[Figures]]) -> str:
    head = ("load", "tokens", "events", "us per token", "a thousand nodes, s", "additions, s")
    rows = [[name, *map(str, one.values())] for name, rounds in found.items() for one in rounds]
    return markdown_table(head, rows)


if __name__ == "__main__":
    main()
