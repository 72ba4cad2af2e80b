"""From commands to a running stage: load the layers, join the ring, hand over to the loop."""

from collections.abc import Callable

import torch

from molink.executor.stage import StageExecutor, StageOptions
from molink.runtime.model_card import load_tokenizer
from molink.runtime.stage_links import StageLinks
from molink.runtime.stage_loop import StageLoop
from molink.runtime.supervision import (
    Fact,
    JoinRing,
    LoadProgressed,
    LoadStage,
    StageLoaded,
    StageReady,
)
from molink.runtime.tail import EndRules
from molink.runtime.tensor_buffers import dtype_name
from molink.runtime.work_sources import HeadSource, QueueSource, WorkSource
from molink_scheduler.head import HeadScheduler, HeadSettings

__all__ = ["start_stage"]

HOST = "127.0.0.1"


def start_stage(
    load: LoadStage, tell: Callable[[Fact], None], expect_join: Callable[[], JoinRing]
) -> StageLoop:
    """Load, report, wait for the ring, connect. Raises UserError or StageError with one
    sentence."""
    torch.set_num_threads(load.threads)
    executor = _load_executor(load, tell)
    links = StageLinks.bind(f"layers {load.layers[0]}-{load.layers[1]}", HOST, executor.is_head)
    tell(_loaded(executor, links))
    join = expect_join()
    links.connect(join)
    tell(StageReady())
    return StageLoop(executor, links, _source(executor, join), _end_rules(executor), tell)


def _load_executor(load: LoadStage, tell: Callable[[Fact], None]) -> StageExecutor:
    options = StageOptions(
        device=load.device,
        dtype=load.dtype,
        kv_tokens=load.kv_tokens,
        self_test=load.layers[0] == 0,  # One stage's verdict counts for a ring on one machine.
    )
    return StageExecutor.load(
        load.model, range(*load.layers), options, lambda fraction: tell(LoadProgressed(fraction))
    )


def _loaded(executor: StageExecutor, links: StageLinks) -> StageLoaded:
    return StageLoaded(
        port=links.inbound[0].port,
        coordinator_port=links.inbound[1].port if executor.is_head else None,
        device=str(executor.device),
        dtype=dtype_name(executor.dtype),
        kv_tokens_capacity=executor.kv.tokens_capacity,
        weights_bytes=executor.weights_bytes,
    )


def _source(executor: StageExecutor, join: JoinRing) -> WorkSource:
    if not executor.is_head:
        return QueueSource.for_steps_of(join.span_tokens)
    settings = HeadSettings(join.kv_tokens_capacity, join.micro_batch_count, join.span_tokens)
    return HeadSource(HeadScheduler(settings))


def _end_rules(executor: StageExecutor) -> EndRules:
    tokenizer = load_tokenizer(executor.description) if executor.is_tail else None
    return EndRules(tokenizer)
