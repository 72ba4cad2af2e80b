"""One ring's run of an audit: tokens are computed as a prompt, and what all stages report of them.

For the ring it is a request like any other: no stage can tell it from a user's. What stages report
comes with their heartbeats, so it is collected while the prompt is on its way.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing

from molink.coordinator.members.ring import AgentStage
from molink.coordinator.requests.audit_queue import AnsweredRequest
from molink.coordinator.requests.intake import ServingRing
from molink.errors import RingError
from molink.serving.service import GenerationRequest
from molink.serving.timeline import RequestTimeline
from molink.tasks import background_tasks
from molink_scheduler.audit import AuditedRing, AuditedStage
from molink_scheduler.request import SamplingParams

__all__ = ["REPORTS_WITHIN_S", "rerun"]

REPORTS_WITHIN_S = 10.0
"""After the tail's answer: stages report once a second."""

DTYPES = ("bfloat16", "float16", "float32")
"""The coarsest first."""

Reports = dict[tuple[str, int], tuple[int, tuple[float, ...]]]
"""Tokens and numbers, by node and the ring's number of the request."""


async def rerun(ring: ServingRing, answered: AnsweredRequest, *, has_experts: bool) -> AuditedRing:
    """What a ring's stages report of a request's tokens; `has_experts`: its model has. Raises
    RingError when the ring does not answer, TimeoutError when a stage does not report them."""
    client, reports, tokens = ring.client, Reports(), answered.tokens
    stages = client.ring.stages
    timeline = RequestTimeline(client.card.name, len(tokens), 1)
    timeline.submitted(ring.number, ring.stages, time.monotonic())
    sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    salt = answered.cache_salt
    request = GenerationRequest(tokens, sampling, cache_salt=salt, timeline=timeline)
    logprobs: tuple[float, ...] = ()
    came = asyncio.Event()
    async with background_tasks() as tasks:
        for stage in stages:
            tasks.create_task(_collect(stage, reports, came))
        async with aclosing(client.generate(request)) as events:
            async for event in events:
                logprobs += tuple(score.logprob for score in event.prompt_logprobs)
        number = timeline.attempts[-1].number
        async with asyncio.timeout(REPORTS_WITHIN_S):
            while not all((stage.node.node_id, number) in reports for stage in stages):
                came.clear()
                await came.wait()
    told = [_audited(stage, reports[stage.node.node_id, number], len(tokens)) for stage in stages]
    return AuditedRing(
        ring.number,
        len(tokens),
        tuple(told),
        logprobs,
        _dtype(stages),
        client.codec.codec,
        _kv_dtype(stages),
        has_experts,
    )


async def _collect(stage: AgentStage, reports: Reports, came: asyncio.Event) -> None:
    """Note what a stage reports, until cancelled."""
    while True:
        health = stage.health
        for number, tokens, numbers in health.recent_sketches if health is not None else ():
            reports[stage.node.node_id, number] = tokens, numbers
        came.set()
        await stage.node.changed.wait()


def _audited(stage: AgentStage, report: tuple[int, tuple[float, ...]], tokens: int) -> AuditedStage:
    """Raises RingError for what is no report of these tokens: none of another length comes from
    who has computed them, unless they were computed anew meanwhile."""
    told = AuditedStage(stage.node.node_id, stage.node.pc, stage.name, stage.layers, report[1])
    if report[0] != tokens or not told.is_whole:
        raise RingError(f"{stage.name} has not reported what was audited.")
    return told


def _dtype(stages: Sequence[AgentStage]) -> str:
    found = {stage.loaded.dtype for stage in stages if stage.loaded is not None}
    return min(found, key=lambda one: DTYPES.index(one) if one in DTYPES else 0)


def _kv_dtype(stages: Sequence[AgentStage]) -> str:
    found = {stage.loaded.kv_dtype for stage in stages if stage.loaded is not None}
    return "int8" if "int8" in found else "auto"
