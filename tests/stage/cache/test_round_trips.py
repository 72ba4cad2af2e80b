"""Rows behind blocks that left and came back are those of a stage that keeps all, to the bit."""

import queue
from random import Random

import pytest

from molink.engine.local_engine import LocalEngine
from molink.engine_protocol.values import StepInputs
from molink.stage.cache import tier_blocks
from molink.stage.cache.stage_cache import StageCache
from molink.stage.cache.store import CacheStore
from molink.stage_protocol.cache_room import CacheRoom
from molink.stage_protocol.messages import LoadStage, StageWork
from molink_scheduler.batch import PREFILL, Admission, Batch, Release, Span
from molink_scheduler.kv.changes import FetchBlocks, KeepBlocks, KeptBlocks, LowerBlocks
from molink_scheduler.kv.tiers import FILE, HOST
from molink_scheduler.request import SamplingParams
from tests.engine.tiny_models import save_tiny

BLOCKS, CACHED = 16, 6
"""Blocks of the stage, and those of a chain that are cached."""

TOKENS = 16 * (CACHED + 1)
CHAINS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    save_tiny("llama", directory)
    return directory


@pytest.fixture(scope="module")
def wanted(model):
    """Rows of each chain on a stage that keeps nothing elsewhere."""
    return [Stage(model, model, 0, 0).rows(chain) for chain in range(CHAINS)]


class Stage:
    """An engine, its cache, and the chains that it has cached somewhere."""

    def __init__(self, model, folder, ram_chains, disk_chains):
        self.engine, self.answers = LocalEngine(), queue.Queue()
        work = StageWork((0, 2), "cpu", "float32", 16 * BLOCKS)
        layers = self.engine.prepare(
            LoadStage(str(model), work, "127.0.0.1"), lambda fraction: None
        )
        size = layers.block_bytes
        room = CacheRoom(
            CACHED * ram_chains * size, CACHED * disk_chains * (size + 16), str(folder)
        )
        store = CacheStore(room, size, self.answers.put)
        store.start(self.engine, layers.kv_blocks)
        self.cache, self.near, self.away = StageCache(self.engine, store), [], []
        self.requests = 0

    def numbers(self, chain):
        return (CACHED * chain, CACHED)

    def rows(self, chain):
        """Rows behind a chain's cached blocks, which are computed where they are nowhere."""
        self.requests += 1
        if chain in self.away:
            self.cache.change(FetchBlocks(self.requests, (self.numbers(chain),)))
            assert self.answers.get(timeout=30).blocks == CACHED
            self.away.remove(chain)
        elif chain not in self.near:
            self.step(chain, 0, TOKENS - 16, ())
            kept = KeptBlocks(self.requests, 0, *self.numbers(chain))
            self.cache.change(KeepBlocks((kept,)))
            self.engine.release(Release(self.requests), wiped=False)
            self.requests += 1
        self.near = [one for one in self.near if one != chain] + [chain]
        rows_TD = self.step(chain, TOKENS - 16, TOKENS, (self.numbers(chain),))
        self.engine.release(Release(self.requests), wiped=False)
        return rows_TD.tobytes()

    def step(self, chain, start, end, cached):
        tokens = Random(chain).choices(range(41), k=TOKENS)[start:end]
        params = SamplingParams(max_tokens=1)
        admission = Admission(self.requests, TOKENS, TOKENS + 1, params, cached=cached)
        span = Span(self.requests, start, end, samples=False)
        batch = Batch(0, PREFILL, -1, (span,), (admission,))
        return self.engine.step(StepInputs(batch, tokens), lambda: None, lambda: None).rows_TD

    def lower(self, tier, chains):
        for chain in chains:
            self.cache.change(LowerBlocks(tier, (self.numbers(chain),)))
            if chain in self.near:
                self.near.remove(chain)
                self.away.append(chain)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("ram", "disk"), [(CHAINS, 0), (0, CHAINS), (2, CHAINS)])
def test_rows_are_equal_to_the_bit(model, wanted, tmp_path, monkeypatch, seed, ram, disk):
    """However chains leave and come back, while others write where they stood."""
    random, stage = Random(seed), Stage(model, tmp_path, ram, disk)
    monkeypatch.setattr(tier_blocks, "PIECE_BYTES", random.choice([1, 2, 9]) * 2**10)
    in_host = []
    for _ in range(24):
        chain = random.randrange(CHAINS)
        leaving = [one for one in stage.near if one != chain or random.random() < 0.5]
        if not ram:
            stage.lower(FILE, leaving)
        else:
            if disk and (over := max(0, len(in_host) + len(leaving) - ram)):
                stage.lower(FILE, in_host[:over])
                in_host = in_host[over:]
            stage.lower(HOST, leaving)
            in_host += leaving
        assert stage.rows(chain) == wanted[chain]
        in_host = [one for one in in_host if one in stage.away]
