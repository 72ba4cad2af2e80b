"""Memory of a toy stage's layers side by side, as the engine has it: every row is read again.

The first layers keep all of a prompt, the others what its cut keeps of it. A layer's row is a
number in a cell of the memory; a wrong table, a block given to two, or one folded over what is
still read, shows as another number.
"""

from dataclasses import dataclass, field
from random import Random

from molink_scheduler.batch import Admission, Batch, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks, folded_numbers
from molink_scheduler.kv.changes import (
    CacheChange,
    DropBlocks,
    FetchBlocks,
    FoldBlocks,
    KeepBlocks,
    LowerBlocks,
    RetainBlocks,
)
from molink_scheduler.kv.tiers import DEVICE
from molink_scheduler.prompt_cut import PromptCut
from molink_scheduler.resume import Resume

FOLDS_MAX = 512
"""Of a stage in which no layer keeps all."""

UNCUT = PromptCut(0, 0)

Cell = tuple[int, int]
"""Slot of a layer's memory: the layer's place, and the slot. Beyond a layer lies the next one's."""


def kept_positions(cut: PromptCut) -> list[int]:
    """Positions of a prompt that a toy keeps, the same in each of its layers."""
    chosen = Random(cut.prompt_tokens).sample(range(cut.prompt_tokens), cut.kept_tokens)
    return sorted(chosen)


@dataclass
class ToyFolds:
    """Memory of some layers, of which the first `whole` keep all."""

    blocks: int
    whole: int
    layers: int
    kv: KvBlocks = field(init=False)
    memory: dict[Cell, int] = field(init=False, default_factory=dict)
    rows: dict[int, list[int]] = field(init=False, default_factory=dict)
    """What each request's rows are, by position."""
    cuts: dict[int, PromptCut] = field(init=False, default_factory=dict)
    cached: dict[int, list[int]] = field(init=False, default_factory=dict)
    """What the rows of each cached block are, wherever it is."""
    folded: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.kv = KvBlocks(self.blocks, self.whole * self.blocks)

    @property
    def folds(self) -> int:
        return self.layers // self.whole if self.whole else FOLDS_MAX

    def cell(self, layer: int, number: int, at: int) -> Cell:
        """A token's cell in a block that has this number in a layer."""
        assert layer < self.whole or number < self.blocks, "a layer that is cut has no folds"
        beyond, block = divmod(number, self.blocks)
        assert layer + beyond < self.layers, "there is no memory behind the last layer"
        return layer + beyond, block * BLOCK_TOKENS + at

    def places(self, request_id: int) -> dict[int, tuple[list[int], list[int]]]:
        """Of each layer: positions of the rows that it reads, and its block table."""
        count, table = len(self.rows[request_id]), [*self.kv.whole_table(request_id)]
        every, cut = [*range(count)], self.cuts[request_id]
        kept, cut_table = every, table
        if cut.is_cut and count >= cut.prompt_tokens:
            kept = [*kept_positions(cut), *range(cut.prompt_tokens, count)]
            cut_table = table[cut.whole_blocks :]
        return {
            layer: (every, table) if layer < self.whole else (kept, cut_table)
            for layer in range(self.layers)
        }

    def cells(self, request_id: int) -> dict[Cell, int]:
        """Cells that a request's next row reads, and what has to stand there."""
        rows = self.rows[request_id]
        return {
            self.cell(layer, table[place // BLOCK_TOKENS], place % BLOCK_TOKENS): rows[at] + layer
            for layer, (positions, table) in self.places(request_id).items()
            for place, at in enumerate(positions)
        }

    # -- steps ----------------------------------------------------------------------------------

    def compute(self, batch: Batch, inputs: list[int]) -> None:
        for admission in batch.admissions:
            self.admit(admission)
        taken = 0
        for span in batch.spans:
            self.kv.grow(span.request_id, span.end)
            self.step(span, inputs[taken : taken + span.tokens])
            taken += span.tokens

    def admit(self, admission: Admission) -> None:
        request_id, numbers = admission.request_id, [*admission.cached_numbers]
        self.cuts[request_id] = admission.cut
        if admission.kept_tokens:
            return
        if not all(map(self.kv.has, numbers)):
            for place, number in enumerate(numbers):
                rows = self.rows[request_id][place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS]
                self.cached.setdefault(number, rows)
            self.kv.adopt(request_id, numbers)
            self.rows[request_id] = [row for one in numbers for row in self.cached[one]]
            return
        self.release(request_id)
        self.cuts[request_id] = admission.cut
        self.rows[request_id] = [row for one in numbers for row in self.cached[one]]
        if numbers:
            self.kv.begin(request_id, numbers)

    def step(self, span: Span, inputs: list[int]) -> None:
        rows = self.rows.setdefault(span.request_id, [])
        cut = self.cuts.setdefault(span.request_id, UNCUT)
        assert span.start <= len(rows), "a gap in the KV"
        del rows[span.start :]
        for value in inputs:
            rows.append(value * 1000)
            self.write(span.request_id, len(rows) - 1)
            if cut.is_cut and len(rows) == cut.prompt_tokens:
                self.cut(span.request_id, cut)
        wanted = self.cells(span.request_id).items()
        assert all(self.memory.get(cell) == row for cell, row in wanted), "wrong KV is read"

    def write(self, request_id: int, at: int) -> None:
        cut, rows = self.cuts[request_id], self.rows[request_id]
        is_behind = cut.is_cut and at >= cut.prompt_tokens
        table = self.kv.whole_table(request_id)
        for layer in range(self.layers):
            near = is_behind and layer >= self.whole
            place = at - cut.moved_tokens if near else at
            block = table[place // BLOCK_TOKENS + (cut.whole_blocks if near else 0)]
            self.memory[self.cell(layer, block, place % BLOCK_TOKENS)] = rows[at] + layer

    def cut(self, request_id: int, cut: PromptCut) -> None:
        """What is kept moves together, behind the blocks that stay whole."""
        rows, table = self.rows[request_id], self.kv.table(request_id)[cut.whole_blocks :]
        for layer in range(self.whole, self.layers):
            for place, at in enumerate(kept_positions(cut)):
                cell = self.cell(layer, table[place // BLOCK_TOKENS], place % BLOCK_TOKENS)
                self.memory[cell] = rows[at] + layer

    # -- changes --------------------------------------------------------------------------------

    def change(self, change: CacheChange) -> None:
        match change:
            case FoldBlocks():
                self.fold(change)
            case KeepBlocks(kept):
                for one in kept:
                    self.kv.keep(one.request_id, one.first_block, one.numbers)
                    for place, number in enumerate(one.numbers, one.first_block):
                        rows = self.rows[one.request_id]
                        self.cached[number] = rows[
                            place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS
                        ]
            case DropBlocks() | LowerBlocks():
                self.kv.drop([number for number in change.numbers if self.kv.has(number)])
            case FetchBlocks():
                numbers = [*change.numbers]
                for number, block in zip(numbers, self.kv.bring_back(numbers), strict=True):
                    self.fill(block, self.cached.get(number, []))
            case RetainBlocks():
                gone = [one for one in self.kv.cached_numbers() if not change.keeps(DEVICE, one)]
                self.kv.drop(gone)

    def fold(self, change: FoldBlocks) -> None:
        self.folded += 1
        assert len(self.rows[change.request_id]) >= self.cuts[change.request_id].prompt_tokens
        before, hosts = self.kv.fold(change.request_id, change.blocks, change.into)
        numbers = folded_numbers(hosts, len(before), self.kv.fold_step)
        for layer in range(self.whole):
            moved = {
                self.cell(layer, to, at): self.memory[self.cell(layer, block, at)]
                for block, to in zip(before, numbers, strict=True)
                for at in range(BLOCK_TOKENS)
            }
            self.memory.update(moved)

    def fill(self, block: int, rows: list[int]) -> None:
        for layer in range(self.layers):
            for at, row in enumerate(rows):
                self.memory[self.cell(layer, block, at)] = row + layer

    def release(self, request_id: int) -> None:
        self.kv.release(request_id)
        self.rows.pop(request_id, None)
        self.cuts.pop(request_id, None)

    def keep(self, resume: Resume) -> None:
        """Go on in another epoch, and with no more of requests than is promised."""
        tokens = dict(resume.keeps)
        if not resume.chains_stay:
            self.kv.drop_all()
        for request_id in self.kv.holders() - tokens.keys():
            self.release(request_id)
        for request_id, count in tokens.items():
            if request_id in self.rows:
                self.kv.shrink(request_id, count)
                del self.rows[request_id][count:]
