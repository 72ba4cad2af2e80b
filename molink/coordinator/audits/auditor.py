"""Auditor: has a share of requests computed again, and finds out who computes something else.

A request is chosen when it comes, so that its answer can say so. When it has ended, its prompt and
answer are computed as one prompt by the ring that answered and by another one. Where these
contradict each other a third ring does it, too: of three, the odd one is wrong. Who reports nothing
of what is audited, and all else, contradicts itself. An audit that does not finish is tried once
more. One audit at a time: users share the rings with it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from molink.checkpoint.model_config import text_settings
from molink.coordinator.audits.quarantine import EVIDENCE_FOLDER, Evidence, Quarantine
from molink.coordinator.audits.rerun import SilentStagesError, rerun
from molink.coordinator.requests.audit_queue import AnsweredRequest
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.requests.serving_ring import ServingRing
from molink.errors import ErrorGuard, MolinkError
from molink.report.cluster import AuditReport
from molink.tasks import gathered
from molink_scheduler.audit import (
    AuditedRing,
    AuditedStage,
    Disagreement,
    Disagreements,
    disagreement,
)

AUDIT_WITHIN_S = 300.0
"""Seconds for the audit of a request, all rings together: a prompt may stand behind many others."""

ONE_RING = (
    "Requests are not audited: an audit compares two rings, and one serves. PCs with room for the "
    "whole model between them, beside those that serve, make another."
)


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """How a cluster is audited."""

    share: float
    """Part of all requests that is audited."""
    evidence: Evidence
    has_experts: bool
    """Whether the model has: their choice makes honest rings differ more."""

    @classmethod
    def of(cls, share: float, data_dir: Path, config: Mapping[str, Any]) -> "AuditSettings":
        """The settings for the model of a config.json."""
        counts = [value for name, value in text_settings(config).items() if "experts" in name]
        has_experts = any(isinstance(count, int) and count > 1 for count in counts)
        return cls(share, Evidence(data_dir / EVIDENCE_FOLDER), has_experts)


@dataclass(slots=True)
class Auditor:
    """Judge of rings by each other's work."""

    service: ClusterService
    quarantine: Quarantine
    evidence: Evidence
    has_experts: bool
    """Whether the model has."""
    random: Random = field(default_factory=Random)
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Auditing a request"))
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("passed", "failed", "unfinished", "spans"), 0)
    )
    """Audits by their end; spans: stages' work that was compared."""
    unfinished_by: Counter[str] = field(default_factory=Counter)
    """Unfinished audits by the reason, those that were tried once more among them."""
    disagreements: Disagreements = field(default_factory=Disagreements)

    async def run(self) -> None:
        """Audit what was chosen, one after the other, until cancelled."""
        while True:
            answered = await self.service.audits.next()
            end = "unfinished"
            try:
                with self.guard:
                    end = await self._audit(answered)
            finally:
                if end != "unfinished" or not self.service.audits.again(answered):
                    answered.timeline.audited = end
                    self.counts[end] += 1

    @property
    def trouble(self) -> str:
        """Why requests are not audited that should be; empty: they are."""
        return ONE_RING if self.service.audits.is_alone else ""

    def report(self) -> AuditReport:
        """Counts of the audits so far, and the share of requests."""
        share, causes = self.service.audits.share, dict(self.unfinished_by)
        return AuditReport(share, **self.counts, unfinished_by=causes)

    async def _audit(self, answered: AnsweredRequest) -> str:
        """How it ends: "passed", "failed" or "unfinished"."""
        rings = self._rings(answered)
        if len(rings) < 2:
            return self._unfinished("one ring")
        try:
            async with asyncio.timeout(AUDIT_WITHIN_S):
                reruns = await self._reports_of(rings[:2], answered)
                findings = _findings(reruns)
                if findings and len(rings) > 2:
                    reruns += await self._reports_of(rings[2:3], answered)
                    findings = _findings(reruns)
        except SilentStagesError as error:
            await self._silent(error.stages, answered)
            return self._unfinished("no report")
        except (MolinkError, TimeoutError) as error:  # A ring has ended meanwhile, or is too busy.
            return self._unfinished("too late" if isinstance(error, TimeoutError) else "ring ended")
        if not findings:
            return "passed"
        await self._failed(answered, reruns, findings)
        return "failed"

    def _unfinished(self, why: str) -> str:
        self.unfinished_by[why] += 1
        return "unfinished"

    async def _silent(self, stages: Sequence[AuditedStage], answered: AnsweredRequest) -> None:
        """Hold it against stages that they alone did not report what was audited."""
        now = time.time()
        found_out = self.disagreements.silent(stages, now)
        for stage in stages:
            said = f"{stage.name} reported nothing of what was audited, and all else"
            self.service.events.add("audit_failed", f"an audit has no end: {said}", node=stage.name)
            if stage.node_id in found_out:
                shown = {"unix_s": now, "tokens": answered.tokens, "silent": asdict(stage)}
                path = await asyncio.to_thread(self.evidence.keep, now, shown)
                await self._quarantine(stage, said, path)

    def _rings(self, answered: AnsweredRequest) -> list[ServingRing]:
        """Open rings that can hold the tokens: the ring that answered, then others in any order."""
        tokens = len(answered.tokens) + 1
        rings = [
            ring
            for ring in self.service.rings
            if ring.is_open and ring.client.card.model_len_max >= tokens
        ]
        self.random.shuffle(rings)
        return sorted(rings, key=lambda ring: ring.number != answered.ring)

    async def _reports_of(
        self, rings: Sequence[ServingRing], answered: AnsweredRequest
    ) -> list[AuditedRing]:
        runs = (rerun(ring, answered, has_experts=self.has_experts) for ring in rings)
        reruns = await gathered(runs)
        self.counts["spans"] += sum(len(one.stages) for one in reruns)
        return reruns

    async def _failed(
        self,
        answered: AnsweredRequest,
        reruns: Sequence[AuditedRing],
        findings: Sequence[Disagreement],
    ) -> None:
        now = time.time()
        found_out = self.disagreements.add(findings, now)
        shown = {
            "unix_s": now,
            "request": answered.timeline.arrival.request_id,
            "tokens": answered.tokens,
            "findings": [asdict(one) for one in findings],
            "rings": [asdict(one) for one in reruns],
            "found_out": found_out,
        }
        path = await asyncio.to_thread(self.evidence.keep, now, shown)
        first = findings[0]
        sentence = f"{first.sentence}{_outcome(reruns, findings)}"
        self.service.events.add("audit_failed", f"an audit has failed: {sentence}", node="")
        for node_id in found_out:
            its = next(one for one in findings if node_id in (one.one.node_id, one.other.node_id))
            stage = its.one if its.one.node_id == node_id else its.other
            await self._quarantine(stage, its.sentence, path)

    async def _quarantine(self, stage: AuditedStage, what: str, path: str) -> None:
        node_id, name = stage.node_id, stage.name
        reason = f"{what}; it has failed {self.disagreements.failures(node_id)} audits"
        kept = f" Evidence: {path}" if path else ""
        self.service.events.add(
            "node_quarantined", f"{name} is quarantined: {reason}.{kept}", node=name
        )
        self.disagreements.forget(node_id)
        await self.quarantine.put(node_id, f"{reason}. The operator can resume it.")


def _findings(reruns: Sequence[AuditedRing]) -> list[Disagreement]:
    """Contradictions of each two of the rings."""
    pairs = [(one, other) for at, one in enumerate(reruns) for other in reruns[at + 1 :]]
    found = [disagreement(*pair) for pair in pairs]
    return [one for one in found if one is not None]


def _outcome(reruns: Sequence[AuditedRing], findings: Sequence[Disagreement]) -> str:
    """Clause about what a third ring says of it."""
    if len(reruns) < 3:
        return "; with a third ring it could be told which of both is wrong"
    names = [name for one in findings for name in (one.one.name, one.other.name)]
    odd = [name for name in dict.fromkeys(names) if names.count(name) == 2]
    if len(findings) == 2 and len(odd) == 1:
        return f"; a third ring contradicts {odd[0]}, too"
    return "; a third ring agrees with neither, or with both"
