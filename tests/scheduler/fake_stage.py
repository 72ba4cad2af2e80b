"""A stage in virtual time around its real core, a forecast of KV and a pace of prompts."""

from dataclasses import dataclass, field
from itertools import accumulate

from molink_scheduler.batch import Batch, BatchClass, Release, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks
from molink_scheduler.kv.changes import (
    CacheChange,
    DropBlocks,
    FetchBlocks,
    Fetched,
    KeepBlocks,
    LowerBlocks,
    TakeBlocks,
)
from molink_scheduler.stage.core import StageCore


@dataclass
class FakeStage:
    """A stage's core, its KV blocks, and how far each request is computed."""

    core: StageCore
    kv: KvBlocks
    state_slots: int | None = None
    busy: bool = False
    interruptible: bool = False
    computed: dict[int, int] = field(default_factory=dict)
    contents: dict[tuple[int, int], int] = field(default_factory=dict)
    """Of each place of each block: a number that stands for all tokens up to there."""
    drafts: dict[int, int] = field(default_factory=dict)
    """Drafts at the end of each request's last span."""
    behind: dict[int, int] = field(default_factory=dict)
    """Tokens of each request behind which its states are."""
    batches_by_class: list[BatchClass] = field(default_factory=list)
    states: dict[int, int] = field(default_factory=dict)
    """Of each request: a number that stands for all tokens up to where its states are."""
    snapshots: dict[int, int] = field(default_factory=dict)
    away: dict[int, list] = field(default_factory=dict)
    """Contents of each cached block below device memory, by its number; none of one that is
    lost."""
    handed: dict[tuple[int, int], list[list]] = field(default_factory=dict)
    """Contents of the blocks that another ring has handed over, by the request there; none of one
    that has not come."""

    def compute(self, batch: Batch, chains: dict[int, list[int]]) -> None:
        """`chains`: of each request, what its KV must hold from its first token on."""
        for admission in batch.admissions:
            assert self.computed.get(admission.request_id, 0) == 0, "admitted over live KV"
            if admission.cached:
                self.kv.begin(admission.request_id, admission.cached_numbers)
                self.computed[admission.request_id] = admission.cached_tokens
            self.states[admission.request_id] = 0
            self.behind[admission.request_id] = admission.cached_tokens
            if admission.snapshot is not None:
                self.states[admission.request_id] = self.snapshots[admission.snapshot]
        for span in batch.spans:
            came, drafts = (
                self.computed.get(span.request_id, 0),
                self.drafts.get(span.request_id, 0),
            )
            assert came - drafts <= span.start <= came, "a span overtook another"
            self.computed[span.request_id] = span.end
            self.drafts[span.request_id] = len(span.drafts)
            self.kv.grow(span.request_id, span.end)  # raises OutOfBlocks if the head was wrong
            self.write(span, with_drafts(chains[span.request_id], span))
            if self.state_slots is not None:
                self.move_states(span, chains[span.request_id], drafts)
        for kept in batch.snapshots:
            assert self.behind[kept.request_id] == kept.tokens
            self.snapshots[kept.snapshot] = self.states[kept.request_id]
        assert self.state_slots is None or len(self.computed) <= self.state_slots
        self.batches_by_class.append(batch.batch_class)

    def write(self, span: Span, chain: list[int]) -> None:
        """Write what a span's rows stand for, and read all before them."""
        table = self.kv.table(span.request_id)
        places = [(table[at // BLOCK_TOKENS], at % BLOCK_TOKENS) for at in range(span.end)]
        self.contents.update(zip(places[span.start :], chain[span.start : span.end], strict=True))
        assert [self.contents.get(one) for one in places] == chain[: span.end], "wrong KV is read"

    def move_states(self, span: Span, chain: list[int], drafts: int) -> None:
        """States that begin a span are those behind the token before it, or behind one of the
        drafts before that: those between have come true."""
        behind = self.behind.get(span.request_id, 0)
        before = chain[behind - 1] if behind else 0
        assert self.states[span.request_id] == before, "wrong states are gone on from"
        assert span.start - drafts <= behind <= span.start
        self.states[span.request_id] = chain[span.known_end - 1]
        self.behind[span.request_id] = span.known_end

    def change_cache(self, change: CacheChange) -> None:
        match change:
            case KeepBlocks(kept):
                for one in kept:
                    self.kv.keep(one.request_id, one.first_block, one.numbers)
            case DropBlocks():
                self.kv.drop([one for one in change.numbers if self.away.pop(one, 0) == 0])
            case LowerBlocks():
                near = [number for number in change.numbers if number not in self.away]
                for number, block in zip(near, self.kv.places(near), strict=True):
                    self.away[number] = self.block(block)
                self.kv.drop(near)

    def block(self, block: int) -> list:
        return [self.contents.get((block, at)) for at in range(BLOCK_TOKENS)]

    def fetch(self, change: FetchBlocks) -> Fetched:
        """Blocks up to the first that is lost; those behind hold what nobody wrote."""
        good = True
        count = 0
        back = self.kv.bring_back(change.numbers)
        is_taken = isinstance(change, TakeBlocks)
        handed = iter(self.handed[change.source][change.first_block :] if is_taken else ())
        for number, block in zip(change.numbers, back, strict=True):
            contents = next(handed) if is_taken else self.away.pop(number)
            good = good and bool(contents)
            count += good
            for at in range(BLOCK_TOKENS):
                self.contents[block, at] = contents[at] if good else -1
        return Fetched(change.fetch_id, count)

    def release(self, release: Release) -> None:
        self.computed.pop(release.request_id, None)
        self.states.pop(release.request_id, None)
        self.drafts.pop(release.request_id, None)
        self.behind.pop(release.request_id, None)
        self.kv.release(release.request_id)


def with_drafts(chain: list[int], span: Span) -> list[int]:
    """What a request's KV holds once a span is computed: behind what is known, its drafts."""
    known = chain[: span.known_end]
    return [*known[:-1], *accumulate(span.drafts, chained, initial=known[-1])]


def chained(before: int, token: int) -> int:
    return hash((before, token))


class NothingGrows:
    """Forecast by which all whose prompts fit are admitted: more than can stay."""

    def ended(self, sequence, *, by_itself: bool) -> None:
        """Learn nothing of an answer that has ended."""

    def tokens_held(self, sequences) -> list[float]:
        """None, at any time."""
        return [0.0]


class AlwaysSlow:
    """Pace of prompts at which everything is worth fetching."""

    row_s, trip_s = 1e9, 0.0

    def returned(self, request_id, rows, elapsed_s, *, under_way, pending) -> None:
        """Learn nothing."""

    def forget(self, request_id) -> None:
        """Know nothing."""
