"""The engine of a stage's process: the device's layers behind the eleven methods of a stage.

What passes the seam are numpy's rows and bytes of blocks, which are torch's memory seen in another
way: nothing is copied for it. A full device, one that swaps, layers taken from a lost neighbour and
sketches for audits are told apart here; the stage knows of none.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from molink.checkpoint.description import ModelDescription
from molink.engine.device.devices import free_memory_bytes, host_is_short
from molink.engine.device.elements import elements_of, tensor_of
from molink.engine.device.memory_limit import limit_memory
from molink.engine.loading import load_apart, load_stage
from molink.engine.memory.cached_blocks import ArrivingTogether, BlocksOfParts
from molink.engine.memory.leaving_blocks import LeavingBlocks
from molink.engine.memory.lent_blocks import LentBlocks
from molink.engine.step.card_retry import TensorInputs, computed
from molink.engine.step.extended_stage import Executor, parts_of
from molink.engine.step.lending import (
    Lending,
    give_back,
    lend,
    lender_health,
    lending_by,
    lose_lender,
)
from molink.engine.step.number_range import release_wiped
from molink.engine.step.prepared import prepared
from molink.engine.step.stage import StageExecutor
from molink.engine.step.taken_layers import both, fed, goes_on
from molink.engine.step.watched_steps import WatchedSteps
from molink.engine_protocol.computing import Computing
from molink.engine_protocol.lender import Lender
from molink.engine_protocol.values import (
    BlockBytes,
    EngineReport,
    Fed,
    Held,
    Prepared,
    RowsKept,
    StepInputs,
    StepResult,
)
from molink.errors import LenderLostError, UnsupportedModelError, UserError
from molink.hardware.host import read_main_memory
from molink.stage_protocol.cache_room import CacheRoom
from molink.stage_protocol.draft_model import DraftModel
from molink.stage_protocol.messages import Borrow, LoadStage, StageWork
from molink_scheduler.batch import Batch, Release
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from molink_scheduler.kv.capacity import BLOCKS_HERE_MIN
from molink_scheduler.kv.changes import OutwardChange
from molink_scheduler.resume import Resume
from molink_scheduler.stage.extension import HasRows
from molink_scheduler.units import gb_text

log = logging.getLogger(__name__)

PARTS_MAX = 16
"""Parts of a stage that have a lender each: a neighbour's layers are taken once, seldom twice."""

STARTS_MAX = 3
"""Tries to start a lender: a PC without memory ends each of them."""

LENT_AGAIN_S = 0.3
"""How long a stage that enters an epoch waits for what takes a lost lender's place: a fork is there
in a tenth of it. Without, what is longer than its own room waits until its offer goes round."""

Progress = Callable[[float], None]
TokenizerOf = Callable[[ModelDescription], Any]


@dataclass(slots=True)
class LocalEngine:
    """Engine that computes layers on a device of this PC; see `engine_protocol.Engine`."""

    tokenizer_of: TokenizerOf = lambda description: None
    """Loads a checkpoint's tokenizer, if it has one."""
    lender_of: Callable[[StageWork], Lender] | None = None
    """Starts a lender for a stage's work, in this PC or by the work's lease in its LAN."""
    computing_of: Callable[[], Computing] | None = None
    """Makes the link to a process that has a stage's weights, where this one has its KV alone."""
    executor: Executor = field(init=False)
    """Executor of its layers, once they are prepared."""
    _blocks: BlocksOfParts = field(init=False)
    _lent: dict[range, tuple[StageWork, int]] = field(init=False, default_factory=dict)
    """Work and places of the lenders of parts, by their layers."""
    _ready: deque[tuple[StageExecutor, Lending]] = field(
        init=False, default_factory=lambda: deque(maxlen=PARTS_MAX)
    )
    """Lenders that are there, and not used yet."""
    _work: StageWork = field(init=False)
    """What it has loaded last."""
    _early: list[Lender] = field(init=False, default_factory=list)
    """Lender that starts while layers load."""
    _steps: WatchedSteps = field(init=False)

    def prepare(self, load: LoadStage, progress: Progress, held: Held | None = None) -> Prepared:
        """Load layers, beside those that it has if the stage has `held` something. Raises UserError
        or StageError with one sentence."""
        work = self._work = load.work
        if self.lender_of is not None and work.kv_host_tokens and work.lan_lease is None:
            with suppress(OSError):
                self._early = [self.lender_of(work)]
        if held is None:
            torch.set_num_threads(load.work.threads)
            self.executor = self._load(load, progress, ())
            self._steps = WatchedSteps(self.executor)
        else:
            added = self._load(load, progress, parts_of(self.executor))
            self.executor = both(self.executor, added, held)
            self._steps.extended(self.executor, added)
        self._blocks = BlocksOfParts(parts_of(self.executor))
        self._lend(load)
        model, is_tail = self.executor.description, self.executor.is_tail
        tokenizer = self.tokenizer_of(model) if is_tail else None
        return prepared(self.executor, self._blocks.packed.block_bytes, tokenizer)

    def admit(
        self, batch: Batch, interrupt: Callable[[], None], make_room: Callable[[], None]
    ) -> Iterable[Fed]:
        """Be ready for the requests of a batch: layers that were taken compute what they lack."""
        return fed(self.executor, batch, interrupt, make_room)

    def step(
        self, inputs: StepInputs, interrupt: Callable[[], None], make_room: Callable[[], None]
    ) -> StepResult:
        """Compute one batch. Raises DeviceMemoryError where the device has no room, or swaps."""
        batch = inputs.batch
        self._steps.begins(batch)
        given = TensorInputs(batch, inputs.token_ids, _joined(inputs))
        output = computed(self.executor, given, interrupt, make_room)
        self._steps.ended(batch, output)
        rows_TD = None if output.hidden_TD is None else elements_of(output.hidden_TD)
        drawn = output.drawn, output.scores, output.late
        ids, home = output.token_ids or (), (output.drafts, output.forced)
        return StepResult(rows_TD, *drawn, ids, output.computed_s, *home)

    def release(self, release: Release, *, wiped: bool) -> None:
        """Forget a request; one that is unknown is fine."""
        if wiped:
            for part in parts_of(self.executor):
                release_wiped(part, release)
        self.executor.release(release)

    def rows_kept(self, resume: Resume, computed: dict[int, int], has_rows: HasRows) -> RowsKept:
        """Go on in the ring's next epoch with KV of the rows that `resume` lists. What a lender has
        taken with it is not there, whatever was computed."""
        stage, parts = self.executor, parts_of(self.executor)
        losers = [part for part in parts if lose_lender(part)]
        starting = [self._lend_again(part) for part in losers if part.layers in self._lent]
        lost = frozenset[int]().union(*(part.kv.lost_requests() for part in parts))
        computed = {one: tokens for one, tokens in computed.items() if one not in lost}
        missing, keeps = goes_on(stage, resume, computed, has_rows)
        held = frozenset[int]().union(*(part.kv.holders() for part in parts))
        for part in parts:
            for request_id, tokens in keeps.items():
                part.kv.shrink(request_id, tokens)  # More the head does not count.
        stays = resume.chains_stay and len(parts) == 1
        if losers:
            self._await_lenders(starting)
        blocks = stage.kv.blocks_total if losers else None
        return RowsKept(missing, held - keeps.keys(), stage.kv.cached_numbers(), stays, blocks)

    def blocks_out(self, change: OutwardChange) -> LeavingBlocks | None:
        """Keep, drop and put away cached blocks; what is put away from the device's memory."""
        return self._blocks.blocks_out(change)

    def blocks_copied(self, numbers: Sequence[int]) -> BlockBytes | None:
        """Copies of cached blocks, which stay; None where one lies at a lender."""
        return self._blocks.blocks_copied(numbers)

    def blocks_in(self, numbers: Sequence[int]) -> ArrivingTogether:
        """Let the cache hold free blocks under these numbers, to be filled by another thread."""
        return self._blocks.blocks_in(numbers)

    def hold(self, blocks: int) -> None:
        """Have places for so many KV blocks; the memory of free ones goes back to the PC."""
        for part in parts_of(self.executor):
            is_less = blocks < part.kv.blocks_total
            part.kv.resize(blocks)
            if is_less and not part.moving.any_leaves:
                part.kv_memory.give_back(part.kv.free_runs())

    def borrow(self, command: Borrow) -> None:
        """Have KV lie at this lender as well, from when it answers on, where none holds any; else
        it is the next where that one is lost. The same lender for fewer tokens: it wants the others
        back."""
        parts = parts_of(self.executor)
        if self.lender_of is None or len(parts) > 1:
            return  # A lease has one process at the other end, and so one part of a stage.
        (part,) = parts
        if self._is_recalled(part, command):
            return
        places = _places(part, command.kv_host_tokens, command.lan_lease.places_bytes)
        if not places or _blocks_here(part) < BLOCKS_HERE_MIN:
            return
        tokens, lease = command.kv_host_tokens, command.lan_lease
        work = replace(self._work, kv_host_tokens=tokens, lan_lease=lease)
        self._lent[part.layers] = work, places
        if part.lending is None:
            self._lend_again(part)

    def _is_recalled(self, part: StageExecutor, command: Borrow) -> bool:
        """Note how much less its lender lets it keep, if this is what a command says."""
        work, places = self._lent.get(part.layers, (self._work, 0))
        left = command.kv_host_tokens // BLOCK_TOKENS
        lease = work.lan_lease
        if left >= places or lease is None or lease.lease != command.lan_lease.lease:
            return False
        self._lent[part.layers] = replace(work, kv_host_tokens=left * BLOCK_TOKENS), left
        if not left:
            del self._lent[part.layers]
        if part.lending is not None:
            part.lending.recall(left)
        return True

    def report(self, *, watched: bool) -> EngineReport:
        """What it holds; memory that nothing is in goes back to a PC that is short of it."""
        self._take_lenders()
        stage, is_short = self.executor, host_is_short()
        going_on = [one for one in parts_of(stage) if not give_back(one)]
        lent = [one.lending for one in going_on if one.lending is not None]
        for part in parts_of(stage) if is_short else ():
            if not part.moving.any_leaves:  # What stands in free blocks is still to be copied.
                part.kv_memory.give_back(part.kv.free_runs())
        return EngineReport(
            stage.kv.tokens_used,
            stage.kv.tokens_cached,
            None if stage.state_slots is None else len(stage.kv.holders()),
            is_short,
            self._steps.done(begin=watched),
            min([stage.kv.blocks_total, *(one.blocks_offered for one in lent)]),
            any(one.lender.is_lost for one in lent),
            lender_health(parts_of(stage)),
        )

    def _lend(self, load: LoadStage) -> None:
        """Let what the device has no room for lie at lenders, within what the owner lends of the
        PC's memory, or what another PC lends."""
        parts = [part for part in parts_of(self.executor) if part.lending is None]
        if self.lender_of is None or not load.work.kv_host_tokens:
            return
        lease = load.work.lan_lease
        room_bytes = _room_for_kv(load.cache_room) if lease is None else lease.places_bytes
        for part in parts:
            if part.kv.blocks_total < BLOCKS_HERE_MIN:
                log.warning(
                    "No lender holds KV of requests: what is written lies on the device, which "
                    "needs room for %d tokens, and has it for %d.",
                    *(BLOCKS_HERE_MIN * BLOCK_TOKENS, part.kv.tokens_capacity),
                )
                continue
            places = _places(part, load.work.kv_host_tokens, room_bytes)
            if places < blocks_for(load.work.kv_host_tokens):
                log.warning(
                    "A lender holds %d of the %d tokens of KV that --kv-host-tokens asks for: "
                    "%s of memory are lent.",
                    *(places * BLOCK_TOKENS, load.work.kv_host_tokens, gb_text(room_bytes)),
                )
            if places:
                self._lent[part.layers] = (load.work, places)
                self._lend_of(part, load.work, places)
        self._early.clear()
        self._take_lenders()

    def _lend_of(self, part: StageExecutor, work: StageWork, places: int) -> None:
        """Start a lender of a part's blocks, which `_ready` has once it answers; one that is lost
        before it does is tried again."""
        assert self.lender_of is not None
        for tries_left in reversed(range(STARTS_MAX)):
            try:
                lender = self._early.pop() if self._early else self.lender_of(work)
                self._ready.append((part, lending_by(part, lender, places)))
                return
            except (UnsupportedModelError, LenderLostError, OSError) as error:
                if isinstance(error, UnsupportedModelError) or not tries_left:
                    log.warning("No lender holds KV of requests: %s.", error)
                    return

    def _lend_again(self, part: StageExecutor) -> threading.Thread:
        """Start a lender for a part that has none, beside the loop."""
        arguments = (part, *self._lent[part.layers])
        thread = threading.Thread(target=self._lend_of, args=arguments, name="lender", daemon=True)
        thread.start()
        return thread

    def _await_lenders(self, starting: Sequence[threading.Thread]) -> None:
        """Have those that are soon there; others come later, and are offered then."""
        deadline = time.monotonic() + LENT_AGAIN_S
        for thread in starting:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._take_lenders()

    def _take_lenders(self) -> None:
        while self._ready:
            part, lending = self._ready.popleft()
            if part.lending is not None:
                continue
            if lending.places > self._lent.get(part.layers, (None, 0))[1]:
                lending.lender.keep(0, ())  # It was recalled as it came.
                continue
            lend(part, lending)
            for one in parts_of(self.executor):
                if isinstance(one.kv, LentBlocks):  # The ring counted less: all of them held that.
                    one.kv.resize(one.kv.room)

    def _load(
        self, load: LoadStage, progress: Progress, beside: Sequence[StageExecutor]
    ) -> StageExecutor:
        """Load layers within what the stage may take beside what it holds."""
        left_bytes = load.memory_bytes
        if left_bytes is not None:
            held_bytes = sum(map(_held_bytes, beside))
            mapped_bytes = _weights_bytes(load.model) + _cache_bytes(load.cache_room)
            limit_memory(load.work.device, left_bytes, mapped_bytes, held_bytes)
            left_bytes -= held_bytes
        if load.attention_device:
            if self.computing_of is None:
                raise UserError("--attention-device: on Linux alone weights lie apart from KV")
            return load_apart(
                load,
                self.computing_of(),
                progress,
                memory_bytes=left_bytes,
                tokenizer_of=self.tokenizer_of,
            )
        return load_stage(
            load.model,
            load.work,
            progress,
            stages_here=load.stages_here,
            memory_bytes=left_bytes,
            self_test=load.work.layers[0] == 0 and not beside,
            tokenizer_of=self.tokenizer_of,
            assistant=_assistant(load.drafter),
        )


def _assistant(drafter: DraftModel | None) -> str | None:
    """Folder of what drafts over the stage's own KV; None: nothing does."""
    is_wanted = drafter is not None and drafter.reads_from is not None and not drafter.refused
    return drafter.model if drafter is not None and is_wanted else None


def _joined(inputs: StepInputs) -> torch.Tensor | None:
    """Rows [T, D] of all pieces."""
    pieces = [tensor_of(piece_TD) for piece_TD in inputs.rows]
    return torch.cat(pieces) if len(pieces) > 1 else next(iter(pieces), None)


def _room_for_kv(room: CacheRoom | None) -> int:
    """Bytes of the PC's memory that may hold KV of requests: what its owner lends, where nobody has
    said how much half of what is idle."""
    if room is None:
        return 0
    idle = max(0, read_main_memory().idle_bytes) // room.stages
    return idle // 2 if room.ram_bytes is None else min(room.ram_bytes, idle)


def _places(part: StageExecutor, tokens: int, room_bytes: int) -> int:
    """Blocks of so many tokens that a lender has room for."""
    return min(blocks_for(tokens), room_bytes // (part.kv_token_bytes * BLOCK_TOKENS))


def _blocks_here(part: StageExecutor) -> int:
    kv = part.kv
    return kv.blocks_here if isinstance(kv, LentBlocks) else kv.blocks_total


def _held_bytes(part: StageExecutor) -> int:
    kv_bytes = part.kv.tokens_capacity * part.kv_token_bytes
    return part.weights_bytes + kv_bytes + part.windows.held_bytes


def _cache_bytes(room: CacheRoom | None) -> int:
    """Bytes of host memory that cached KV may take, at most."""
    if room is None:
        return 0
    return free_memory_bytes() if room.ram_bytes is None else room.ram_bytes


def _weights_bytes(directory: str) -> int:
    """Bytes of the files that a stage maps while it loads."""
    return sum(file.stat().st_size for file in Path(directory).glob("*.safetensors"))
