"""A stage with a lender lacks no block of its own, within what it says that it has room for."""

from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace

import pytest
import torch

from molink.engine.memory.arriving_blocks import ArrivingBlocks
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.lent_blocks import LentBlocks
from molink.engine.memory.moving_blocks import MovingBlocks
from molink.engine.memory.prompt_cuts import PromptCuts
from molink.engine.memory.ragged_batch import RaggedSpan
from molink.engine.step.card_retry import TensorInputs, computed
from molink.engine.step.lending import Lending, make_room_for
from molink_scheduler.batch import DECODE, PREFILL, Admission, Batch, Span
from molink_scheduler.request import SamplingParams
from tests.engine.ring_driver import load_stages
from tests.engine.step.test_lending import lent
from tests.engine.tiny_models import LAYERS, save_tiny
from tests.sweeps import swept

PLACES, EVENTS, DRAFTS = 4000, 400, 8


@dataclass
class Stage:
    """The blocks of a stage without layers, its lender, and what it computes."""

    random: Random
    blocks_here: int
    tokens: dict[int, int] = field(default_factory=dict)
    """Tokens of each request."""
    fills: list[ArrivingBlocks] = field(default_factory=list)
    next_number: int = 0

    def __post_init__(self) -> None:
        pool = KvPool(self.blocks_here * 16)
        one = torch.zeros(pool.slots, 1, 1)
        pool.write(0, torch.arange(pool.slots), one, one)
        self.kv, self.moving = LentBlocks(self.blocks_here), MovingBlocks()
        lender = SimpleNamespace(put=lambda places, packed_BW: None)
        self.lending = Lending(lender, self.kv, pool, self.moving, PLACES, None, PromptCuts())
        self.kv.borrow(PLACES)

    def happens(self) -> None:
        self.random.choice((self.prefill, self.prefill, self.decode, self.fetch, self.ends))()

    def prefill(self) -> None:
        """A step of as many rows as there is room for, which decode steps interrupt."""
        rows, spans = self.lending.rows_max, []
        for request_id in range(self.lending.requests_max):
            if rows and self.random.random() < 0.5:
                taken = self.random.randint(1, rows)
                rows -= taken
                spans.append(self.span(request_id, taken))
        self.grow(Batch(0, PREFILL, -1, tuple(spans)))
        with self.lending.reading([self.read(span) for span in spans]):
            for _ in range(self.random.randrange(6)):
                self.decode(without={span.request_id for span in spans})

    def decode(self, without: frozenset[int] | set[int] = frozenset()) -> None:
        going = [one for one in self.tokens if one not in without]
        spans = tuple(self.span(one, self.random.randint(1, DRAFTS)) for one in going)
        self.grow(Batch(0, DECODE, 0, spans))

    def fetch(self) -> None:
        count = self.lending.let_in(self.random.randrange(2 * self.blocks_here))
        numbers = tuple(range(self.next_number, self.next_number + count))
        self.next_number += count
        self.fills.append(self.moving.bring_back(self.kv, numbers))

    def ends(self) -> None:
        """A fetch, and a request."""
        if self.fills:
            self.fills.pop().end()
        if self.tokens:
            request_id = self.random.choice([*self.tokens])
            del self.tokens[request_id]
            self.kv.release(request_id)

    def span(self, request_id: int, rows: int) -> Span:
        start = self.tokens.get(request_id, 0)
        self.tokens[request_id] = start + rows
        return Span(request_id, start, start + rows, samples=True)

    def read(self, span: Span) -> RaggedSpan:
        return RaggedSpan(0, span.tokens, span.start, span.end, self.kv.table(span.request_id))

    def grow(self, batch: Batch) -> None:
        make_room_for(self.lending, batch)
        for span in batch.spans:
            self.kv.grow(span.request_id, span.end)


@pytest.mark.parametrize("seed", swept(range(200), *range(12)))
@pytest.mark.parametrize("blocks_here", [16, 19, 64])
def test_requests_steps_and_fetches_within_their_shares_find_room(blocks_here, seed):
    stage = Stage(Random(seed), blocks_here)
    most_lent = 0
    for _ in range(EVENTS):
        stage.happens()
        most_lent = max(most_lent, stage.kv.blocks_lent)
    assert most_lent > 0


def test_a_step_of_more_rows_than_there_is_room_for_is_computed_in_pieces(tmp_path):
    save_tiny("llama", tmp_path)
    whole, parts = (load_stages(tmp_path, (0, LAYERS))[0] for _ in range(2))
    lent(parts, 12)
    ids = [3 + (7 * word) % 150 for word in range(200)]
    admission = Admission(1, len(ids), 220, SamplingParams(max_tokens=9, temperature=0.0))
    batch = Batch(0, PREFILL, -1, (Span(1, 0, len(ids), samples=True),), (admission,))
    assert parts.lending.rows_max < len(ids)
    wanted, got = (computed(one, TensorInputs(batch, ids, None)) for one in (whole, parts))
    assert [one.token_id for one in got.drawn] == [one.token_id for one in wanted.drawn]
