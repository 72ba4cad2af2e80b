"""The head that ships over a stage that computes: cut requests answer as the library does, and more
of them have room at a time."""

import pytest

from molink.engine.memory.cached_blocks import BlocksOfParts
from molink_scheduler.events import (
    BatchReturned,
    RequestSubmitted,
    RunBatch,
    SampledToken,
    SendCacheChange,
    SendRelease,
)
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import HeadSettings, RingTerms
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.changes import FoldBlocks
from molink_scheduler.request import Request
from molink_scheduler.token_ids import token_bytes
from tests.engine.cut_reference import Cut, generate_cut
from tests.engine.ring_driver import load_stages
from tests.engine.step.test_prompt_cuts import NEW_TOKENS, PROMPT_TOKENS, prompt_of, sampling
from tests.engine.tiny_models import LAYERS, save_tiny


class OneStage:
    """Ring of one stage: all that the head orders is done at once."""

    def __init__(self, stage, blocks, *, folds, caches):
        self.stage, self.now, self.folded, self.running_most = stage, 0.0, 0, 0
        terms = RingTerms(
            BLOCK_TOKENS * blocks, 1, span_tokens=64, prefix_cache=caches, folds=folds
        )
        self.head = HeadScheduler(HeadSettings(terms))
        self.answers: dict[int, list[int]] = {}

    def run(self, prompts):
        for number, prompt in enumerate(prompts, 1):
            request = Request(number, token_bytes(prompt), sampling(0.5))
            self.answers[number] = []
            self.obey(self.head.handle(RequestSubmitted(request), self.now))
        while self.head.running_count or self.head.waiting_count:
            self.now += 0.01
            self.running_most = max(self.running_most, self.head.running_count)
            orders, run = self.head.next_batch(0.0, self.now)
            self.obey(orders)
            if run is not None:
                self.obey(self.head.handle(self.computed(run), self.now))
        return [*self.answers.values()]

    def obey(self, orders):
        for order in orders:
            match order:
                case SendCacheChange(change):
                    self.folded += isinstance(change, FoldBlocks)
                    BlocksOfParts([self.stage]).blocks_out(change)
                case SendRelease(release):
                    self.stage.release(release)
                case _:
                    raise AssertionError(f"the head says {order}")

    def computed(self, run: RunBatch) -> BatchReturned:
        batch, drawn = run.batch, list[SampledToken]()
        for token in self.stage.step(batch, run.token_ids).drawn:
            answer = self.answers[token.request_id]
            answer.append(token.token_id)
            is_last = len(answer) == NEW_TOKENS
            drawn.append(SampledToken(token.request_id, token.token_id, is_last))
        return BatchReturned(batch.batch_class, batch.micro_batch, batch.spans, tuple(drawn))


@pytest.mark.parametrize("caches", [False, True])
def test_answers_are_the_library_s_and_more_have_room(caches, tmp_path):
    """A request of 170 tokens holds 11 blocks, of which its cut leaves 4 whole: two lie in one."""
    model, prompts = save_tiny("llama", tmp_path), [prompt_of(number % 3) for number in range(6)]
    wanted = [
        generate_cut(model, prompt, NEW_TOKENS, Cut(PROMPT_TOKENS, 75)) for prompt in prompts[:3]
    ]
    rooms = []
    for folds in (1, 2):
        (stage,) = load_stages(tmp_path, (0, LAYERS))
        ring = OneStage(stage, 31, folds=folds, caches=caches)
        assert ring.run(prompts) == [*wanted, *wanted]
        assert bool(ring.folded) == (folds > 1)
        assert stage.kv.blocks_free + len(stage.kv.cached_numbers()) == stage.kv.blocks_total
        rooms.append(ring.running_most)
    assert rooms[1] > rooms[0]
