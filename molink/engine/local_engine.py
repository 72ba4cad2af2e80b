"""The engine of a stage's process: the device's layers behind the eight methods of a stage.

What passes the seam are numpy's rows and bytes of blocks, which are torch's memory seen in another
way: nothing is copied for it. A full device, one that swaps, layers taken from a lost neighbour and
sketches for audits are told apart here; the stage knows of none.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from molink.checkpoint.description import ModelDescription
from molink.engine.device.devices import host_is_short
from molink.engine.device.elements import dtype_name, elements_of, tensor_of
from molink.engine.device.memory_limit import limit_memory
from molink.engine.loading import load_stage
from molink.engine.memory.cached_blocks import ArrivingTogether, BlocksOfParts
from molink.engine.model.row_sketches import RowSketches
from molink.engine.step.card_retry import TensorInputs, computed
from molink.engine.step.card_swapping import SwapWatch, refuse_swapping, watch_of
from molink.engine.step.extended_stage import Executor, ExtendedExecutor, parts_of
from molink.engine.step.number_range import release_wiped
from molink.engine.step.stage import StageExecutor
from molink.engine.step.step_output import StepOutput
from molink.engine_protocol.values import (
    BlocksOut,
    EngineReport,
    Fed,
    Held,
    Prepared,
    RowsKept,
    StepInputs,
    StepResult,
)
from molink.errors import StageError
from molink.stage_protocol.messages import LoadStage, StageLoaded
from molink_scheduler.batch import Batch, CacheChange, Release
from molink_scheduler.request import ModelLimits
from molink_scheduler.resume import Resume
from molink_scheduler.stage.extension import Extension, HasRows
from molink_scheduler.stage.replay_log import SentRows

Progress = Callable[[float], None]
TokenizerOf = Callable[[ModelDescription], Any]


@dataclass(slots=True)
class LocalEngine:
    """Engine that computes layers on a device of this PC; see `engine_protocol.Engine`."""

    tokenizer_of: TokenizerOf = lambda description: None
    """Loads a checkpoint's tokenizer, if it has one."""
    executor: Executor = field(init=False)
    """Executor of its layers, once they are prepared."""
    _blocks: BlocksOfParts = field(init=False)
    _swaps: SwapWatch | None = field(init=False, default=None)
    """Watch over the steps of a card; None: there is none."""
    _sketches: RowSketches | None = field(init=False, default=None)
    """Sketches of rows; None: nobody wants them."""

    def prepare(self, load: LoadStage, progress: Progress, held: Held | None = None) -> Prepared:
        """Load layers, beside those that it has if the stage has `held` something. Raises UserError
        or StageError with one sentence."""
        if held is None:
            torch.set_num_threads(load.work.threads)
            self.executor = added = self._load(load, progress, ())
            self._swaps = watch_of(added)
        else:
            added = self._load(load, progress, parts_of(self.executor))
            self.executor = _beside(self.executor, added, held)
            self._swaps = _both(self._swaps, watch_of(added))
        self._blocks = BlocksOfParts(parts_of(self.executor))
        if self._sketches is not None:
            self._sketches = _sketches_of(self.executor)
        return self._prepared()

    def admit(
        self, batch: Batch, interrupt: Callable[[], None], make_room: Callable[[], None]
    ) -> Iterable[Fed]:
        """Be ready for the requests of a batch: layers that were taken compute what they lack."""
        stage = self.executor
        return (
            _fed(stage, batch, interrupt, make_room) if isinstance(stage, ExtendedExecutor) else ()
        )

    def step(
        self, inputs: StepInputs, interrupt: Callable[[], None], make_room: Callable[[], None]
    ) -> StepResult:
        """Compute one batch. Raises DeviceMemoryError where the device has no room, or swaps."""
        batch = inputs.batch
        if self._sketches is not None:
            self._sketches.begins(batch)
        given = TensorInputs(batch, inputs.token_ids, _joined(inputs))
        output = computed(self.executor, given, interrupt, make_room)
        if self._sketches is not None:
            self._sketches.ended(batch, time.monotonic())
        if self._swaps is not None and output.computed_s is not None:
            now = time.monotonic()
            refuse_swapping(self.executor, self._swaps, batch, output.computed_s, now)
        rows_TD = None if output.hidden_TD is None else elements_of(output.hidden_TD)
        drawn = output.drawn, output.scores, output.late
        return StepResult(rows_TD, *drawn, output.token_ids or (), output.computed_s)

    def release(self, release: Release, *, wiped: bool) -> None:
        """Forget a request; one that is unknown is fine."""
        if wiped:
            for part in parts_of(self.executor):
                release_wiped(part, release)
        self.executor.release(release)

    def rows_kept(self, resume: Resume, computed: dict[int, int], has_rows: HasRows) -> RowsKept:
        """Go on in the ring's next epoch. Layers that were taken beside others are fed here,
        whatever the stage as a whole holds."""
        stage = self.executor
        is_extended = isinstance(stage, ExtendedExecutor)
        missing = (
            stage.go_on(resume, computed, has_rows)
            if isinstance(stage, ExtendedExecutor)
            else resume.missing(computed, has_rows)
        )
        kept = resume.without(missing)
        keeps = dict(kept.requests if is_extended else kept.keeps)
        held = frozenset[int]().union(*(part.kv.holders() for part in parts_of(stage)))
        for part in parts_of(stage):
            for request_id, tokens in keeps.items():
                part.kv.shrink(request_id, tokens)  # More the head does not count.
        stays = kept.chains_stay and not is_extended
        return RowsKept(missing, held - keeps.keys(), stage.kv.cached_numbers(), stays)

    def blocks_out(self, change: CacheChange, *, copied: bool) -> Sequence[BlocksOut]:
        """Keep, drop and put away cached blocks; what is put away."""
        return self._blocks.blocks_out(change, copied=copied)

    def blocks_in(self, numbers: Sequence[int]) -> ArrivingTogether:
        """Let the cache hold free blocks under these numbers, to be filled by another thread."""
        return self._blocks.blocks_in(numbers)

    def report(self, *, sketched: bool) -> EngineReport:
        """What it holds; memory that nothing is in goes back to a PC that is short of it."""
        stage, is_short = self.executor, host_is_short()
        for part in parts_of(stage) if is_short else ():
            part.kv_memory.give_back(part.kv.free_runs())
        if sketched and self._sketches is None:
            self._sketches = _sketches_of(stage)
        return EngineReport(
            stage.kv.tokens_used,
            stage.kv.tokens_cached,
            None if stage.state_slots is None else stage.states.slots_used,
            is_short,
            () if self._sketches is None else self._sketches.done(),
        )

    def _load(
        self, load: LoadStage, progress: Progress, beside: Sequence[StageExecutor]
    ) -> StageExecutor:
        """Load layers within what the stage may take beside what it holds."""
        left_bytes = load.memory_bytes
        if left_bytes is not None:
            held_bytes = sum(map(_held_bytes, beside))
            ram_bytes = load.cache_room.ram_bytes if load.cache_room is not None else 0
            mapped_bytes = _weights_bytes(load.model) + ram_bytes
            limit_memory(load.work.device, left_bytes, mapped_bytes, held_bytes)
            left_bytes -= held_bytes
        return load_stage(
            load.model,
            load.work,
            progress,
            stages_here=load.stages_here,
            memory_bytes=left_bytes,
            self_test=load.work.layers[0] == 0 and not beside,
            tokenizer_of=self.tokenizer_of,
        )

    def _prepared(self) -> Prepared:
        stage, packed = self.executor, self._blocks.packed
        model = stage.description
        return Prepared(
            _loaded(stage),
            stage.layers,
            stage.is_head,
            stage.is_tail,
            stage.takes_token_ids,
            stage.hidden_size,
            stage.kv.blocks_total,
            packed.block_bytes,
            ModelLimits(model.model_len_max, model.vocabulary_size),
            self.tokenizer_of(model) if stage.is_tail else None,
        )


def _loaded(stage: Executor) -> StageLoaded:
    """Report of its layers, without the ports of their stage."""
    slower = stage.fallbacks
    keeping = [part.states for part in parts_of(stage) if part.state_slots is not None]
    return StageLoaded(
        port=0,
        coordinator_port=None,
        device=str(stage.device),
        dtype=dtype_name(stage.dtype),
        kv_tokens_capacity=stage.kv.tokens_capacity,
        weights_bytes=stage.weights_bytes,
        state_slots=stage.state_slots,
        kv_dtype=stage.kv_dtype,
        attention_fallback=slower.attention,
        decode_fallback=slower.decode,
        fusion_fallback=slower.fusion,
        swap_fallback=slower.swaps,
        state_snapshots=min((states.snapshots for states in keeping), default=0),
    )


def _joined(inputs: StepInputs) -> torch.Tensor | None:
    """Rows [T, D] of all pieces."""
    pieces = [tensor_of(piece_TD) for piece_TD in inputs.rows]
    return torch.cat(pieces) if len(pieces) > 1 else next(iter(pieces), None)


def _fed(
    stage: ExtendedExecutor,
    batch: Batch,
    interrupt: Callable[[], None],
    make_room: Callable[[], None],
) -> Iterator[Fed]:
    """Rows of what new layers lack of a batch's requests."""

    def compute(part: StageExecutor, piece: Batch, sent: SentRows) -> StepOutput:
        rows_TD = torch.frombuffer(bytearray(sent.rows), dtype=part.dtype)
        rows_TD = rows_TD.view(-1, part.hidden_size)
        inputs = TensorInputs(piece, sent.token_ids or None, rows_TD)
        return computed(part, inputs, interrupt, make_room)

    for piece, output in stage.feed(batch, compute):
        if output.hidden_TD is not None:
            yield Fed(piece, elements_of(output.hidden_TD), output.token_ids or ())


def _beside(kept: Executor, added: StageExecutor, held: Held) -> ExtendedExecutor:
    """Both as one stage. Raises StageError where they cannot be."""
    if added.dtype != kept.dtype:
        numbers = f"{dtype_name(added.dtype)}, its stage in {dtype_name(kept.dtype)}"
        raise StageError(f"the layers that it was to take compute in {numbers}")
    if added.layers.start == kept.layers.stop:
        return ExtendedExecutor(kept, added, Extension(held.log, {}))
    if added.layers.stop == kept.layers.start:
        return ExtendedExecutor(added, kept, Extension(None, held.computed))
    layers = (added.layers.start, added.layers.stop)
    raise StageError(f"layers {layers} are not beside its own")


def _held_bytes(part: StageExecutor) -> int:
    return part.weights_bytes + part.kv.tokens_capacity * part.kv_token_bytes


def _weights_bytes(directory: str) -> int:
    """Bytes of the files that a stage maps while it loads."""
    return sum(file.stat().st_size for file in Path(directory).glob("*.safetensors"))


def _both(first: SwapWatch | None, second: SwapWatch | None) -> SwapWatch | None:
    """The watch over steps of both together."""
    if first is None or second is None:
        return None
    return SwapWatch(first.row_s + second.row_s, first.weights_bytes + second.weights_bytes)


def _sketches_of(stage: Executor) -> RowSketches:
    models = [(part.model, part.layers) for part in parts_of(stage)]
    return RowSketches(models, stage.hidden_size, stage.device)
