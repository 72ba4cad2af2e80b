"""A toy stage: its layers' row at a position is a hash of all rows before it.

So one wrong, missing or doubled row of KV anywhere changes every later token. A token also depends
on all that the tail has drawn before, as penalties do.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from zlib import crc32

from molink_scheduler.batch import Admission, Batch, Span
from molink_scheduler.events import RunBatch, SampledToken
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from molink_scheduler.kv.changes import (
    CacheChange,
    DropBlocks,
    FetchBlocks,
    KeepBlocks,
    KeptBlocks,
    LowerBlocks,
    RetainBlocks,
)
from molink_scheduler.kv.layer_class import REWOUND_TOKENS_MAX, WindowBlocks
from molink_scheduler.kv.tiers import DEVICE
from molink_scheduler.prompt_cut import PromptCut
from molink_scheduler.request import SamplingParams
from molink_scheduler.resume import Resume
from molink_scheduler.stage.core import StageCore
from molink_scheduler.stage.extension import Extension
from molink_scheduler.stage.replay_log import ReplayLog
from molink_scheduler.stage.sent_rows import SentRows
from molink_scheduler.stage.shadow_feed import ShadowFeed
from tests.scheduler.toy_folds import ToyFolds

VOCABULARY = 50_000

LOST: list[tuple[int, ...]] = []
"""A block that did not come back: whoever begins with it finds a gap."""
ROW_BYTES = 4


def mixed(*values: int) -> int:
    return crc32(repr(values).encode())


def toy_answer(
    prompt: tuple[int, ...], max_tokens: int, seed: int, stages: int, budget: float = 1.0
) -> list[int]:
    """What a ring answers that loses nobody."""
    chains, drawn = [0] * stages, list[int]()
    for token in prompt:
        row = feed(chains, token)
    if PromptCut.of(len(prompt), budget).is_cut:
        chains = [moved(chain) for chain in chains]
    while True:
        drawn.append(draw(row, drawn, seed))
        if len(drawn) == max_tokens:
            return drawn
        row = feed(chains, drawn[-1])


def moved(number: int) -> int:
    """What stands in the place of a row where KV was cut."""
    return mixed(number, "moved")


def feed(chains: list[int], row: int) -> int:
    for index, chain in enumerate(chains):
        chains[index] = row = mixed(chain, row, index)
    return row


def draw(row: int, drawn: list[int], seed: int) -> int:
    return mixed(row, *drawn, seed) % VOCABULARY


@dataclass
class ToyLayers:
    """Layers that were loaded together, and their KV: a number of each layer at a position."""

    indices: tuple[int, ...]
    kv: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    """Tokens that they held when their ring lost another stage, of requests that were not released
    since."""
    rows_again: int = 0
    """Computed of positions that they held already when their ring lost another stage."""
    cached: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    """KV of each cached block in device memory, by its number."""
    away: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    """KV of each cached block in a lower tier."""
    tier_of: dict[int, int] = field(default_factory=dict)
    """Tier of each of these, and of others that are there no more."""
    can_spare: bool = True
    """Whether the host has memory for what is put away; else it is lost."""
    adopted: int = 0
    """Cached blocks that were rebuilt."""
    rows_computed: int = 0
    windows: "ToyWindows | None" = None
    """What they keep where they see the last tokens only."""
    cuts: dict[int, PromptCut] = field(default_factory=dict)
    """Where requests are cut, whose rows behind the whole blocks are others from then on."""
    folds: ToyFolds | None = None
    """Memory of the layers side by side, where cut requests are folded."""

    def compute(self, batch: Batch, inputs: list[int]) -> list[int]:
        for admission in batch.admissions:
            self.cuts[admission.request_id] = admission.cut
            if not admission.kept_tokens:
                self.adopt(admission)
                blocks = [self.cached[number] for number in admission.cached_numbers]
                self.kv[admission.request_id] = [row for block in blocks for row in block]
                if self.windows is not None:
                    self.windows.begin(admission)
        outputs = list[int]()
        for span in batch.spans:
            outputs += self.compute_span(span, inputs[len(outputs) : len(outputs) + span.tokens])
        assert len(outputs) == len(inputs) == batch.tokens
        self.rows_computed += batch.tokens
        if self.windows is not None:
            self.windows.compute(batch, self.kv)
        if self.folds is not None:
            self.folds.compute(batch, inputs)
        return outputs

    def compute_span(self, span: Span, inputs: list[int]) -> list[int]:
        chain, cut = self.kv[span.request_id], self.cuts.get(span.request_id)
        assert span.start <= len(chain), "a gap in the KV"
        if cut is not None and cut.is_cut and len(chain) >= cut.prompt_tokens:
            assert span.start >= cut.prompt_tokens, "what is cut cannot be computed again"
        kept = self.kept.get(span.request_id, 0)
        self.rows_again += max(0, min(span.end, kept) - span.start)
        del chain[span.start :]
        outputs = list[int]()
        for row in inputs:
            before = chain[-1] if chain else (0,) * len(self.indices)
            here = list[int]()
            for number, index in zip(before, self.indices, strict=True):
                here.append(row := mixed(number, row, index))
            chain.append(tuple(here))
            outputs.append(row)
            if cut is not None and cut.is_cut and len(chain) == cut.prompt_tokens:
                for at in range(cut.whole_tokens, len(chain)):
                    chain[at] = tuple(map(moved, chain[at]))
        return outputs

    def adopt(self, admission: Admission) -> None:
        """Cached blocks that were rebuilt for a request are cached from now on."""
        chain = self.kv.get(admission.request_id, [])
        for place, number in enumerate(admission.cached_numbers):
            rows = chain[place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS]
            if number not in self.cached and len(rows) == BLOCK_TOKENS:
                self.cached[number] = rows
                self.adopted += 1

    def begin_epoch(self, resume: Resume, computed: dict[int, int], has_rows) -> tuple[int, ...]:
        return resume.missing(computed, has_rows)

    def keep(self, resume: Resume) -> None:
        """Keep what was promised, and no more of it."""
        for request_id, tokens in resume.keeps:
            del self.kv.get(request_id, [])[tokens:]
        self.kept = {one: tokens for one, tokens in resume.keeps if one in self.kv}
        if self.folds is not None:
            self.folds.keep(resume)

    def change_cache(self, change: CacheChange) -> None:
        if self.folds is not None:
            self.folds.change(change)
        match change:
            case KeepBlocks(kept):
                for one in kept:
                    self._keep_blocks(one)
            case DropBlocks():
                for number in change.numbers:
                    self.cached.pop(number, None)
                    self.away.pop(number, None)
            case LowerBlocks(tier):
                self.tier_of.update(dict.fromkeys(change.numbers, tier))
                for number in change.numbers:
                    rows = self.cached.pop(number, None)
                    if rows is not None and self.can_spare:
                        self.away[number] = rows
            case FetchBlocks():
                for number in change.numbers:
                    self.cached[number] = self.away.pop(number, LOST)
            case RetainBlocks():
                self.cached = {
                    one: rows for one, rows in self.cached.items() if change.keeps(DEVICE, one)
                }
                self.away = {
                    one: rows
                    for one, rows in self.away.items()
                    if change.keeps(self.tier_of[one], one)
                }

    def away_in(self, tier: int) -> dict[int, list[tuple[int, ...]]]:
        """KV of each cached block in one lower tier."""
        return {one: rows for one, rows in self.away.items() if self.tier_of[one] == tier}

    def sure(self, numbers: Iterable[int]) -> int:
        """The first of some blocks that are away, as many as are good."""
        return sum(1 for _ in takewhile(self.away.__contains__, numbers))

    def _keep_blocks(self, kept: KeptBlocks) -> None:
        for place, number in enumerate(kept.numbers, kept.first_block):
            chain = self.kv[kept.request_id]
            self.cached[number] = chain[place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS]

    def release(self, request_id: int) -> None:
        self.kv.pop(request_id, None)
        self.kept.pop(request_id, None)
        self.cuts.pop(request_id, None)
        if self.folds is not None:
            self.folds.release(request_id)
        if self.windows is not None:
            self.windows.blocks.release(request_id)

    def parts(self) -> list["ToyLayers"]:
        return [self]


@dataclass
class ToyWindows:
    """Rows in the blocks of layers with a window: each row of a step finds those that it sees."""

    blocks: WindowBlocks
    rows: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Row that stands in each slot."""
    begun: int = 0
    """Requests that began with a snapshot."""

    def begin(self, admission: Admission) -> None:
        self.blocks.release(admission.request_id)
        assert (admission.snapshot is None) == (not admission.cached), "no hit without its window"
        if admission.snapshot is not None:
            self.blocks.begin(admission.request_id, admission.snapshot)
            self.begun += 1

    def compute(self, batch: Batch, kv: dict[int, list[tuple[int, ...]]]) -> None:
        for span in batch.spans:
            self.blocks.grow(span.request_id, span.start, span.end)
            table, chain = self.blocks.table(span.request_id), kv[span.request_id]
            for token in range(span.start, span.end):
                self.rows[_slot(table, token)] = chain[token]
            for token in range(max(0, span.start - self.blocks.layers.window + 1), span.end):
                assert self.rows[_slot(table, token)] == chain[token], "another row is seen"
        for one in batch.snapshots:
            self.blocks.keep(one.request_id, one.tokens, one.snapshot)
        for span in batch.spans:
            self.blocks.settle(span.request_id, span.known_end - REWOUND_TOKENS_MAX)


def _slot(table: Sequence[int], token: int) -> int:
    return table[token // BLOCK_TOKENS] * BLOCK_TOKENS + token % BLOCK_TOKENS


@dataclass
class ToyExtended:
    """Layers that a stage holds, and others that it has taken beside them."""

    first: "ToyLayers | ToyExtended"
    second: "ToyLayers | ToyExtended"
    extension: Extension
    sent: ReplayLog
    """Rows that leave the stage."""

    @property
    def kept(self) -> "ToyLayers | ToyExtended":
        return self.second if self.extension.is_before else self.first

    def compute(self, batch: Batch, inputs: list[int]) -> list[int] | None:
        if self.extension.begins(batch):
            self.first.compute(batch, inputs)
            return None
        rows = self.first.compute(batch, inputs)
        for piece, sent in self.extension.fed(batch, 8):
            log_rows(self.sent, piece, self.second.compute(piece, unpacked(sent.rows)))
        return None if rows is None else self.second.compute(batch, rows)

    def begin_epoch(self, resume: Resume, computed: dict[int, int], has_rows) -> tuple[int, ...]:
        held = dict(self.extension.held) if resume.fresh else computed
        missing = self.extension.begin_epoch(resume, computed, has_rows)
        if isinstance(self.kept, ToyExtended):
            missing += self.kept.begin_epoch(Resume(resume.requests), held, has_rows)
        return tuple(dict.fromkeys(missing))

    def keep(self, resume: Resume) -> None:
        held = () if resume.fresh and resume.next_fresh else None
        for part in (self.first, self.second):
            part.keep(Resume(resume.requests, held, held))

    def release(self, request_id: int) -> None:
        self.extension.released(request_id)
        self.first.release(request_id)
        self.second.release(request_id)

    def parts(self) -> list[ToyLayers]:
        return [*self.first.parts(), *self.second.parts()]


@dataclass
class ToyStage:
    """One stage process: its core, its layers with their KV, its log."""

    index: int
    core: StageCore
    log: ReplayLog
    blocks: int
    layers: ToyLayers | ToyExtended
    rows: dict[int, list[int]] = field(default_factory=dict)
    histories: dict[int, tuple[list[int], SamplingParams]] = field(default_factory=dict)
    busy: bool = False
    feed: ShadowFeed | None = None
    """Of a shadow of the stage behind it."""
    directory: int = 0
    """Epoch in which the directory began that has given the numbers of its cached blocks."""
    lost: frozenset[int] = frozenset()
    """Requests of which it has lost something, until it is in the next epoch."""

    def computed_tokens(self) -> dict[int, int]:
        """Tokens of each request of which it holds KV, and has lost nothing."""
        computed = self.core.source.computed_tokens()
        return {one: tokens for one, tokens in computed.items() if one not in self.lost}

    def compute(self, run: RunBatch) -> list[int] | None:
        inputs = list(run.token_ids)
        for message, start, end in run.pieces:
            inputs += self.rows[message][start:end]
        for admission in run.batch.admissions:
            self.histories[admission.request_id] = list(admission.output), admission.sampling
        outputs = self.layers.compute(run.batch, inputs)
        for part in self.layers.parts():
            held = sum(blocks_for(len(chain)) for chain in part.kv.values())
            assert held <= self.blocks or part.cached or part.folds, "the head plans too much"
        return outputs

    def change_cache(self, change: CacheChange) -> None:
        if isinstance(change, RetainBlocks):
            self.directory = change.away.directory
        for part in self.layers.parts():
            part.change_cache(change)
        self.log.change_cache(change)

    def sampled(self, spans: Iterable[Span], rows: list[int]) -> tuple[SampledToken, ...]:
        tokens, row = [], 0
        for span in spans:
            row += span.tokens
            if span.samples:
                first = row - len(span.drafts) - 1
                tokens += self.verified(span, rows[first:row])
        return tuple(tokens)

    def verified(self, span: Span, rows: list[int]) -> Iterator[SampledToken]:
        """Token behind what is known, and one more behind each draft that came true."""
        drawn, sampling = self.histories[span.request_id]
        for row, draft in zip(rows, (*span.drafts, None), strict=True):
            drawn.append(draw(row, drawn, sampling.seed))
            is_last = len(drawn) == sampling.max_tokens
            yield SampledToken(span.request_id, drawn[-1], is_last)
            if is_last or drawn[-1] != draft:
                return

    def release(self, request_id: int) -> None:
        self.layers.release(request_id)
        self.histories.pop(request_id, None)
        self.log.forget(request_id)
        if self.feed is not None:
            self.feed.release(request_id)

    def extend(self, lost: ToyLayers, *, behind: bool, computed: dict[int, int]) -> None:
        """Take the layers of a lost stage beside its own, all of them empty."""
        if not behind:
            extension = Extension(None, computed)
            self.layers = ToyExtended(lost, self.layers, extension, self.log)
            return
        sent, self.log = self.log, ReplayLog(self.log.bytes_max)
        self.layers = ToyExtended(self.layers, lost, Extension(sent, {}), self.log)


def log_rows(log: ReplayLog, batch: Batch, rows: list[int]) -> None:
    row = 0
    log.admit(batch.admissions)
    for span in batch.spans:
        values = rows[row : row + span.tokens]
        packed = b"".join(value.to_bytes(ROW_BYTES, "big") for value in values)
        sent = SentRows(span.start, span.end, packed)
        log.add(span.request_id, sent, guesses=len(span.drafts))
        row += span.tokens


def unpacked(rows: bytes) -> list[int]:
    starts = range(0, len(rows), ROW_BYTES)
    return [int.from_bytes(rows[start : start + ROW_BYTES], "big") for start in starts]
