"""A live stage: carries out what the core decides, with tensors, sockets and the clock.

One thread, blocking. Every decision is `molink_scheduler.stage.core`'s; the simulator drives the
same core (`molink_sim.ring.stage`). Rows of messages that have arrived are kept under a number
(`arrived_rows`), and the core names them by it.
An event loop beside a compute thread was rejected for this path: each hand-over to an idle core
costs 0.15 to 0.2 ms, twice per hop of every token, while ZeroMQ's own thread reads the network
during a step anyway.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import assert_never

from molink.engine_protocol.drawn import LateToken
from molink.engine_protocol.engine import Engine
from molink.engine_protocol.values import Prepared, StepInputs, StepResult
from molink.errors import FrameError, LenderLostError
from molink.stage.arrived_rows import ArrivedRows
from molink.stage.cache.stage_cache import StageCache
from molink.stage.drafting.protocol import Drafting
from molink.stage.entering import NewCore, resume_of
from molink.stage.event_files import EventFiles
from molink.stage.extending import Extend, StageWorkings
from molink.stage.health.health_reports import HealthReports
from molink.stage.links import StageLinks
from molink.stage.packing import Packing
from molink.stage.sent_log import SentLog
from molink.stage.shadowing import Shadowing
from molink.stage.tail import EndRules
from molink.stage_protocol.health import RoomOffer
from molink.stage_protocol.messages import (
    EnterRing,
    Fact,
    LoadStage,
    LoopCommand,
    SetRoom,
    StageReady,
)
from molink.wire.elements import element_name
from molink.wire.frames import (
    Activations,
    BlocksFetched,
    ChangeCache,
    Forget,
    Message,
    SetCapacity,
)
from molink.wire.stage_events import REFUSALS, stage_event
from molink_scheduler.batch import PREFILL, Batch, Release
from molink_scheduler.drafting.asks import AskDrafts
from molink_scheduler.events import (
    BatchArrived,
    BlocksRead,
    BookOrder,
    Decision,
    KeepRows,
    Refuse,
    RefuseRequest,
    RoomOffered,
    RunBatch,
    SendCacheChange,
    SendCapacity,
    SendFetched,
    SendRelease,
    SendRows,
    SendTokens,
    StageEvent,
    WaitUntil,
)
from molink_scheduler.kv.blocks import blocks_for
from molink_scheduler.kv.changes import CacheChange
from molink_scheduler.recording.event_log import RecordedCore

log = logging.getLogger(__name__)

IDLE_WAIT_S = 0.25
"""How long to sleep when nothing is there: only health reports wait for it, messages wake the
loop."""

LATE_WAIT_S = 0.002
"""Seconds between two looks of an idle tail at masks that are late."""

SHADOW_MESSAGES_MAX = 256
"""Messages that a shadow takes before it has computed them, a chunk of a link each: 16 MB."""


@dataclass(slots=True)
class StageLoop:
    """Live driver of one stage's core, until its process ends."""

    core: RecordedCore
    engine: Engine
    layers: Prepared
    links: StageLinks
    packing: Packing
    end_rules: EndRules
    reports: HealthReports
    events: EventFiles
    sent: SentLog
    shadowing: Shadowing
    next_command: Callable[[], LoopCommand | None]
    """Next command on the ring's epoch or the stage's room; None: there is none."""
    new_core: NewCore
    """Makes the core of the ring's next epoch."""
    extend: Extend
    """Loads a lost stage's layers beside these."""
    report: Callable[[Fact], None]
    cache: StageCache
    drafting: Drafting
    _rows: ArrivedRows = field(init=False, default_factory=ArrivedRows)
    _late: dict[int, LateToken] = field(init=False, default_factory=dict)
    """Tokens on the tail, by request, that wait for the masks of their grammars."""
    _wait_until: float | None = field(init=False, default=None)
    _interrupted_s: float = field(init=False, default=0.0)
    """How long the prefill step under way has stood still for decode."""

    def run(self) -> None:
        """Serve forever; the supervisor ends the process. On failure its last events are written
        to a file."""
        self.reports.begin()
        try:
            while True:
                self.reports.moved()
                if (command := self.next_command()) is not None:
                    self._obey(command)
                try:
                    self._take_messages()
                    self._step()
                except LenderLostError as error:
                    log.warning("It waits for its ring's next epoch: %s.", error)
                    self.reports.lost_lender(self.links.epoch)
                    self._obey(self._next_epoch())
        except Exception as error:  # Whatever it was: it is raised again once its events are kept.
            self.events.write_failure(error)
            raise
        finally:
            self.reports.end()

    def _next_epoch(self) -> LoadStage | EnterRing:
        """Compute nothing until the ring goes on."""
        while (command := self.next_command()) is None or isinstance(command, SetRoom):
            self.reports.moved()
            self.reports.report_if_due(is_idle=True)
            self.links.wait(IDLE_WAIT_S)
        return command

    def _obey(self, command: LoopCommand) -> None:
        """Offer the ring more or less room; or load layers and join the ring's next epoch, with
        nothing computed in between."""
        if isinstance(command, SetRoom):
            self._offer(command)
            return
        while not isinstance(command, EnterRing):
            if isinstance(command, LoadStage):
                self._extend(command)
            command = self._next_epoch()
        self._enter_epoch(command)

    def _offer(self, wanted: SetRoom) -> None:
        """Offer the ring the wanted room, as far as there are places. Less room takes effect once
        the head counts with it."""
        blocks = min(blocks_for(wanted.kv_tokens), self.layers.kv_blocks)
        if blocks > self.core.core.source.room.blocks:
            self.engine.hold(blocks)
        self._receive(RoomOffered(blocks))

    def _extend(self, load: LoadStage) -> None:
        """Take a lost stage's layers beside those that it keeps."""
        core, recent = self.core.core, self.reports.recent
        present = StageWorkings(self.layers, self.links, self.sent, self.end_rules, recent)
        more = self.extend(present, core.source.computed_tokens(), load)
        core.source.room.begin(more.layers.kv_blocks)
        self.layers, self.links, self.sent = more.layers, more.links, more.sent
        self.end_rules = more.end_rules
        self.shadowing = Shadowing(more.sent, more.links)
        self.reports.follow_stage(more.links, more.recent, self.shadowing)
        if more.links is not present.links:
            present.links.close()

    def _enter_epoch(self, command: EnterRing) -> None:
        """Enter the ring's next epoch, with the weights and what else survivors keep."""
        resume, source, log = resume_of(command), self.core.core.source, self.sent.log
        kept = self.engine.rows_kept(resume, source.computed_tokens(), log.has)
        if kept.blocks is not None:
            source.room.begin(kept.blocks)
        kept = self.cache.begin_epoch(kept, self.layers.block_bytes, command.epoch)
        stays = kept.chains_stay
        for request_id in kept.gone:
            self._forget(Release(request_id))
        log.begin_epoch(resume.without(kept.missing))
        self._rows.clear()
        self._late.clear()
        self.drafting.begin_epoch()
        core = self.new_core(self.layers, command, source.room, kept, source if stays else None)
        self.core = RecordedCore.begin(core, self.events.events, time.monotonic())
        self.reports.follow(core)
        if self.links.connect(command):
            offered = self.sent.offered(resume, kept) if stays else ()
            offer = RoomOffer.of(source.room)
            self.report(StageReady(command.epoch, kept.missing, offered, offer, kept.away))

    def _forget(self, release: Release) -> None:
        request_id, refused = release.request_id, self.packing.refused
        self.engine.release(release, wiped=request_id in refused)
        refused.discard(request_id)
        self._late.pop(request_id, None)
        self.reports.kv_freed()
        for one in (self.end_rules, self.sent.log, self.shadowing, self.drafting):
            one.forget(request_id)

    def _change_cache(self, change: CacheChange) -> None:
        self.sent.log.change_cache(change)
        self.cache.change(change)

    def _step(self) -> None:
        self._wait_until = None
        rate = self.links.next_rate_bytes_per_s
        has_computed = self._carry_out(self.core.next_step(rate, time.monotonic()))
        is_idle = not (self._draft() or has_computed)
        if self.reports.report_if_due(is_idle=is_idle):
            self.events.write_new()
            self.reports.check_lender()
            if (blocks := self.reports.blocks_to_offer) is not None:
                self._receive(RoomOffered(blocks))
            if self.reports.host_is_short:
                self.sent.log.shed()
                self.cache.shed()
        shadow_s = self.shadowing.step()
        self._send_late()
        if is_idle:
            self.links.wait(min(self._idle_s(), shadow_s, LATE_WAIT_S if self._late else math.inf))

    def _idle_s(self) -> float:
        report_at = self.reports.due_at(is_idle=True)
        wake_at = report_at if self._wait_until is None else min(self._wait_until, report_at)
        return min(IDLE_WAIT_S, max(0.0, wake_at - time.monotonic()))

    def _take_messages(self) -> None:
        """Take in everything that has arrived; what cannot be read or carried out is dropped. A
        shadow that has too much to compute lets it wait on its link, which then brings no more."""
        if self.links.is_shadow and len(self._rows) >= SHADOW_MESSAGES_MAX:
            return
        for fetched in self.cache.take_read():
            self._receive(BlocksRead(fetched))
        for message in self.links.receive():
            try:
                self._take(message)
            except FrameError as error:
                self.links.refuse(error)

    def _take(self, message: Message) -> None:
        if not isinstance(message, Activations):
            self._receive(stage_event(message))
            return
        rows_TD, token_ids = self.packing.unpack(message), self.packing.token_ids(message)
        batch, rows_TD = self.packing.fit(message.batch, rows_TD, self.layers.dtype, received=True)
        self._receive(BatchArrived(batch, self._rows.next_number))
        self._rows.keep(rows_TD, token_ids)

    def _receive(self, event: StageEvent) -> None:
        now = time.monotonic()
        self.reports.recent.received(event, now)
        self._carry_out(self.core.received(event, now))

    def _carry_out(self, decisions: Iterable[Decision]) -> bool:
        """Do what the core decided; whether a step was computed. Raises FrameError for a message
        that the core refuses."""
        computed = False
        for decision in decisions:
            match decision:
                case RunBatch():
                    self._compute(decision)
                    computed = True
                case SendRelease() | SendCacheChange() | SendCapacity() | SendFetched():
                    self._obey_book(decision)
                case AskDrafts(asks):
                    self.drafting.ask(asks)
                case WaitUntil(at):
                    self._wait_until = at
                case RefuseRequest(reason, request_id):
                    self.reports.recent.refused(request_id, reason, time.monotonic())
                case Refuse(reason):
                    raise FrameError(reason)
                case _:
                    assert_never(decision)
        return computed

    def _obey_book(self, order: BookOrder) -> None:
        """Do here what the head's book orders, and let the next stage know."""
        match order:
            case SendRelease(release):
                self._forget(release)
                if not self.core.is_tail and not self.links.is_shadow:
                    self.links.send_next(Forget(release))
            case SendCacheChange(change):
                self._change_cache(change)
                if not self.core.is_tail:
                    self.links.send_next(ChangeCache(change))
            case SendCapacity(capacity, blocks):
                self.engine.hold(blocks)
                if not self.core.is_tail:
                    self.links.send_next(SetCapacity(capacity))
            case SendFetched(fetched):
                self.links.send_next(BlocksFetched(fetched))
            case _:
                assert_never(order)

    def _compute(self, run: RunBatch) -> None:
        batch, make_room = run.batch, self.sent.log.shed
        for fed in self.engine.admit(batch, self._interrupt, make_room):
            self.sent.keep(*fed)
        started = time.monotonic()
        self.reports.recent.begins(batch, started)
        if run.result_due_at is not None:
            self.links.set_decode_result_due(run.result_due_at)
        interrupt = self._interrupt if batch.batch_class is PREFILL else self.reports.moved
        self._interrupted_s = 0.0
        token_ids = run.token_ids or self._rows.token_ids(run.pieces)
        inputs = StepInputs(batch, token_ids, self._rows.take(run.pieces))
        result = self.engine.step(inputs, interrupt, make_room)
        now, rate = time.monotonic(), self.links.next_rate_bytes_per_s
        if result.computed_s is None:
            started += self._interrupted_s
        else:  # A card knows what of the time was this step's.
            started = now - result.computed_s
        self._pass_on(self.core.computed(run, now - started, rate, now), result)
        now = time.monotonic()
        self.core.finished(run, now - started, now)
        self.reports.recent.ended(batch, now)

    def _interrupt(self) -> None:
        """Compute the decode that has come meanwhile, between two layers of a prefill step."""
        self.reports.moved()
        began, before_s = time.monotonic(), self._interrupted_s
        self._take_messages()
        self._send_late()
        while self._carry_out(self.core.between_layers(time.monotonic())) or self._draft():
            pass
        self._interrupted_s = before_s + time.monotonic() - began

    def _draft(self) -> bool:
        """Move the drafters on by one depth, then take messages; False: nobody has asked them."""
        if not self.drafting.is_busy:
            return False
        try:
            if (drafted := self.drafting.take()) is not None:
                self._receive(drafted)
        except FrameError as error:
            log.warning("Drafts were dropped: %s.", error)
        self._take_messages()
        return True

    def _pass_on(self, decision: SendRows | SendTokens | KeepRows, result: StepResult) -> None:
        rows_TD, planned = result.rows_TD, decision.batch
        if rows_TD is not None:
            planned, rows_TD = self.packing.fit(planned, rows_TD, element_name(rows_TD))
        match decision:
            case SendRows(_, next_decode_due_at):
                batch = self.reports.recent.with_waits(planned)
                assert rows_TD is not None, "every stage but the tail has rows"
                self.links.set_next_decode_due(next_decode_due_at)
                for again in self.sent.messages(batch, decision.replays):
                    self.links.send_next(again, PREFILL)
                header, buffer = self.packing.pack(rows_TD, batch.codec)
                message = Activations(batch, header, buffer, result.token_ids or None)
                self.links.send_next(message, batch.batch_class)
                self.sent.keep(batch, rows_TD, result.token_ids)
            case KeepRows():
                if rows_TD is not None:
                    self.sent.keep(planned, rows_TD, result.token_ids)
            case SendTokens():
                batch = self.reports.recent.with_waits(planned)
                self._late |= {late.request_id: late for late in result.late}
                self._send_tokens(batch, result)
            case _:
                assert_never(decision)

    def _send_late(self) -> None:
        """Send the tokens that were late, as a batch that has computed nothing."""
        now = time.monotonic()
        drawn = [token for late in self._late.values() if (token := late.drawn(now)) is not None]
        for token in drawn:
            del self._late[token.request_id]
        if drawn:
            self._send_tokens(Batch(0, PREFILL, -1, ()), StepResult(None, tuple(drawn)))

    def _send_tokens(self, batch: Batch, result: StepResult) -> None:
        returned, copies = self.end_rules.sampled(
            batch, result.drawn, result.scores, result.drafts, result.forced
        )
        self.packing.refused |= {
            one.request_id for one in returned.tokens if one.finish in REFUSALS
        }
        self.links.send_next(returned)
        for copy in copies:
            self.links.send_coordinator(copy)
