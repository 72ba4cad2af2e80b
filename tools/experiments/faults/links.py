"""Lines are cut, jitter and lose connections, a host is suspended: is every answer exact?

    python -m tools.experiments.faults.links --out DIR

Clusters of agents, in homes of their own, whose TCP runs end to end over slow lines that drop,
delay or reset packets. A cut is between the homes of two stages, all else goes on. Root only; one
to two minutes for each trial.
"""

import asyncio
from pathlib import Path
from typing import Any

from tools.experiments.faults.cluster import FaultCluster, Settings
from tools.experiments.faults.trial import Harm, Trial, run_trials, trial_options
from tools.experiments.harness.experiment import experiment
from tools.experiments.harness.processes import suspended

__all__ = ["main"]

CUT_PLACE = 1
"""Of the stage behind whose link the line is cut."""

JITTER_MS = 200
RESET_SHARE = 0.01
TROUBLED_S = 30.0
"""For which lines jitter, or connections are reset."""

SUSPENDED_S = 20.0


def cut(for_s: float, *, there: bool = True, back: bool = True) -> Harm:
    """Let nothing pass from a stage's home to that of the next, or back, or both ways."""

    async def harm(cluster: FaultCluster) -> None:
        ring = await cluster.ring()
        ends = [cluster.address(ring[place]) for place in (CUT_PLACE, CUT_PLACE + 1)]
        if there:
            await cluster.lines.order(f"cut {ends[0]} {ends[1]}")
        if back:
            await cluster.lines.order(f"cut {ends[1]} {ends[0]}")
        await asyncio.sleep(for_s)
        await cluster.lines.order("mend")

    return harm


def home_cut(for_s: float) -> Harm:
    """Let nothing pass from or to the home of one stage."""

    async def harm(cluster: FaultCluster) -> None:
        own = cluster.address((await cluster.ring())[CUT_PLACE])
        for home in cluster.lines.network.homes:
            if home.address != own:
                await cluster.lines.order(f"cut {own} {home.address}")
                await cluster.lines.order(f"cut {home.address} {own}")
        await asyncio.sleep(for_s)
        await cluster.lines.order("mend")

    return harm


async def jitter(cluster: FaultCluster) -> None:
    """Let what leaves any home come up to a fifth of a second later."""
    for home in cluster.lines.network.homes:
        await cluster.lines.order(f"jitter {home.address} {JITTER_MS}")
    await asyncio.sleep(TROUBLED_S)
    await cluster.lines.order("mend")


async def resets(cluster: FaultCluster) -> None:
    """Reset one of a hundred connections that send, ten times a second."""
    await cluster.lines.order(f"reset {RESET_SHARE}")
    await asyncio.sleep(TROUBLED_S)
    await cluster.lines.order("mend")


async def host_suspended(cluster: FaultCluster) -> None:
    """Let agent and stage of a PC stand still."""
    agent = (await cluster.ring())[CUT_PLACE]
    with suspended(cluster.run.family(agent)):
        await asyncio.sleep(SUSPENDED_S)


TRIALS = (
    *(Trial(f"a link cut for {cut_s:g} s", cut(cut_s)) for cut_s in (0.5, 2.0)),
    *(Trial(f"a link cut one way for {cut_s:g} s", cut(cut_s, back=False)) for cut_s in (0.5, 2.0)),
    Trial("a link cut for 10 s", cut(10.0)),
    Trial("a link cut one way for 10 s", cut(10.0, back=False)),
    Trial("a link cut the way back for 10 s", cut(10.0, there=False)),
    *(Trial(f"a PC's line cut for {cut_s:g} s", home_cut(cut_s)) for cut_s in (2.0, 10.0)),
    Trial("200 ms of jitter on all lines for 30 s", jitter),
    Trial("1 % of connections reset, ten times a second for 30 s", resets),
    Trial("a host suspended for 20 s", host_suspended),
    Trial("a host suspended for 20 s, another stands by", host_suspended, spare=1),
)


@experiment
@trial_options
def main(out: Path, only: str, **own: Any) -> None:
    """Trouble the lines of a ring of four in turn."""
    run_trials("links", out, TRIALS, only, Settings(**own))


if __name__ == "__main__":
    main()
