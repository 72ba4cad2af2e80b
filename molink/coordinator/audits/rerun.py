"""One ring's run of an audit: tokens are computed as a prompt, and what all stages report of them.

For the ring it is a request like any other: no stage can tell it from a user's. What stages report
comes with their heartbeats, so it is collected while the prompt is on its way.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress

from molink.coordinator.requests.audit_queue import AnsweredRequest
from molink.coordinator.requests.serving_ring import ServingRing
from molink.coordinator.ring.agent_stage import AgentStage
from molink.errors import RingError
from molink.serving.service import GenerationRequest
from molink.serving.timeline import RequestTimeline
from molink.stage_protocol.health import SKETCH_NUMBERS_MAX, SKETCHES_MAX
from molink.tasks import background_tasks
from molink_scheduler.audit import NUMBERS, AuditedRing, AuditedStage
from molink_scheduler.request import SamplingParams

REPORTS_WITHIN_S = 10.0
"""Seconds for reports after the tail's answer: stages report once a second."""

DTYPES = ("bfloat16", "float16", "float32")
"""The coarsest first."""

NOTHING: tuple[int, tuple[float, ...]] = (0, ())
"""Report of a stage that has sent none."""

Reports = dict[tuple[str, int], tuple[int, tuple[float, ...]]]
"""Tokens and numbers, by node and the ring's number of the request."""


class SilentStagesError(RingError):
    """Raised when a ring has answered and all that some of its stages report comes, but for what is
    audited."""

    def __init__(self, stages: Sequence[AuditedStage]) -> None:
        names = " and ".join(stage.name for stage in stages)
        super().__init__(f"{names} reported nothing of what was audited, and all else")
        self.stages = stages


async def rerun(ring: ServingRing, answered: AnsweredRequest, *, has_experts: bool) -> AuditedRing:
    """Reports of a ring's stages on a request's tokens; `has_experts`: its model has. Raises
    SilentStagesError, RingError when the ring does not answer as it was, TimeoutError when a stage
    reports nothing at all any more."""
    client, reports, tokens = ring.client, Reports(), answered.tokens
    stages, prompts = client.ring.stages, client.cache_use.requests
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
        number, before = timeline.attempts[-1].number, [_reported(stage) for stage in stages]
        with suppress(TimeoutError):
            async with asyncio.timeout(REPORTS_WITHIN_S):
                while not all((stage.node.node_id, number) in reports for stage in stages):
                    came.clear()
                    await came.wait()
    if client.ring.stages is not stages:
        raise RingError("The ring has lost a stage meanwhile.")
    found = [reports.get((stage.node.node_id, number), NOTHING) for stage in stages]
    audited = [_audited(stage, one[1]) for stage, one in zip(stages, found, strict=True)]
    counts = [one[0] if stage.is_whole else 0 for stage, one in zip(audited, found, strict=True)]
    if set(counts) != {len(tokens)}:
        _check_reports(counts, audited, client.cache_use.requests - prompts)
        heard = [_reported(stage) > count for stage, count in zip(stages, before, strict=True)]
        known = zip(audited, counts, heard, strict=True)
        raise _silence([one for one, count, is_heard in known if is_heard and count != len(tokens)])
    return AuditedRing(
        ring.number,
        len(tokens),
        tuple(audited),
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


def _reported(stage: AgentStage) -> int:
    """How many reports have come of a stage, by its own count."""
    return stage.health.progress.reports if stage.health is not None else 0


def _audited(stage: AgentStage, numbers: tuple[float, ...]) -> AuditedStage:
    return AuditedStage(stage.node.node_id, stage.node.pc, stage.name, stage.layers, numbers)


def _check_reports(counts: Sequence[int], audited: Sequence[AuditedStage], prompts: int) -> None:
    """Raise RingError where honest stages may have reported so: all the same other number of
    tokens, which they have computed anew, or not all of so many prompts as came meanwhile."""
    if len(counts) > 1 and len(set(counts)) == 1 and counts[0]:
        raise RingError("The ring has computed the tokens anew meanwhile.")
    most = max(one.layers[1] - one.layers[0] for one in audited) + 1
    if prompts >= min(SKETCHES_MAX, SKETCH_NUMBERS_MAX // (NUMBERS * most)):
        raise RingError("More prompts came meanwhile than a report has room for.")


def _silence(stages: Sequence[AuditedStage]) -> Exception:
    """The error for sketches that did not come: of these stages everything else did."""
    return SilentStagesError(stages) if stages else TimeoutError()


def _dtype(stages: Sequence[AgentStage]) -> str:
    """The coarsest number format of the stages."""
    return min(map(_planned_dtype, stages), key=DTYPES.index)


def _planned_dtype(stage: AgentStage) -> str:
    """Format of a stage as planned, or the finer one that it says: nobody is given more tolerance
    for what it says of itself. The format that a device takes by itself is in its profile."""
    loaded, profile = stage.loaded, stage.node.profile
    said = loaded.dtype if loaded is not None and loaded.dtype in DTYPES else DTYPES[0]
    if stage.work.dtype in DTYPES:
        return max(stage.work.dtype, said, key=DTYPES.index)
    is_wide = profile is not None and profile.devices and profile.devices[0].element_bytes == 4
    return DTYPES[-1] if is_wide else said


def _kv_dtype(stages: Sequence[AgentStage]) -> str:
    return "int8" if any(stage.work.kv_dtype == "int8" for stage in stages) else "auto"
