"""Members that lie about their progress, their speed, their queue or their sketches."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

import aiohttp

from molink.errors import UserError
from tools.experiments.guard.cluster import GuardedCluster
from tools.experiments.guard.trial_rows.cluster import (
    READY_WITHIN_S,
    WHOLE,
    Member,
    Watched,
    ledger,
    names_serving,
    started,
    watching,
)
from tools.experiments.guard.trial_rows.trial import Outcome, Trial
from tools.experiments.harness.agents import Report

__all__ = ["LIARS"]

LIAR = "mallory"
PLENTY = "0.537"
"""Memory, in GB, with which a PC does best alone."""

CREEPER = ("tools.experiments.guard.trial_rows.creeping_agent",)

CREEP_MAX_S, SLOW_MAX_S, LIES_MAX_S = 60.0, 90.0, 60.0
SLOW_WATCHED_S, FOUND_WITHIN_S = 300.0, 240.0
LYING_REQUESTS, ASKED_EVERY_S = 30, 2.0
RINGS_MAX = 3


# -- a download that creeps ------------------------------------------------------------------------


async def creeping() -> Outcome:
    """Two PCs suffice; a third claims to be faster than both, and its download creeps."""
    members = [Member("anna"), Member("ben"), Member(LIAR, WHOLE, program=CREEPER, claims=True)]
    async with started(members) as cluster:
        await cluster.until(_is_asked_of_liar, READY_WITHIN_S)
        async with watching(cluster) as watched:
            try:
                took_s = await cluster.until(lambda report: bool(names_serving(report)), 180.0)
            except UserError:
                return Outcome("nobody served within 180 s", reached=False)
            serving = names_serving(await cluster.report())
        found = {"took_s": took_s, "serving": serving, "rested": watched.rested}
        text = f"{took_s:.0f} s after it was told to load, {' and '.join(serving)} served"
        is_reached = took_s <= CREEP_MAX_S and LIAR not in serving
        return Outcome(text, is_reached, found | {"events": ledger(cluster)})


def _is_asked_of_liar(report: Report) -> bool:
    return any(node["name"] == LIAR and node["state"] == "loading" for node in report["nodes"])


# -- a stage that is slow --------------------------------------------------------------------------


async def slow() -> Outcome:
    """Any two of three suffice; the middle one is slow and says that it is fast."""
    members = [Member("anna"), Member(LIAR, stage="slow"), Member("carl")]
    async with started(members, "--split", "even") as cluster:
        await cluster.until(lambda report: LIAR in names_serving(report), READY_WITHIN_S)
        async with watching(cluster) as watched:
            await _until_out(watched)
        events = ledger(cluster)
    return judged_slow(watched.rings, watched.rested, events)


def judged_slow(
    rings: Sequence[tuple[float, tuple[str, ...]]], rested: dict[str, str], events: list[str]
) -> Outcome:
    """What became of the liar, by the rings that served, who rested, and the ledger."""
    served = [names for _, names in rings if names]
    with_liar = sum(LIAR in names for names in served)
    first_s = _first(events, " ring_serving: ")
    planned_s = [
        at for at in _times(events, " is planned: ") if first_s is not None and at > first_s
    ]
    is_out = LIAR in rested and LIAR not in served[-1]
    found = {"rings": rings, "rested": rested, "events": events}
    if first_s is None or not planned_s:
        return Outcome(
            f"not planned anew within {SLOW_WATCHED_S:.0f} s", reached=False, found=found
        )
    text = f"planned anew after {planned_s[0] - first_s:.0f} s; served in {with_liar} ring"
    text += f"{'s' * (with_liar > 1)}, rested: {', '.join(rested) or 'nobody'}"
    is_soon = planned_s[0] - first_s <= SLOW_MAX_S
    return Outcome(text, is_soon and is_out and with_liar < RINGS_MAX, found)


def _times(events: list[str], what: str) -> list[float]:
    return [float(one.split()[0]) for one in events if what in one]


def _first(events: list[str], what: str) -> float | None:
    return min(_times(events, what), default=None)


async def _until_out(watched: Watched) -> None:
    """Until the liar rests and others serve for a minute, or for five minutes."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < SLOW_WATCHED_S:
        await asyncio.sleep(1.0)
        at_s, serving = watched.rings[-1] if watched.rings else (0.0, ())
        stood_s = time.monotonic() - began_s - at_s
        if serving and LIAR not in serving and LIAR in watched.rested and stood_s > SLOW_MAX_S:
            return


# -- a head that lets requests lie -----------------------------------------------------------------


async def lying() -> Outcome:
    """The head of a ring of three begins two requests of three."""
    members = [Member(LIAR, stage="lying_head"), Member("ben"), Member("carl")]
    async with started(members, "--split", "even") as cluster:
        await cluster.until(lambda report: LIAR in names_serving(report), READY_WITHIN_S)
        async with watching(cluster) as watched, asyncio.TaskGroup() as group:
            asked = []
            for number in range(LYING_REQUESTS):
                asked.append(group.create_task(_ask(cluster, number)))
                await asyncio.sleep(ASKED_EVERY_S)
        events = ledger(cluster)
    took_s, kinds = [one.result()[0] for one in asked], [one.result()[1] for one in asked]
    errors = [kind for kind in kinds if kind != "200"]
    found = {"took_s": took_s, "kinds": kinds, "rested": watched.rested, "events": events}
    text = f"{len(asked)} requests: the longest ended after {max(took_s):.0f} s"
    text += (
        f", {len(errors)} of them with an error; rested: {', '.join(watched.rested) or 'nobody'}"
    )
    return Outcome(text, max(took_s) <= LIES_MAX_S, found)


async def _ask(cluster: GuardedCluster, number: int) -> tuple[float, str]:
    """How long one request took, and its status."""
    began_s = time.monotonic()
    body = {"prompt_token_ids": [5 + number, 9, 13], "max_tokens": 20, "ignore_eos": True}
    timeout = aiohttp.ClientTimeout(total=300.0)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(f"{cluster.run.url}/generate", json=body) as answer,
        ):
            await answer.read()
            kind = str(answer.status)
    except (TimeoutError, aiohttp.ClientError) as error:
        kind = type(error).__name__
    return time.monotonic() - began_s, kind


# -- an audit without a sketch ---------------------------------------------------------------------


async def without_sketches() -> Outcome:
    """Three rings of one PC each; every request is audited; one reports no sketches."""
    members = [Member("anna", PLENTY), Member("ben", PLENTY)]
    members.append(Member(LIAR, PLENTY, "without_sketches"))
    async with started(members, "--audit-share", "1") as cluster:
        await cluster.until(lambda report: len(report["rings"]) == 3, READY_WITHIN_S)
        began_s = time.monotonic()
        with suppress(UserError):
            await cluster.until(_has_quarantined, FOUND_WITHIN_S)
        took_s = time.monotonic() - began_s
        report, events = await cluster.report(), ledger(cluster)
    names = [node["name"] for node in report["nodes"] if node["quarantined"]]
    text = f"{', '.join(names) or 'nobody'} quarantined after {took_s:.0f} s of users' requests"
    found = {"quarantined": names, "audits": report["audits"], "events": events}
    return Outcome(text, names == [LIAR], found)


def _has_quarantined(report: Report) -> bool:
    return any(node["quarantined"] for node in report["nodes"])


LIARS = (
    Trial(
        "creeping",
        "a download that creeps, beside two PCs that suffice",
        "an hour",
        "60 s",
        creeping,
    ),
    Trial(
        "slow",
        "a stage 100 times slower that says 2 ms",
        "for ever",
        "planned anew in 90 s, rests in the third ring",
        slow,
    ),
    Trial(
        "lying-head",
        "a head that lets one request in three lie",
        "for ever",
        "error or answer in 60 s",
        lying,
    ),
    Trial("no-sketches", "an audit without a sketch", "for ever", "quarantined", without_sketches),
)
