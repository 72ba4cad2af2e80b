"""How a stage takes a lost one's layers beside its own, in the process that goes on.

What it holds is neither loaded again nor moved: the new layers are loaded as a stage of their own,
and both compute as one (`molink.engine.step.extended_stage`). Where the new ones are behind, the
log of what was sent feeds them, and another log begins for what leaves from now on. One that
becomes its ring's head listens anew, for the tail and for the coordinator.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from molink.checkpoint.description import ModelDescription
from molink.engine.device.memory_limit import limit_memory
from molink.engine.loading import load_stage
from molink.engine.model.row_sketches import RowSketches
from molink.engine.step.card_swapping import SwapWatch, watch_of
from molink.engine.step.extended_stage import Executor, ExtendedExecutor, parts_of
from molink.engine.step.stage import StageExecutor
from molink.errors import StageError
from molink.serving.model_card import ChatTokenizer
from molink.stage.cache.stage_cache import StageCache
from molink.stage.links import StageLinks
from molink.stage.packing import dtype_name
from molink.stage.recent_work import RecentWork
from molink.stage.resuming import SentLog
from molink.stage.tail import EndRules
from molink.stage_protocol.messages import (
    EnterRing,
    Fact,
    LoadProgressed,
    LoadStage,
    StageLoaded,
    Steering,
)
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.stage.extension import Extension


@dataclass(frozen=True, slots=True)
class StageWorkings:
    """Parts that a stage's loop works with, and that change when it takes more layers."""

    executor: Executor
    links: StageLinks
    sent: SentLog
    end_rules: EndRules
    recent: RecentWork
    swaps: SwapWatch | None
    cache: StageCache


Extend = Callable[[StageWorkings, dict[int, int], LoadStage], StageWorkings]
"""Loads layers beside those of a stage, which holds KV of so many tokens of each request."""


@dataclass(frozen=True, slots=True)
class Extender:
    """Loader of a lost stage's layers beside those of this process."""

    report: Callable[[Fact], None]
    tokenizer_of: Callable[[ModelDescription], ChatTokenizer | None]
    steer: Callable[[Callable[[Steering | EnterRing | LoadStage], None]], None]

    def __call__(
        self, present: StageWorkings, computed: dict[int, int], load: LoadStage
    ) -> StageWorkings:
        """Load, and report. Raises UserError or StageError with one sentence."""
        kept = present.executor
        added = self._load(kept, load)
        if added.dtype != kept.dtype:
            numbers = f"{dtype_name(added.dtype)}, its stage in {dtype_name(kept.dtype)}"
            raise StageError(f"the layers that it was to take compute in {numbers}")
        if added.layers.start == kept.layers.stop:
            extension = Extension(present.sent.log, {})
            executor = ExtendedExecutor(kept, added, extension)
            old = present.sent
            sent = SentLog(old.packing, old.dtype, old.bytes_max)
        elif added.layers.stop == kept.layers.start:
            executor = ExtendedExecutor(added, kept, Extension(None, computed))
            sent = present.sent
        else:
            raise StageError(f"layers {load.work.layers} are not beside its own")
        more = self._working(replace(present, sent=sent), executor, added, load)
        self.report(loaded_stage(executor, more.links, present.cache.tiers_of(executor)))
        return more

    def _load(self, kept: Executor, load: LoadStage) -> StageExecutor:
        """Load layers within what the stage may take beside what it holds."""
        left_bytes = load.memory_bytes
        if load.memory_bytes is not None:
            held_bytes = sum(_held_bytes(part) for part in parts_of(kept))
            left_bytes = load.memory_bytes - held_bytes
            ram_bytes = load.cache_room.ram_bytes if load.cache_room is not None else 0
            mapped = weights_bytes(load.model) + ram_bytes
            limit_memory(load.work.device, load.memory_bytes, mapped, held_bytes)
        return load_stage(
            load.model,
            load.work,
            lambda fraction: self.report(LoadProgressed(fraction)),
            stages_here=load.stages_here,
            memory_bytes=left_bytes,
            self_test=False,
            tokenizer_of=self.tokenizer_of,
        )

    def _working(
        self,
        present: StageWorkings,
        executor: ExtendedExecutor,
        added: StageExecutor,
        load: LoadStage,
    ) -> StageWorkings:
        links, rules, recent = present.links, present.end_rules, present.recent
        if executor.is_head and not present.executor.is_head:
            name = f"layers {executor.layers.start}-{executor.layers.stop}"
            links = StageLinks.bind(name, load.address, True, self.report, load.keys)
            self.steer(links.handle)
        if executor.is_tail and not present.executor.is_tail:
            rules = EndRules(self.tokenizer_of(executor.description))
        recent = new_recent(executor, audited=recent.sketches is not None)
        swaps = _both(present.swaps, watch_of(added))
        return StageWorkings(executor, links, present.sent, rules, recent, swaps, present.cache)


def _held_bytes(part: StageExecutor) -> int:
    return part.weights_bytes + part.kv.tokens_capacity * part.kv_token_bytes


def _both(first: SwapWatch | None, second: SwapWatch | None) -> SwapWatch | None:
    """The watch over steps of both together."""
    if first is None or second is None:
        return None
    return SwapWatch(first.row_s + second.row_s, first.weights_bytes + second.weights_bytes)


def weights_bytes(directory: str) -> int:
    """Bytes of the files that a stage maps while it loads."""
    return sum(file.stat().st_size for file in Path(directory).glob("*.safetensors"))


def new_recent(executor: Executor, *, audited: bool) -> RecentWork:
    """Record of what a stage does from now on."""
    sketches = None
    if audited:
        models = [(part.model, part.layers) for part in parts_of(executor)]
        sketches = RowSketches(models, executor.hidden_size, executor.device)
    return RecentWork(executor.is_head, sketches)


def loaded_stage(
    executor: Executor, links: StageLinks, tiers: CacheTiers | None = None
) -> StageLoaded:
    """Report of a stage once its layers are there."""
    slower = executor.fallbacks
    keeping = [part.states for part in parts_of(executor) if part.state_slots is not None]
    return StageLoaded(
        port=links.ports[0],
        coordinator_port=links.ports[1] if executor.is_head else None,
        device=str(executor.device),
        dtype=dtype_name(executor.dtype),
        kv_tokens_capacity=executor.kv.tokens_capacity,
        weights_bytes=executor.weights_bytes,
        state_slots=executor.state_slots,
        kv_dtype=executor.kv_dtype,
        attention_fallback=slower.attention,
        decode_fallback=slower.decode,
        fusion_fallback=slower.fusion,
        swap_fallback=slower.swaps,
        tiers=tiers,
        state_snapshots=min((states.snapshots for states in keeping), default=0),
    )
