"""Stages of two rings with ends of a pair, which compute and hand over as rings have them do."""

import queue
import time
from random import Random

from molink.engine.local_engine import LocalEngine
from molink.engine_protocol.values import StepInputs
from molink.stage.cache.stage_cache import StageCache
from molink.stage.start import stage_pair
from molink.stage_protocol.cache_room import CacheRoom
from molink.stage_protocol.messages import LoadStage, StageWork
from molink_scheduler.batch import PREFILL, Admission, Batch, Release, Span
from molink_scheduler.kv.changes import KeepBlocks, KeptBlocks, RetainBlocks, TakeBlocks
from molink_scheduler.request import SamplingParams

BLOCKS = 6
"""Blocks of a prompt that are handed over; behind them 16 tokens are left to compute."""

TOKENS = 16 * (BLOCKS + 1)
EPOCH, REQUEST = 3, 11
SOURCE = EPOCH, REQUEST


class Stage:
    """An engine and its cache, with an end of a pair; it begins in epoch 3."""

    def __init__(self, model, pairing, layers=(0, 2)):
        self.engine, self.woken = LocalEngine(), queue.Queue()
        work = StageWork(layers, "cpu", "float32", 16 * 32)
        load = LoadStage(str(model), work, "127.0.0.1", pairing=pairing)
        self.load = load
        self.layers = self.engine.prepare(load, lambda fraction: None)
        self.cache = StageCache.of(
            CacheRoom(),
            self.engine,
            self.layers,
            lambda: self.woken.put(None),
            pair_of=lambda fetched: stage_pair(load, self.layers, fetched),
        )
        self.cache.begin(self.layers.block_bytes, EPOCH, chains_stay=False)

    @property
    def end(self):
        return self.cache.pair._now

    @property
    def health(self):
        return self.cache.pair.health

    @property
    def held_blocks(self):
        return self.health.held_bytes // self.layers.block_bytes

    def leave(self):
        """Be of no pair, with nothing computed or cached, for another test."""
        self.cache.pair.become(None)
        self.cache.change(RetainBlocks())
        self.engine.release(Release(REQUEST), wiped=False)
        self.cache.begin(self.layers.block_bytes, EPOCH, chains_stay=False)

    def step(self, request, start, end, cached=()):
        tokens = Random(1).choices(range(41), k=TOKENS)[start:end]
        admission = Admission(
            request, TOKENS, TOKENS + 1, SamplingParams(max_tokens=1), cached=cached
        )
        span = Span(request, start, end, samples=False)
        admissions = (admission,) if start == 16 * sum(count for _, count in cached) else ()
        batch = Batch(0, PREFILL, -1, (span,), admissions)
        return self.engine.step(StepInputs(batch, tokens), lambda: None, lambda: None).rows_TD

    def hand_over(self, blocks, first=0):
        """Compute so many blocks of the prompt and keep them, two at a time, as a ring does."""
        for block in range(first, blocks, 2):
            self.step(REQUEST, 16 * block, 16 * (block + 2))
            self.cache.change(KeepBlocks((KeptBlocks(REQUEST, block, 100 + block, 2),)))

    def take(self, blocks=BLOCKS, fetch=0, source=SOURCE, first=0):
        """How many of so many blocks are sure."""
        self.cache.change(TakeBlocks(fetch, ((20, blocks),), source, first))
        return self.answer(fetch)

    def answer(self, fetch):
        deadline = time.monotonic() + 20
        while not (read := self.cache.take_read()):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert [one.fetch_id for one in read] == [fetch]
        return read[0].blocks

    def rows_behind(self, request=50):
        rows_TD = self.step(request, 16 * BLOCKS, TOKENS, ((20, BLOCKS),))
        self.engine.release(Release(request), wiped=False)
        return rows_TD.tobytes()


def wait_until(is_so):
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
