"""Book of what a stage has been sent of each request, and whether it can compute what comes next.

The head keeps the ring's books, and what it plans always fits. A stage hears of it through
neighbours, who may be wrong: a batch that names a request nobody admitted, that leaves tokens out,
or that needs more KV than there is, must be found before anything of it is queued, because a step
under way cannot be taken back. So a stage keeps a small book of its own: per request, how many
tokens have come and how many are computed. The blocks that they take are counted in its ledger, and
where cached ones are stands in its table (`kv.block_table`). Asking the executor when a batch is
computed was rejected: by then its rows may share a step with others'.

What the head promises and this book holds it to: a request is admitted before its first span or
with it (a stage before may have cut the batch in between), its spans come without a gap, and it is
forgotten only when all of it that has come is computed. A request that was kept when the ring lost
a stage (`resume`) is admitted again, and goes on from the position that was kept.

Pure: says what is wrong, drops nothing itself.
"""

from collections.abc import Collection
from dataclasses import InitVar, dataclass, field, replace
from itertools import chain, islice

from molink_scheduler.batch import (
    MICRO_BATCH_COUNT_MAX,
    PREFILL,
    Admission,
    Batch,
    Release,
)
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from molink_scheduler.kv.capacity import RingCapacity, StageRoom
from molink_scheduler.kv.changes import (
    NOWHERE,
    AwayBlocks,
    CacheChange,
    FoldBlocks,
    KeepBlocks,
    KeptBlocks,
)
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.tiers import DEVICE
from molink_scheduler.request import ModelLimits
from molink_scheduler.resume import Resume
from molink_scheduler.stage.held_request import HeldRequest
from molink_scheduler.stage.kept_states import KeptStates
from molink_scheduler.timing.round_tracker import stamps_objection

MESSAGE_ROWS_MAX = 4096
"""Rows of one message. The head has at most `PREFILL_TOKENS_IN_FLIGHT_MAX` prompt rows under way,
2,048, and decodes one row for each of the 4,096 requests that a coordinator accepts."""


@dataclass(slots=True)
class StageBook:
    """The requests of one stage, as far as messages have told of them."""

    table: BlockTable
    """Table of the cached blocks."""
    limits: ModelLimits
    states: KeptStates = field(default_factory=KeptStates)
    """Snapshots of states, where layers keep some."""
    present_room: InitVar[StageRoom | None] = None  # None: as its ledger counts.
    room: StageRoom = field(init=False)
    """Blocks that it has places for, as many as its ledger counts."""
    _held: dict[int, HeldRequest] = field(init=False, default_factory=dict)
    _is_fresh: bool = field(init=False, default=False)

    @classmethod
    def of(
        cls,
        table: BlockTable,
        limits: ModelLimits,
        states_max: int,
        room: StageRoom | None = None,
    ) -> "StageBook":
        """Book of a stage in a ring that has room for so many states, where layers keep some."""
        kept_max = None if table.kv.state_slots is None else states_max
        return cls(table, limits, KeptStates(kept_max), room)

    def __post_init__(self, present_room: StageRoom | None) -> None:
        self.room = present_room or StageRoom(self.kv.blocks_total)

    @property
    def kv(self) -> KvLedger:
        """Ledger of the blocks in device memory."""
        return self.table.kv

    def computed_tokens(self) -> dict[int, int]:
        """Tokens of each request of which the stage holds KV."""
        return {request_id: held.computed_tokens for request_id, held in self._held.items()}

    def resume(
        self, resume: Resume, offered: frozenset[int] = frozenset(), away: AwayBlocks = NOWHERE
    ) -> None:
        """Begin an empty book with what the stage keeps from the epoch before; of the cached blocks
        `offered`, and of those `away`, what the head says."""
        self.table.resume(offered if resume.chains_stay else None, away, fresh=resume.fresh)
        self._is_fresh = resume.fresh
        for request_id, tokens in resume.keeps:
            self.kv.grow(request_id, tokens)
            blocks_tokens = blocks_for(tokens) * BLOCK_TOKENS
            self._held[request_id] = HeldRequest(
                None, False, PREFILL, tokens, tokens, blocks_tokens
            )

    def objection(self, batch: Batch) -> str | None:
        """Why the batch cannot be computed here after all that has come before; None: it can."""
        if (objection := _shape_objection(batch)) is not None:
            return objection
        new: dict[int, HeldRequest] = {}
        if batch.admissions:
            if (objection := self._admission_objection(batch)) is not None:
                return objection
            new = {one.request_id: self._admitted(one, batch) for one in batch.admissions}
        return self.states.kept_objection(batch) or self._span_objection(batch, new)

    def received(self, batch: Batch) -> None:
        """Note a batch against which there is no objection; it waits for the device now."""
        for admission in batch.admissions:
            before = self._held.get(admission.request_id)
            if before is not None and before.is_refill:
                self.table.leave(before.cached)  # It begins with more of them.
            self._held[admission.request_id] = held = self._admitted(admission, batch)
            held.is_waiting = True
            if admission.cached:
                held.cached = tuple(range(one, one + blocks) for one, blocks in admission.cached)
                self.table.begin(admission.request_id, held.cached)
        all_held, batch_class = self._held, batch.batch_class
        for span in batch.spans:
            held, end = all_held[span.request_id], span.end
            held.received_tokens, held.latest, held.drafts = end, batch_class, len(span.drafts)
            if end > held.blocks_tokens:
                self.kv.grow(span.request_id, end)
                held.blocks_tokens = blocks_for(end) * BLOCK_TOKENS

    def computed(self, batch: Batch) -> None:
        """Note that a batch, or a piece of some, was computed."""
        for admission in batch.admissions:
            self._held[admission.request_id].is_waiting = False
        all_held = self._held
        for span in batch.spans:
            all_held[span.request_id].computed_tokens = span.end
        self.states.kept(batch)

    def release_objection(self, release: Release) -> str | None:
        """Why a request cannot be forgotten now; one that is unknown can."""
        held = self._held.get(release.request_id)
        if held is None or held.is_idle:
            return None
        return f"request {release.request_id} is to be forgotten while something of it waits"

    def released(self, release: Release) -> None:
        """Note that a request was forgotten."""
        held = self._held.pop(release.request_id, None)
        self.table.leave(() if held is None else held.cached)
        self.kv.release(release.request_id)

    def offer(self, blocks: int) -> None:
        """Offer so many blocks to the ring from now on."""
        self.room.offer(blocks)
        self.kv.resize(self.room.blocks)

    def capacity_objection(self, capacity: RingCapacity) -> str | None:
        """Why the head cannot count with a capacity; None: it can."""
        if capacity.blocks <= self.kv.blocks_total:
            return None
        return f"the head counts with {capacity.blocks} KV blocks, {self.kv.blocks_total} are here"

    def counted(self, capacity: RingCapacity) -> int:
        """Note with which capacity the head counts: how many blocks are kept."""
        self.room.counted(capacity)
        self.kv.resize(self.room.blocks)
        return self.room.blocks

    def change_objection(self, change: CacheChange) -> str | None:
        """Why the cache cannot change so; None: it can."""
        objection: str | None = None
        if isinstance(change, KeepBlocks):
            objection = self._keep_objection(change.kept)
        elif isinstance(change, FoldBlocks):
            objection = self._fold_objection(change)
        return objection or self.table.objection(change)

    def changed(self, change: CacheChange) -> None:
        """Note a change of the cache against which there is no objection."""
        self.table.change(change)
        for kept in change.kept if isinstance(change, KeepBlocks) else ():
            self._held[kept.request_id].cached += (kept.numbers,)
        if isinstance(change, FoldBlocks):
            held = self._held[change.request_id]
            self.table.leave(held.cached)
            held.cached, held.is_folded = (), True

    def _admitted(self, admission: Admission, batch: Batch) -> HeldRequest:
        """A new request, or one that was kept, as the batch that admits it finds it."""
        held = self._held.get(admission.request_id) if admission.kept_tokens else None
        if held is None:
            begun, refills = admission.cached_tokens, batch.replay and self._is_fresh
            held = HeldRequest(admission, False, batch.batch_class, begun, begun, begun)
            held.is_refill = refills and not admission.kept_tokens
            return held
        held = replace(held, admission=admission, received_tokens=admission.kept_tokens)
        return replace(held, computed_tokens=min(held.computed_tokens, held.received_tokens))

    # -- objections -----------------------------------------------------------------------------

    def _admission_objection(self, batch: Batch) -> str | None:
        new_count = sum(
            not admission.kept_tokens and admission.request_id not in self._held
            for admission in batch.admissions
        )
        refilled = set[int]()
        """Blocks refilled by this batch's admissions so far."""
        if len(self._held) + new_count > self.kv.requests_max:
            return f"it admits more requests than the {self.kv.requests_max} that have room"
        for admission in batch.admissions:
            held, kept = self._held.get(admission.request_id), admission.kept_tokens
            if held is not None and not kept:
                if (objection := self._refill_objection(held, admission)) is not None:
                    return objection
                refilled |= self.table.owed(admission.cached_numbers)
            if kept and (held is None or not held.is_kept_up_to(kept) or admission.cut.is_cut):
                return f"{kept} tokens of request {admission.request_id} were not kept"
            if (objection := self._begun_objection(admission, refilled)) is not None:
                return objection
            if not self._is_possible(admission):
                return f"request {admission.request_id} is none of this model's"
        return None

    def _refill_objection(self, held: HeldRequest, admission: Admission) -> str | None:
        """Why a request that is here cannot be one for which cached blocks were rebuilt: all that
        has come are its first ones, of which the stage lacks those behind the ones that it has."""
        numbers = admission.cached_numbers
        begun = [number for run in held.cached for number in run]
        blocks, rest = divmod(held.received_tokens, BLOCK_TOKENS)
        first = list(islice(numbers, blocks))
        rebuilt = first[len(begun) :]
        if (
            held.is_refill
            and not rest
            and first[: len(begun)] == begun
            and rebuilt
            and len(first) == blocks
            and self.table.owed(rebuilt) == set(rebuilt)
        ):
            return None
        return f"request {admission.request_id} is admitted twice"

    def _begun_objection(self, admission: Admission, refilled: Collection[int]) -> str | None:
        if not admission.begins:
            return None
        blocks, known = admission.cached_blocks, self.table.count(DEVICE) + len(refilled)
        is_long = blocks * BLOCK_TOKENS >= admission.tokens_expected or blocks > known
        if is_long or not admission.cut.may_share(blocks):
            return f"request {admission.request_id} is to begin with {blocks} cached blocks"
        if admission.kept_tokens or not self.table.has(admission.cached_numbers, refilled):
            return (
                f"request {admission.request_id} is to begin with blocks that are not cached here"
            )
        return self.states.begun_objection(admission)

    def _keep_objection(self, keep: Collection[KeptBlocks]) -> str | None:
        """Why blocks cannot be cached so; a change names those of a request as one run."""
        if len({kept.request_id for kept in keep}) < len(keep):
            return "blocks of a request are to be cached twice at once"
        for kept in keep:
            if (objection := self._kept_objection(kept)) is not None:
                return objection
        return None

    def _kept_objection(self, kept: KeptBlocks) -> str | None:
        held, end = self._held.get(kept.request_id), kept.first_block + kept.blocks
        if held is None or kept.blocks < 1 or end * BLOCK_TOKENS > held.computed_tokens:
            return f"blocks of request {kept.request_id} are to be cached that are not computed"
        is_cut = held.admission is not None and not held.admission.cut.may_share(end)
        if is_cut or held.is_folded:
            return f"blocks of request {kept.request_id} are to be cached that it cuts"
        if kept.blocks > self.kv.own_blocks(kept.request_id):
            return f"blocks of request {kept.request_id} are to be cached twice"
        return None

    def _fold_objection(self, fold: FoldBlocks) -> str | None:
        """Why a request cannot have its first blocks in fewer; it has all that its cut left."""
        held, blocks, into = self._held.get(fold.request_id), fold.blocks, fold.into
        if held is None or not held.is_cut or not held.is_idle or held.is_folded:
            return f"request {fold.request_id} is to be folded, and is not cut or was folded"
        assert held.admission is not None, "who is cut was admitted"
        if blocks != held.admission.cut.whole_blocks or into < self.kv.folded_blocks(blocks):
            return f"{blocks} blocks of request {fold.request_id} are to be folded into {into}"
        needed = self.kv.blocks_to_fold(fold.request_id, blocks, into)
        if needed <= self.kv.blocks_free:
            return None
        return f"it needs {needed} KV blocks to fold a request, {self.kv.blocks_free} are free"

    def _is_possible(self, admission: Admission) -> bool:
        lengths = (1, admission.prompt_tokens, admission.tokens_expected)
        return (
            lengths == tuple(sorted(lengths))
            and admission.tokens_expected <= self.limits.sequence_tokens_max
            and self.limits.has_token_ids(
                chain(admission.prompt, admission.output, admission.sampling.named)
            )
        )

    def _span_objection(self, batch: Batch, new: dict[int, HeldRequest]) -> str | None:
        blocks_missing, batch_class = 0, batch.batch_class
        known = {**self._held, **new} if new else self._held
        for span in batch.spans:
            held = known.get(span.request_id)
            if held is None:
                return f"request {span.request_id} was never admitted"
            if not held.goes_on_with(span, batch_class):
                expected = held.admission.tokens_expected if held.admission is not None else "some"
                return (
                    f"request {span.request_id} cannot go on from {span.start} to {span.end}, "
                    f"{held.received_tokens} of {expected} tokens have come"
                )
            if span.drafts and not self.limits.has_token_ids(span.drafts):
                return f"drafts of request {span.request_id} are not in the vocabulary"
            if span.end > held.blocks_tokens:
                blocks_missing += blocks_for(span.end - held.blocks_tokens)
        if blocks_missing <= self.kv.blocks_free:
            return None
        return f"it needs {blocks_missing} KV blocks, {self.kv.blocks_free} are free"


def _shape_objection(batch: Batch) -> str | None:
    if not batch.spans:
        return "it has no rows"
    if batch.tokens > MESSAGE_ROWS_MAX:
        return f"it has {batch.tokens} rows, more than the {MESSAGE_ROWS_MAX} of a message"
    if not -1 <= batch.micro_batch < MICRO_BATCH_COUNT_MAX:
        return f"there is no micro-batch {batch.micro_batch}"
    if (objection := stamps_objection(batch.stamps)) is not None:
        return objection
    for values in (batch.spans, batch.admissions):
        if len(values) > 1 and len({value.request_id for value in values}) < len(values):
            return "it names a request twice"
    return None
