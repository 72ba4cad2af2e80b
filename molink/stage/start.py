"""From commands to a running stage: load the layers, join the ring, hand over to the loop."""

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from molink.checkpoint.description import ModelDescription
from molink.engine.device.memory_limit import limit_memory
from molink.engine.loading import load_stage
from molink.engine.step.card_swapping import watch_of
from molink.engine.step.stage import StageExecutor
from molink.serving.model_card import ChatTokenizer
from molink.serving.served_model import load_tokenizer
from molink.stage.cache.stage_cache import StageCache
from molink.stage.event_files import EventFiles
from molink.stage.extending import Extender, StageWorkings, loaded_stage, new_recent, weights_bytes
from molink.stage.health_reports import HealthReports
from molink.stage.links import StageLinks
from molink.stage.loop import StageLoop
from molink.stage.packing import Packing
from molink.stage.resuming import SentLog, new_core
from molink.stage.shadowing import Shadowing
from molink.stage.tail import EndRules
from molink.stage_protocol.messages import (
    EnterRing,
    Fact,
    LoadProgressed,
    LoadStage,
    StageReady,
    Steering,
)
from molink_scheduler.recording.event_log import EventLog, RecordedCore

SWITCH_INTERVAL_S = 0.0005
"""How long the compute thread may keep the interpreter from the link thread. Python's 5 ms would
look like distance in every acknowledgement."""

COMPUTE_NICENESS = 5
"""Compute gives way to the link threads of this PC, and to the person who works at it."""


def start_stage(
    load: LoadStage,
    report: Callable[[Fact], None],
    expect_join: Callable[[], EnterRing],
    next_command: Callable[[], EnterRing | LoadStage | None],
    steer: Callable[[Callable[[Steering | EnterRing | LoadStage], None]], None],
    event_log: Path | None = None,
) -> StageLoop:
    """Load, report, wait for the ring, connect; the links are steered from when they listen. The
    loop asks `next_command` whether its ring goes on in another epoch.
    `event_log` is a file in which to write all that the stage is told.

    Raises UserError or StageError with one sentence.
    """
    tokenizer_of = cache(load_tokenizer)
    executor = _load_executor(load, report, tokenizer_of)
    name = f"layers {load.work.layers[0]}-{load.work.layers[1]}"
    links = StageLinks.bind(name, load.address, executor.is_head, report, load.keys)
    steer(links.handle)
    stage_cache = StageCache.of(load.cache_room, executor, links.wake)
    report(loaded_stage(executor, links, stage_cache.tiers))
    join = _joined(links, expect_join(), report)
    core = new_core(executor, join)
    events = EventFiles(EventLog(is_streamed=event_log is not None), name, event_log)
    work = _workings(executor, links, join, tokenizer_of, stage_cache)
    shadowing = Shadowing(work.sent, links)
    packing = work.sent.packing
    return StageLoop(
        RecordedCore.begin(core, events.events, time.monotonic()),
        executor,
        links,
        packing,
        work.end_rules,
        HealthReports(core, executor, links, packing, report, work.recent, shadowing),
        events,
        work.sent,
        shadowing,
        next_command,
        Extender(report, tokenizer_of, steer),
        report,
        work.swaps,
        stage_cache,
    )


def _joined(links: StageLinks, join: EnterRing, report: Callable[[Fact], None]) -> EnterRing:
    """Connect to the ring's other stages, and say so."""
    stands = links.connect(join)
    _yield_to_links()
    if stands:
        report(StageReady(join.epoch))
    return join


def _workings(
    executor: StageExecutor,
    links: StageLinks,
    join: EnterRing,
    tokenizer_of: Callable[[ModelDescription], ChatTokenizer | None],
    stage_cache: StageCache,
) -> StageWorkings:
    ids_below = executor.description.vocabulary_size if executor.takes_token_ids else None
    packing = Packing(executor.hidden_size, token_ids_below=ids_below)
    sent = SentLog(packing, executor.dtype, join.ring.replay_log_bytes)
    rules = EndRules(tokenizer_of(executor.description) if executor.is_tail else None)
    recent = new_recent(executor, audited=join.ring.audited)
    return StageWorkings(executor, links, sent, rules, recent, watch_of(executor), stage_cache)


def _yield_to_links() -> None:
    """Lower this thread's priority; the link threads, started before, keep theirs."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COMPUTE_NICENESS)


def _load_executor(
    load: LoadStage,
    report: Callable[[Fact], None],
    tokenizer_of: Callable[[ModelDescription], ChatTokenizer | None],
) -> StageExecutor:
    torch.set_num_threads(load.work.threads)
    if load.memory_bytes is not None:
        ram_bytes = load.cache_room.ram_bytes if load.cache_room is not None else 0
        mapped_bytes = weights_bytes(load.model) + ram_bytes
        limit_memory(load.work.device, load.memory_bytes, mapped_bytes)
    stage = load_stage(
        load.model,
        load.work,
        lambda fraction: report(LoadProgressed(fraction)),
        stages_here=load.stages_here,
        memory_bytes=load.memory_bytes,
        self_test=load.work.layers[0] == 0,
        tokenizer_of=tokenizer_of,
    )
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return stage
