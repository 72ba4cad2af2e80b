"""Three agents that are stopped in order and started again, one after the other, ten times."""

import asyncio
import time
from typing import Any

from tools.experiments.guard.cluster import GuardedCluster
from tools.experiments.guard.trial_rows.cluster import (
    READY_WITHIN_S,
    Member,
    events_of,
    names_serving,
    started,
    watching,
)
from tools.experiments.guard.trial_rows.trial import Outcome, Trial
from tools.experiments.harness.agents import Report

__all__ = ["RESTARTS"]

NAMES = ("anna", "ben", "carl")
STOPS = 10
SERVICE_GONE_MAX_S = 15.0
SETTLED_S = 20.0
"""Of service before the next one is stopped."""


async def restarts() -> Outcome:
    """Any two of them suffice; users are served for a while between two stops."""
    stops = []
    members = [Member(name) for name in NAMES]
    async with started(members, "--split", "even") as cluster:
        await cluster.until(_all_here, READY_WITHIN_S)
        await asyncio.sleep(SETTLED_S)
        async with watching(cluster) as watched:
            for number in range(STOPS):
                stops.append(await _stopped(cluster, number % len(NAMES)))
        events = [one["kind"] for one in events_of(cluster)]
    longest_s = max(one["silence_s"] for one in stops)
    broken = sum(one["broken_off"] for one in stops)
    losses = sum(one["served"] for one in stops)
    rested = ", ".join(watched.rested) or "nobody"
    measured = f"{len(stops)} stops, {losses} of a PC that served: rested {rested}; "
    measured += f"longest time in which a user saw nothing {longest_s:.1f} s; broken off {broken}"
    reached = not watched.rested and longest_s <= SERVICE_GONE_MAX_S
    found = {"stops": stops, "rested": watched.rested, "rings_ended": events.count("ring_ended")}
    return Outcome(measured, reached, found)


def _all_here(report: Report) -> bool:
    """Whether users are served, and nobody is on the way to it."""
    settled = all(node["state"] in ("serving", "standby") for node in report["nodes"])
    return bool(names_serving(report)) and len(report["nodes"]) == len(NAMES) and settled


async def _stopped(cluster: GuardedCluster, place: int) -> dict[str, Any]:
    """What users saw from a stop until all are there and users are served again."""
    await cluster.window()
    served = NAMES[place] in names_serving(await cluster.report())
    began_s = time.monotonic()
    await asyncio.to_thread(cluster.run.stop, place)
    ended_s = time.monotonic() - began_s
    await asyncio.to_thread(cluster.run.run_again, place)
    back_s = await cluster.until(_all_here, READY_WITHIN_S)
    await asyncio.sleep(SETTLED_S)
    seen = await cluster.window()
    return {
        "agent": NAMES[place],
        "served": served,
        "ended_s": ended_s,
        "all_back_s": ended_s + back_s,
        "silence_s": seen.silence_s,
        "broken_off": sum(seen.failures.values()),
        "failures": seen.failures,
        "refused": seen.refused,
    }


RESTARTS = Trial(
    "restarts",
    "`up` with three agents, each stopped in order and started again, ten times",
    "rests after the second; 99 s without service",
    "no rest, at most 15 s without service",
    restarts,
)
