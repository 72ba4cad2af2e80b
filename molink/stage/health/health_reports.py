"""Sender of a stage's health reports while it serves.

The loop reports twice a second. While it is within one long step a thread of its own repeats the
last report, with the time for which computing has not moved on: so a coordinator can tell a long
step from a stage that stands still, and one whose reports end altogether from both. The same thread
reports at once that a neighbour has fallen silent.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from molink.engine_protocol.engine import Engine
from molink.engine_protocol.values import EngineReport
from molink.errors import LenderLostError
from molink.stage.health.engine_health import with_engine
from molink.stage.health.recent_work import RecentWork
from molink.stage.links import StageLinks
from molink.stage.packing import Packing
from molink.stage.shadowing import Shadowing
from molink.stage_protocol.health import RoomOffer, StageHealth
from molink.stage_protocol.progress import SHADOWED_MAX, ShadowProgress, StageProgress
from molink_scheduler.stage.core import StageCore, WorkSource

PERIOD_S = 0.5
"""The dashboard redraws twice a second."""

REPEAT_S = 0.5
"""Seconds without a report of the loop after which the last one is repeated, each time."""

FREED_PERIOD_S = 0.05
"""An idle stage reports this soon that KV was freed: who watches a request end sees its memory
go."""


HeadHealth = Callable[[StageHealth, WorkSource, float], StageHealth]
"""Adds what only a ring's head knows to a report, if the source of the stage's work is one."""


@dataclass(slots=True)
class HealthReports:
    """Reporter of one stage's health to its supervisor."""

    core: StageCore
    engine: Engine
    links: StageLinks
    packing: Packing
    report: Callable[[StageHealth], None]
    recent: RecentWork
    shadowing: Shadowing
    head_health: HeadHealth
    audited: bool = False
    """Whether sketches of rows are told, by which other rings' nodes are compared."""
    _busy_reported_s: float = field(init=False, default=0.0)
    _reported_at: float = field(init=False, default_factory=time.monotonic)
    _is_kv_freed: bool = field(init=False, default=False)
    """Whether KV was freed since the last report."""
    _moved_at: float = field(init=False, default_factory=time.monotonic)
    _latest: StageHealth | None = field(init=False, default=None)
    _reports: int = field(init=False, default=0)
    _stalled_s: float = field(init=False, default=0.0)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    """Held while a report is numbered and sent, from either thread."""
    _ended: threading.Event = field(init=False, default_factory=threading.Event)
    _held: EngineReport = field(init=False)
    """What the engine held at the last report."""
    _lender_lost_in: int | None = field(init=False, default=None)

    def begin(self) -> None:
        """Report for the first time, and repeat reports from now on where the loop is late."""
        self._send(self._health(time.monotonic()))
        threading.Thread(target=self._repeat, name="reports", daemon=True).start()

    def follow(self, core: StageCore) -> None:
        """Report of another core from now on: the ring is in its next epoch."""
        self.core, self._busy_reported_s = core, 0.0

    def follow_stage(self, links: StageLinks, recent: RecentWork, shadowing: Shadowing) -> None:
        """Report of a stage of more layers from now on."""
        self.links, self.recent, self.shadowing = links, recent, shadowing

    def end(self) -> None:
        """End the thread that repeats reports."""
        self._ended.set()
        self.links.fell_silent.set()

    def moved(self) -> None:
        """Computing has moved on: a step has begun or ended, or come to another layer."""
        self._moved_at = time.monotonic()

    def lost_lender(self, at: int) -> None:
        """A lender of KV is lost, in the ring's epoch of this number: report it at once."""
        self._lender_lost_in = at
        self._send(self._health(time.monotonic()))

    def check_lender(self) -> None:
        """Raises LenderLostError where a lender had gone at the last report, unasked."""
        if self._held.lender_is_lost:
            raise LenderLostError("a lender of KV has gone")

    @property
    def blocks_to_offer(self) -> int | None:
        """KV blocks to offer the ring from now on: more, once a lender has brought places, or fewer
        where one wants some back; None: as before."""
        blocks, room = self._held.kv_blocks, self.core.source.room
        return blocks if blocks > room.blocks or 0 < blocks < room.offered else None

    def kv_freed(self) -> None:
        """A request was forgotten."""
        self._is_kv_freed = True

    @property
    def host_is_short(self) -> bool:
        """Whether the PC had too little memory at the last report."""
        return self._latest is not None and self._latest.host_is_short

    def due_at(self, *, is_idle: bool) -> float:
        """Time at which the next report is due."""
        is_urgent = is_idle and self._is_kv_freed
        return self._reported_at + (FREED_PERIOD_S if is_urgent else PERIOD_S)

    def report_if_due(self, *, is_idle: bool) -> bool:
        """Report, unless the last report is too recent; whether it did."""
        now = time.monotonic()
        if now < self.due_at(is_idle=is_idle):
            return False
        self._send(self._health(now))
        self._is_kv_freed = False
        self._reported_at, self._busy_reported_s = now, self.core.busy_s
        return True

    def repeat_if_late(self, now: float) -> None:
        """Report for the loop, which is within a step; from another thread."""
        latest = self._latest
        if latest is not None and now - self._reported_at >= REPEAT_S:
            self._send(latest, stalled_s=max(0.0, now - self._moved_at))

    def _repeat(self) -> None:
        while not self._ended.is_set():
            fell_silent = self.links.fell_silent
            if fell_silent.wait(REPEAT_S):
                fell_silent.clear()
                self._repeat_now()
            else:
                self.repeat_if_late(time.monotonic())

    def _repeat_now(self) -> None:
        if self._latest is not None:
            self._send(self._latest, self._stalled_s)

    def _send(self, health: StageHealth, stalled_s: float = 0.0) -> None:
        with self._lock:
            self._latest, self._reports, self._stalled_s = health, self._reports + 1, stalled_s
            previous_s, next_s = self.links.neighbours_silent_s()
            progress = replace(
                health.progress,
                reports=self._reports,
                stalled_s=stalled_s,
                previous_silent_s=round(previous_s, 3),
                next_silent_s=round(next_s, 3),
            )
            self.report(replace(health, progress=progress))

    def _health(self, now: float) -> StageHealth:
        core, packing = self.core, self.packing
        present, circling = self.recent.micro_batches(now)
        busy_share = (core.busy_s - self._busy_reported_s) / max(1e-6, now - self._reported_at)
        health = StageHealth(
            kv_tokens_used=0,
            busy_s=core.busy_s,
            busy_share=round(busy_share, 3),
            steps=core.steps_count,
            requests_running=None,
            requests_waiting=None,
            micro_batch_count=None,
            frames_refused=self.links.frames_refused,
            packed=packing.packed,
            unpacked=packing.unpacked,
            bytes_saved=packing.bytes_saved,
            decode_round_s=core.source.clock.round_s,
            decode_step_s=core.source.clock.step_s,
            prefill_row_s=core.prefill_row_s,
            links=self.links.reports(),
            progress=StageProgress(
                rows_in=core.rows_in,
                rows_out=core.rows_out,
                dropped=self.links.messages_dropped,
            ),
            recent_prompts=self.recent.prompts(now),
            recent_pieces=self.recent.pieces(now),
            micro_batches_held=present,
            micro_batches_circling=circling,
            shadow=self._shadow(),
            shadow_lag=self.shadowing.lag(now),
            recent_refused=self.recent.refusals(now),
            rows_refused=packing.complaints,
            lender_lost_in=self._lender_lost_in,
            offer=RoomOffer.of(core.source.room),
        )
        self._held = self.engine.report(watched=self.audited)
        return self.head_health(with_engine(health, self._held, now), core.source, now)

    def _shadow(self) -> ShadowProgress | None:
        """Tokens of each request of which it holds KV, where it covers another stage."""
        if not self.links.is_shadow:
            return None
        held = [one for one in self.core.source.computed_tokens().items() if one[1]]
        return ShadowProgress(self.links.epoch, tuple(held[:SHADOWED_MAX]))
