"""From commands to a running stage: load the layers, join the ring, hand over to the loop."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from molink.engine_protocol.engine import Engine
from molink.engine_protocol.values import Prepared, RowsKept
from molink.stage.cache.handing import HandingPair
from molink.stage.cache.kept_index import kv_identity
from molink.stage.cache.pair import NoPair, Pair, StagePair, computed_by
from molink.stage.cache.stage_cache import StageCache
from molink.stage.cache.taking import TakingPair
from molink.stage.drafting.copying import Copying
from molink.stage.drafting.drafters import Drafters
from molink.stage.drafting.loading import add_model
from molink.stage.entering import resume_of
from molink.stage.event_files import EventFiles
from molink.stage.extending import Extender, loaded_stage, progress_to
from molink.stage.health.head_health import with_head
from molink.stage.health.health_reports import HealthReports
from molink.stage.health.recent_work import RecentWork
from molink.stage.joining import NOTHING_KEPT, new_core
from molink.stage.links import StageLinks
from molink.stage.loop import StageLoop
from molink.stage.packing import Packing
from molink.stage.sent_log import SentLog
from molink.stage.shadowing import Shadowing
from molink.stage.tail import EndRules
from molink.stage_protocol.messages import (
    EnterRing,
    Fact,
    LoadStage,
    LoopCommand,
    StageReady,
    Steered,
)
from molink.stage_protocol.pairing import Pairing
from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.kv.capacity import StageRoom
from molink_scheduler.kv.changes import AwayBlocks, Fetched
from molink_scheduler.recording.event_log import EventLog, RecordedCore

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""How long the compute thread may keep the interpreter from the link thread. Python's 5 ms would
look like distance in every acknowledgement."""

COMPUTE_NICENESS = 5
"""Compute gives way to the link threads of this PC, and to the person who works at it."""


def start_stage(
    engine: Engine,
    new_engine: Callable[[], Engine],
    load: LoadStage,
    report: Callable[[Fact], None],
    expect_join: Callable[[], EnterRing],
    next_command: Callable[[], LoopCommand | None],
    steer: Callable[[Steered], None],
    event_log: Path | None = None,
) -> StageLoop:
    """Load, report, wait for the ring, connect; links are steered once they listen. The loop asks
    `next_command` whether its ring goes on in another epoch; what it is told goes to `event_log`.
    `new_engine` makes an engine for a model that drafts.

    Raises UserError or StageError with one sentence.
    """
    layers = engine.prepare(load, progress_to(report))
    drafters, add_drafter = _drafting(new_engine, load, layers)
    name = f"layers {load.work.layers[0]}-{load.work.layers[1]}"
    links = StageLinks.bind(name, load.address, layers.is_head, report, load.keys, load.first_port)
    identity = kv_identity(load, layers)
    pair_of = partial(stage_pair, load, layers)
    stage_cache = StageCache.of(load.cache_room, engine, layers, links.wake, identity, pair_of)
    steer(stage_cache.steered(links.handle))
    report(loaded_stage(layers, links, drafters.trouble, stage_cache.tiers))
    join = expect_join()
    kept = _cache_left_on_disk(stage_cache, layers, join)
    _connect_and_report(links, join, report, kept.away)
    core = new_core(layers, join, StageRoom(layers.kv_blocks), kept)
    events = EventFiles(EventLog(is_streamed=event_log is not None), name, event_log)
    sent = _sent_log(layers, join)
    shadowing, recent = Shadowing(sent, links), RecentWork(layers.is_head)
    working, told = (core, engine, links, sent.packing), stage_cache.reporter(report)
    told_of = *working, told, recent, shadowing, drafters.after(with_head), join.ring.audited
    recorded = RecordedCore.begin(core, events.events, time.monotonic())
    return StageLoop(
        *(recorded, engine, layers, links, sent.packing),
        end_rules=EndRules(layers.tokenizer),
        reports=HealthReports(*told_of),
        events=events,
        sent=sent,
        shadowing=shadowing,
        next_command=next_command,
        new_core=new_core,
        extend=Extender(engine, add_drafter, stage_cache, report, steer),
        report=report,
        cache=stage_cache,
        drafting=drafters,
    )


def _drafting(
    new_engine: Callable[[], Engine], load: LoadStage, layers: Prepared
) -> tuple[Drafters, Callable[[LoadStage, Prepared], str | None]]:
    """Drafters of a stage, and what adds a model to them that is named later."""
    drafters = Drafters.of(Copying())
    add_drafter = partial(add_model, drafters, new_engine)
    add_drafter(load, layers)
    return drafters, add_drafter


def _cache_left_on_disk(cache: StageCache, layers: Prepared, join: EnterRing) -> RowsKept:
    """What the process before has left on the disk, where it may stay."""
    stays = resume_of(join).chains_stay
    away = cache.begin(layers.block_bytes, join.epoch, chains_stay=stays)
    return NOTHING_KEPT._replace(away=away)


def _connect_and_report(
    links: StageLinks, join: EnterRing, report: Callable[[Fact], None], away: AwayBlocks
) -> None:
    """Connect to the ring's other stages, and say so, and which blocks the process before has
    left."""
    stands = links.connect(join)
    _yield_to_links()
    if stands:
        report(StageReady(join.epoch, away=away))


def _sent_log(layers: Prepared, join: EnterRing) -> SentLog:
    """Log of the rows that the stage will have sent."""
    ids_below = layers.limits.vocabulary_size if layers.takes_token_ids else None
    packing = Packing(layers.hidden_size, token_ids_below=ids_below)
    return SentLog(packing, layers.dtype, join.ring.replay_log_bytes, SPAN_TOKENS)


def _yield_to_links() -> None:
    """Lower this thread's priority, and let it keep the interpreter for less long: link threads,
    started before, keep theirs."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COMPUTE_NICENESS)


def stage_pair(load: LoadStage, layers: Prepared, fetched: Callable[[Fetched], None]) -> StagePair:
    """The end of a stage's pair, if it has one: as it was told when it loaded, or is told while it
    serves. `fetched` is called when blocks are sure."""
    computes = computed_by(load, layers)

    def end_of(pairing: Pairing | None) -> Pair:
        """Where it cannot listen it has no end, and its ring computes all."""
        if pairing is None:
            return NoPair()
        if pairing.sends:
            return HandingPair(pairing, computes, layers.block_bytes)
        try:
            return TakingPair.listening(
                pairing, load.address, computes, layers.block_bytes, fetched
            )
        except OSError as error:
            log.warning("It takes no KV from another ring: %s: %s.", pairing.path, error)
            return NoPair()

    return StagePair(end_of, end_of(load.pairing))
