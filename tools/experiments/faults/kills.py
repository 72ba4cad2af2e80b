"""Processes are killed while users read, one or several at once: does every answer end exact?

    python -m tools.experiments.faults.kills --out DIR

Clusters of agents, in homes of their own over slow lines. A PC that is killed stays away;
coordinator and relay are started again, as a service manager would. Root only; one to three minutes
for each trial.
"""

import asyncio
from pathlib import Path
from typing import Any

import click

from molink.tasks import gathered
from tools.experiments.faults.cluster import FaultCluster, Settings
from tools.experiments.faults.trial import Harm, Trial, run_trials, trial_options
from tools.experiments.harness.experiment import experiment

__all__ = ["main"]

RECOVERING_S = 0.4
"""After a first loss: its ring is on its way into the next epoch."""


def stages_killed(*places: int, apart_s: float = 0.0) -> Harm:
    """Kill the stage processes at these places of the ring, one so long after the other."""

    async def harm(cluster: FaultCluster) -> None:
        ring = await cluster.ring()
        stages = [cluster.stage(ring[place]) for place in places]
        for stage in stages:
            stage.kill()
            await asyncio.sleep(apart_s)

    return harm


def pcs_killed(*places: int) -> Harm:
    """Kill agent and stage of these PCs."""

    async def harm(cluster: FaultCluster) -> None:
        ring = await cluster.ring()
        await gathered(asyncio.to_thread(cluster.run.kill, ring[place]) for place in places)

    return harm


async def standby_killed(cluster: FaultCluster) -> None:
    """Kill what holds the layers, and nothing else."""
    cluster.stage(await cluster.standby()).kill()


async def standby_and_covered_killed(cluster: FaultCluster) -> None:
    """Kill the PC that stands by, and the stage whose layers it holds."""
    standby = await cluster.standby()
    report = await cluster.report()
    names = {node["name"]: node for node in report["nodes"]}
    layers = names[cluster.run.names[standby]]["layers"]
    covered = next(
        place
        for place, agent in enumerate(await cluster.ring())
        if names[cluster.run.names[agent]]["layers"] == layers
    )
    await asyncio.to_thread(cluster.run.kill, standby)
    await stages_killed(covered)(cluster)


async def coordinator_killed(cluster: FaultCluster) -> None:
    """Kill it, its broker within, and start it again."""
    await asyncio.to_thread(cluster.run.start_again)


async def relay_killed(cluster: FaultCluster) -> None:
    """Kill the relay, through which the last stage gets all, and start it again."""
    assert cluster.relay is not None, "the trial's settings have one"
    await asyncio.to_thread(cluster.relay.start_again)


def trials(stages: int) -> list[Trial]:
    """All, for a ring of so many stages."""
    last = stages - 1
    return [
        Trial("a stage in the middle", stages_killed(1)),
        Trial("the head", stages_killed(0)),
        Trial("the tail", stages_killed(last)),
        Trial("two neighbours at once", stages_killed(1, 2), fresh=True),
        Trial("head and tail at once", stages_killed(0, last)),
        Trial("the coordinator", coordinator_killed),
        Trial(
            "a stage while another recovers", stages_killed(1, 2, apart_s=RECOVERING_S), fresh=True
        ),
        Trial("all stages at once", stages_killed(*range(stages)), fresh=True),
        Trial("the standby", standby_killed, spare=1),
        Trial("a PC, another stands by", pcs_killed(1), spare=1),
        Trial("the standby and the stage that it covers", standby_and_covered_killed, spare=1),
        Trial("two PCs, another stands by", pcs_killed(1, 2), spare=1),
        Trial("a PC, none stands by", pcs_killed(1)),
        Trial("the relay, of which the tail has need", relay_killed, relayed=True),
        Trial("the head, of a ring with a relay", stages_killed(0), relayed=True),
    ]


@experiment
@trial_options
@click.option("--stages", default=4, show_default=True, help="Of the ring.")
def main(out: Path, only: str, stages: int, **own: Any) -> None:
    """Kill in turn what a cluster is made of."""
    run_trials("kills", out, trials(stages), only, Settings(stages=stages, **own))


if __name__ == "__main__":
    main()
