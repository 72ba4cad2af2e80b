"""What a stage reports of itself while it serves, and when."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from molink.executor.stage import StageExecutor
from molink.stage.links import StageLinks
from molink.stage.packing import Packing
from molink.stage_protocol.messages import StageHealth
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.stage.core import StageCore

__all__ = ["HealthReports"]

PERIOD_S = 0.5
"""The dashboard redraws twice a second."""

FREED_PERIOD_S = 0.05
"""An idle stage reports this soon that KV was freed: who watches a request end sees its memory
go."""


@dataclass(slots=True)
class HealthReports:
    """Reporter of one stage's health to its supervisor."""

    core: StageCore
    executor: StageExecutor
    links: StageLinks
    packing: Packing
    report: Callable[[StageHealth], None]
    _busy_reported_s: float = field(init=False, default=0.0)
    _reported_at: float = field(init=False, default_factory=time.monotonic)
    _is_kv_freed: bool = field(init=False, default=False)
    """Whether KV was freed since the last report."""

    def kv_freed(self) -> None:
        """A request was forgotten."""
        self._is_kv_freed = True

    def due_at(self, *, is_idle: bool) -> float:
        """When the next report is due."""
        hurries = is_idle and self._is_kv_freed
        return self._reported_at + (FREED_PERIOD_S if hurries else PERIOD_S)

    def report_if_due(self, *, is_idle: bool) -> bool:
        """Report, unless the last report is too recent; whether it did."""
        now = time.monotonic()
        if now < self.due_at(is_idle=is_idle):
            return False
        self.report(self._health(now))
        self._is_kv_freed = False
        self._reported_at, self._busy_reported_s = now, self.core.busy_s
        return True

    def _health(self, now: float) -> StageHealth:
        core, packing = self.core, self.packing
        head = core.source if isinstance(core.source, HeadScheduler) else None
        busy_share = (core.busy_s - self._busy_reported_s) / (now - self._reported_at)
        return StageHealth(
            kv_tokens_used=self.executor.kv.tokens_used,
            busy_s=core.busy_s,
            busy_share=round(busy_share, 3),
            steps=core.steps_count,
            requests_running=None if head is None else head.running_count,
            requests_waiting=None if head is None else head.waiting_count,
            frames_refused=self.links.frames_refused,
            packed=packing.packed,
            unpacked=packing.unpacked,
            bytes_saved=packing.bytes_saved,
            decode_round_s=core.source.clock.round_s,
            micro_batch_count=None if head is None else head.micro_batches.count,
            decode_step_s=core.source.clock.step_s,
            prefill_row_s=core.prefill_row_s,
            links=self.links.reports(),
        )
