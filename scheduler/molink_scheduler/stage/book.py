"""What has a stage been sent of each request, and can it compute what comes next?

The head keeps the ring's books, and what it plans always fits. A stage hears of it through
neighbours, who may be wrong: a batch that names a request nobody admitted, that leaves tokens out,
or that needs more KV than there is, must be found before anything of it is queued, because a step
under way cannot be taken back. So a stage keeps a small book of its own: per request, how many
tokens have come and how many are computed, and the blocks that they take (`KvLedger`). Asking the
executor when a batch is computed was rejected: by then its rows may share a step with others'.

What the head promises and this book holds it to: a request is admitted before its first span or
with it (a stage before may have cut the batch in between), its spans come without a gap, and it is
forgotten only when all of it that has come is computed. A request that was kept when the ring lost
a stage (`resume`) is admitted again, and goes on from the position that was kept.

Pure: says what is wrong, drops nothing itself.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from molink_scheduler.batch import (
    MICRO_BATCH_COUNT_MAX,
    PREFILL,
    Admission,
    Batch,
    CacheChange,
    Fetched,
    KeptBlocks,
    Release,
)
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.request import ModelLimits
from molink_scheduler.resume import Positions, Resume
from molink_scheduler.stage.away import AwayBook
from molink_scheduler.stage.held_request import HeldRequest
from molink_scheduler.timing.round_tracker import stamps_objection

MESSAGE_ROWS_MAX = 4096
"""Rows of one message. The head has at most `PREFILL_TOKENS_IN_FLIGHT_MAX` prompt rows under way,
2,048, and decodes one row for each of the 4,096 requests that a coordinator accepts."""


@dataclass(slots=True)
class StageBook:
    """The requests of one stage, as far as messages have told of them."""

    kv: KvLedger
    limits: ModelLimits
    away: AwayBook = field(default_factory=lambda: AwayBook(CacheTiers()))
    """Blocks cached below device memory."""
    _held: dict[int, HeldRequest] = field(init=False, default_factory=dict)
    snapshots: int = 0
    """Snapshots of states that there is room for."""
    _cached: dict[int, int] = field(init=False, default_factory=dict)
    """Number of requests that use each cached block, by the block's number."""
    _snapshots: set[int] = field(init=False, default_factory=set)
    """Snapshots that were made."""
    _offered: frozenset[int] | None = field(init=False, default=None)
    """Cached blocks of the epoch before, until the head says which stay; None: it has said so, or
    never will."""
    _is_fresh: bool = field(init=False, default=False)
    _lacking: set[int] = field(init=False, default_factory=set)
    """Cached blocks that the other stages hold and this fresh stage lacks."""

    @property
    def lacking(self) -> frozenset[int]:
        """Cached blocks that others hold and this stage, a fresh one, does not yet."""
        return frozenset(self._lacking)

    def computed_tokens(self) -> dict[int, int]:
        """Tokens of each request of which the stage holds KV."""
        return {request_id: held.computed_tokens for request_id, held in self._held.items()}

    def resume(self, resume: Resume, offered: frozenset[int] = frozenset()) -> None:
        """Begin an empty book with what the stage keeps from the epoch before; of the cached blocks
        `offered` what the head says."""
        self._offered = offered if resume.chains_stay else None
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
        return self._snapshot_objection(batch) or self._span_objection(batch, new)

    def received(self, batch: Batch) -> None:
        """Note a batch against which there is no objection; it waits for the device now."""
        for admission in batch.admissions:
            before = self._held.get(admission.request_id)
            if before is not None and before.is_refill:
                self._use(before.cached, -1)  # It begins with more of them.
            self._held[admission.request_id] = held = self._admitted(admission, batch)
            held.is_waiting = True
            self._begin_cached(held, admission)
        for span in batch.spans:
            held = self._held[span.request_id]
            held.received_tokens, held.latest = span.end, batch.batch_class
            if span.end > held.blocks_tokens:
                self.kv.grow(span.request_id, span.end)
                held.blocks_tokens = blocks_for(span.end) * BLOCK_TOKENS

    def computed(self, batch: Batch) -> None:
        """Note that a batch, or a piece of some, was computed."""
        for admission in batch.admissions:
            self._held[admission.request_id].is_waiting = False
        for span in batch.spans:
            self._held[span.request_id].computed_tokens = span.end
        self._snapshots.update(kept.snapshot for kept in batch.snapshots)

    def release_objection(self, release: Release) -> str | None:
        """Why a request cannot be forgotten now; one that is unknown can."""
        held = self._held.get(release.request_id)
        if held is None or held.is_idle:
            return None
        return f"request {release.request_id} is to be forgotten while something of it waits"

    def released(self, release: Release) -> None:
        """Note that a request was forgotten."""
        held = self._held.pop(release.request_id, None)
        self._use(() if held is None else held.cached, -1)
        self.kv.release(release.request_id)

    def change_objection(self, change: CacheChange) -> str | None:
        """Why the cache cannot change so; None: it can."""
        if change.retain is not None:
            return self._retain_objection(change.retain)
        if (objection := self._keep_objection(change.keep)) is not None:
            return objection
        known = len(self._cached) + len(self._lacking) + len(self.away.tier_of)
        runs = (*change.drop, *change.to_host, *change.to_file, *change.fetch)
        if sum(blocks for _, blocks in runs) > known:
            return "more blocks are to be dropped or moved than are cached"
        named = [number for first, blocks in runs for number in range(first, first + blocks)]
        if len(set(named)) < len(named):
            return "a cached block is named twice"
        given_up = self.away.reading.intersection(change.dropped)
        for number in named:
            is_lacking, uses = number in self._lacking, int(number in given_up)  # Its reader's.
            if (
                self._cached.get(number) != uses
                and number not in self.away.tier_of
                and not is_lacking
            ):
                return f"cached block {number} is to go, and is not here or in use"
        return self.away.objection(change, self.kv.blocks_free)

    def changed(self, change: CacheChange) -> None:
        """Note a change of the cache against which there is no objection."""
        if change.retain is not None:
            self._retain(change.retained)
        for kept in change.keep:
            held = self._held[kept.request_id]
            held.cached += (kept.numbers,)
            self._cached.update(dict.fromkeys(kept.numbers, 1))
            self.kv.keep(kept.request_id, kept.blocks)
        for number in change.dropped:
            self._leave(number)
        self.away.give_up(frozenset(change.dropped))
        for tier, numbers in change.put_away:
            for number in numbers:
                self._leave(number)
                self.away.put(number, tier)
        if change.fetch:
            for number in change.fetched:
                self.away.take(number)
                self._cached[number] = 1  # The reader's, until it has it.
            self.kv.bring_back(len(change.fetched))
            self.away.begin(change)

    def _leave(self, number: int) -> None:
        """A cached block is no more where it was."""
        if number in self._lacking:
            self._lacking.discard(number)
        elif not self.away.take(number):
            del self._cached[number]
            self.kv.drop(1)

    def read(self, fetched: Fetched) -> Fetched | None:
        """Note that the stage has read its blocks of a fetch; the answer to pass on."""
        numbers, answer = self.away.read(fetched)
        for number in numbers:
            self._cached[number] -= 1
        return answer

    def _begin_cached(self, held: HeldRequest, admission: Admission) -> None:
        """A request begins with cached blocks; those that were rebuilt for it are cached now."""
        if not admission.cached:
            return
        held.cached = tuple(range(first, first + blocks) for first, blocks in admission.cached)
        lacking = self._lacking.intersection(admission.cached_numbers)
        self._lacking -= lacking
        self._cached.update(dict.fromkeys(lacking, 0))
        self._use(held.cached, 1)
        if lacking:
            self.kv.adopt(admission.request_id, admission.cached_blocks)
        else:
            self.kv.begin(admission.request_id, admission.cached_blocks)

    def _retain(self, numbers: Iterable[int]) -> None:
        """Keep these blocks: they are all that is cached."""
        self._offered = None
        if self._is_fresh:
            self._lacking.update(numbers)
        else:
            self._cached.update(dict.fromkeys(numbers, 0))
            self.kv.bring_back(len(self._cached))

    def _use(self, cached: Iterable[range], more: int) -> None:
        """Count so many more requests that use these cached blocks."""
        for numbers in cached:
            for number in numbers:
                self._cached[number] += more

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
                refilled |= self._lacking.intersection(admission.cached_numbers)
            if kept and (held is None or not held.is_kept_up_to(kept)):
                return f"{kept} tokens of request {admission.request_id} were not kept"
            begins = admission.cached or admission.snapshot is not None
            if begins and (objection := self._begun_objection(admission, refilled)) is not None:
                return objection
            if not self._is_possible(admission):
                return f"request {admission.request_id} is none of this model's"
        return None

    def _retain_objection(self, runs: Positions) -> str | None:
        offered, blocks = self._offered, sum(blocks for _, blocks in runs)
        if offered is None or self._cached:
            return "what stays cached from the epoch before is said twice, too late or for nothing"
        if blocks > (self.kv.blocks_total if self._is_fresh else self.kv.blocks_free):
            return f"{blocks} cached blocks are to stay, for which there is no room"
        numbers = (number for first, count in runs for number in range(first, first + count))
        if not self._is_fresh and not offered.issuperset(numbers):
            return "cached blocks are to stay that are not here"
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
            and self._lacking.issuperset(rebuilt)
        ):
            return None
        return f"request {admission.request_id} is admitted twice"

    def _begun_objection(self, admission: Admission, refilled: Collection[int]) -> str | None:
        blocks, known = admission.cached_blocks, len(self._cached) + len(refilled)
        if blocks * BLOCK_TOKENS >= admission.tokens_expected or blocks > known:
            return f"request {admission.request_id} is to begin with {blocks} cached blocks"
        if admission.kept_tokens or not all(
            one in self._cached or one in refilled for one in admission.cached_numbers
        ):
            return (
                f"request {admission.request_id} is to begin with blocks that are not cached here"
            )
        return self._state_objection(admission)

    def _state_objection(self, admission: Admission) -> str | None:
        """Why the states behind its cached blocks are not those of a snapshot that is here."""
        if self.kv.state_slots is None and admission.snapshot is None:
            return None
        if not admission.cached:
            return f"request {admission.request_id} is to begin with states and no cached blocks"
        if admission.snapshot in self._snapshots:
            return None
        return f"request {admission.request_id} is to begin with states that were not kept here"

    def _snapshot_objection(self, batch: Batch) -> str | None:
        """Why states cannot be kept behind the batch as it says."""
        if not batch.snapshots:
            return None
        ends = {span.request_id: span.end for span in batch.spans}
        for kept in batch.snapshots:
            if kept.snapshot >= self.snapshots:
                return f"there is no room for a snapshot {kept.snapshot} of states"
            if ends.pop(kept.request_id, None) != kept.tokens:
                return f"states of request {kept.request_id} are to be kept where no span ends"
        if len({kept.snapshot for kept in batch.snapshots}) < len(batch.snapshots):
            return "two snapshots of states are to be kept as one"
        return None

    def _keep_objection(self, keep: Collection[KeptBlocks]) -> str | None:
        """Why blocks cannot be cached so; a change names those of a request as one run."""
        if len({kept.request_id for kept in keep}) < len(keep):
            return "blocks of a request are to be cached twice at once"
        for kept in keep:
            if (objection := self._kept_objection(kept)) is not None:
                return objection
        numbers = [number for kept in keep for number in kept.numbers]
        if len(set(numbers)) < len(numbers):
            return "two cached blocks are to have one number"
        return None

    def _kept_objection(self, kept: KeptBlocks) -> str | None:
        held, end = self._held.get(kept.request_id), kept.first_block + kept.blocks
        if held is None or kept.blocks < 1 or end * BLOCK_TOKENS > held.computed_tokens:
            return f"blocks of request {kept.request_id} are to be cached that are not computed"
        if kept.blocks > self.kv.own_blocks(kept.request_id):
            return f"blocks of request {kept.request_id} are to be cached twice"
        if any(map(self._is_known, kept.numbers)):
            return f"cached blocks from {kept.first_number} on are to be cached twice"
        return None

    def _is_known(self, number: int) -> bool:
        """Whether a block of this number is cached, here or on the others."""
        return number in self._cached or number in self.away.tier_of or number in self._lacking

    def _is_possible(self, admission: Admission) -> bool:
        lengths = (1, admission.prompt_tokens, admission.tokens_expected)
        return (
            lengths == tuple(sorted(lengths))
            and admission.tokens_expected <= self.limits.sequence_tokens_max
            and self.limits.has_words(
                chain(admission.prompt, admission.output, admission.sampling.named)
            )
        )

    def _span_objection(self, batch: Batch, new: dict[int, HeldRequest]) -> str | None:
        blocks_missing = 0
        for span in batch.spans:
            held = new.get(span.request_id) or self._held.get(span.request_id)
            if held is None:
                return f"request {span.request_id} was never admitted"
            if not held.goes_on_with(span, batch.batch_class):
                expected = held.admission.tokens_expected if held.admission is not None else "some"
                return (
                    f"request {span.request_id} cannot go on from {span.start} to {span.end}, "
                    f"{held.received_tokens} of {expected} tokens have come"
                )
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
