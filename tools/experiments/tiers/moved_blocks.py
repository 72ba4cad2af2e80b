"""How soon does KV leave a device's memory and come back, and what does the stage's loop wait for?

    python -m tools.experiments.tiers.moved_blocks --out DIR

An executor of eleven layers with the KV of Llama-3-8B (32 heads, 8 of them with keys and values,
128 wide, bf16) and little else, so 45 KB a token: a third of the model. First all cached blocks
(--tokens) are put away at once, while steps of 128 rows write where they stand: how long the loop
stands in the order itself and in each step before it computes, and whether all come back as they
were. Then a request of --resting tokens is put away and brought back, twice, beside nothing.

Computing that again is measured on one layer of the whole shape (4,096 wide, 14,336 inside), for
2,048 tokens in spans of 128, and multiplied by the layers and tokens; attention over the others
is left out, so it takes longer than said. Beside it what memory copies here at most. Medians of
the rounds, the longest wait of all; three minutes, 6 GB.
"""

import queue
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import click
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from molink.engine.loading import load_stage
from molink.engine.memory.cached_blocks import BlocksOfParts
from molink.engine.memory.moving_blocks import MovingBlocks
from molink.engine.step.stage import StageExecutor
from molink.stage.cache.stage_cache import StageCache
from molink.stage.cache.store import CacheStore
from molink.stage_protocol.cache_room import CacheRoom
from molink.stage_protocol.messages import StageWork
from molink_scheduler.batch import PREFILL, Admission, Batch, Release, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks
from molink_scheduler.kv.changes import (
    FetchBlocks,
    Fetched,
    KeepBlocks,
    KeptBlocks,
    LowerBlocks,
    RetainBlocks,
)
from molink_scheduler.kv.tiers import HOST
from molink_scheduler.request import SamplingParams
from tools.experiments.harness.experiment import (
    experiment,
    markdown_table,
    rounds_option,
    show,
    write_report,
)

__all__ = ["main"]

LAYERS = 11
ROWS = 128
COMPUTED_TOKENS = 2048
POLL_S = 0.0005
FILLER, HOLDER = 10**6, 10**6 + 1
"""Requests that hold all other blocks, and that have computed what is put away."""


@experiment
@click.option("--tokens", default=12_000, show_default=True, help="Evicted at once.")
@click.option("--resting", default=32_000, show_default=True, help="Of the request that rests.")
@click.option("--threads", default=1, show_default=True, help="Compute threads of the stage.")
@rounds_option(3)
def main(out: Path, tokens: int, resting: int, threads: int, rounds: int) -> None:
    """Measure what leaves a stage's device and comes back."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        computed_s = _compute_s(Path(folder) / "wide", threads) * LAYERS / COMPUTED_TOKENS
        executor = _loaded(Path(folder) / "thin", LAYERS, threads, max(resting, tokens), hidden=512)
    evicted = [one for _ in range(rounds) for one in _evicted(executor, tokens // BLOCK_TOKENS)]
    rested = [_rested(executor, resting // BLOCK_TOKENS) for _ in range(rounds)]
    figures = {
        "memory copies at most, GB/s": _memory_rate(),
        "evicted, GB": evicted[0]["bytes"] / 1e9,
        "lost blocks": sum(one["lost"] for one in evicted),
        "the order in the loop, ms": 1e3 * max(one["order_s"] for one in evicted),
        "a step stands at most, ms": 1e3 * max(max(one["waits_s"]) for one in evicted),
        "steps stand in all, ms": 1e3 * median(sum(one["waits_s"]) for one in evicted),
        "copied out beside steps, first use, GB/s": _rate(evicted, is_first=True),
        "copied out beside steps, GB/s": _rate(evicted, is_first=False),
        "request that rests, GB": rested[0]["bytes"] / 1e9,
        **_rest_figures(rested),
        "computing it again, at least, s": computed_s * resting,
    }
    facts = {"tokens": tokens, "resting": resting, "threads": threads, "rounds": rounds}
    write_report(out, "moved_blocks", facts | {"figures": figures, "runs": evicted + rested})
    show(markdown_table(("", ""), [(name, f"{value:,.2f}") for name, value in figures.items()]))


def _rate(runs: Sequence[dict[str, Any]], *, is_first: bool) -> float:
    some = [one for one in runs if one["is_first"] == is_first]
    return float(median(one["bytes"] / one["out_s"] for one in some)) / 1e9


def _rest_figures(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    named = {}
    for turn in ("first", "second"):
        for way in ("out", "back"):
            named[f"{turn} time {way}, s"] = median(one[f"{turn}_{way}_s"] for one in runs)
    return named


# -- the stage ------------------------------------------------------------------------------------


def _loaded(folder: Path, layers: int, threads: int, kv_tokens: int, hidden: int) -> StageExecutor:
    """A random model's stage with all of its layers."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=hidden,
        head_dim=128,
        num_hidden_layers=layers,
        intermediate_size=hidden * 7 // 2,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=65_536,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    work = StageWork((0, layers), "cpu", "bfloat16", kv_tokens, threads=threads)
    return load_stage(str(folder), work, lambda fraction: None)


def _compute_s(folder: Path, threads: int) -> float:
    """Seconds that one layer of the whole shape takes for COMPUTED_TOKENS tokens."""
    executor = _loaded(folder, 1, threads, COMPUTED_TOKENS, hidden=4096)
    _prompt(executor, 1, ROWS)
    began = time.perf_counter()
    _prompt(executor, 1, COMPUTED_TOKENS)
    return time.perf_counter() - began


def _prompt(executor: StageExecutor, request_id: int, tokens: int) -> None:
    admission = Admission(request_id, tokens, tokens + 1, SamplingParams(max_tokens=1))
    for start in range(0, tokens, ROWS):
        new = () if start else (admission,)
        span = Span(request_id, start, start + ROWS, samples=False)
        executor.step(Batch(0, PREFILL, -1, (span,), new), [7] * ROWS)
    executor.release(Release(request_id))


@dataclass(slots=True)
class _Stage:
    """An executor's cache, with blocks that are cached in its device's memory."""

    executor: StageExecutor
    cache: StageCache
    store: CacheStore
    answers: "queue.Queue[Fetched]"
    blocks: int

    @classmethod
    def of(cls, executor: StageExecutor, blocks: int) -> "_Stage":
        """All blocks are one request's, cached, with numbers from 0 on, and random within."""
        answers: queue.Queue[Fetched] = queue.Queue()
        device = BlocksOfParts([executor])
        size = device.packed.block_bytes
        store = CacheStore(CacheRoom(blocks * size, 0, ""), size, answers.put)
        store.start(device, executor.kv.blocks_total)
        stage = cls(executor, StageCache(device, store), store, answers, blocks)
        executor.kv.grow(HOLDER, blocks * BLOCK_TOKENS)
        stage.cache.change(KeepBlocks((KeptBlocks(HOLDER, 0, 0, blocks),)))
        executor.release(Release(HOLDER))
        for rows_BW in executor.kv_memory.block_rows():
            rows_BW.random_(0, 64)
        return stage

    def order(self) -> float:
        """Seconds that the order to put all of it away takes in the loop."""
        began = time.perf_counter()
        self.cache.change(LowerBlocks(HOST, ((0, self.blocks),)))
        return time.perf_counter() - began

    def sums(self) -> np.ndarray:
        """A sum of each block's bytes, in order of the numbers."""
        index_B = torch.tensor(self.executor.kv.places(range(self.blocks)))
        rows = self.executor.kv_memory.block_rows()
        weighed = [(at + 1) * one[index_B].sum(1) for at, one in enumerate(rows)]
        return torch.stack(weighed).sum(0).numpy()

    def back(self) -> tuple[int, float]:
        """Bring all back: how many came, and in how long all can be read."""
        began = time.perf_counter()
        self.cache.change(FetchBlocks(0, ((0, self.blocks),)))
        came = self.answers.get(timeout=300).blocks
        while not all(one.is_there for one in self.cache._arriving):
            time.sleep(POLL_S)
        return came, time.perf_counter() - began

    @property
    def bytes(self) -> int:
        return self.blocks * self.store.block_bytes

    def end(self) -> None:
        """Cache nothing any more."""
        self.store.clear(self.store.block_bytes)
        self.cache.device.blocks_out(RetainBlocks())


# -- what is measured -----------------------------------------------------------------------------


def _evicted(executor: StageExecutor, blocks: int) -> list[dict[str, Any]]:
    """Put all away at once, while steps write where it stands; twice: the host's memory is fresh
    the first time."""
    executor.kv.grow(FILLER, (executor.kv.blocks_total - blocks) * BLOCK_TOKENS)
    stage = _Stage.of(executor, blocks)
    runs = [_one_eviction(stage, is_first=turn == 0) for turn in range(2)]
    executor.release(Release(FILLER))
    stage.end()
    return runs


def _one_eviction(stage: _Stage, *, is_first: bool) -> dict[str, Any]:
    before, waits, requests = (
        stage.sums(),
        list[float](),
        range(stage.blocks * BLOCK_TOKENS // ROWS),
    )
    began = time.perf_counter()
    order_s = stage.order()
    with _Watch(stage.executor) as watch, _timed_steps(waits):
        for request_id in requests:
            _kept_step(stage.executor, request_id)
    for request_id in requests:
        stage.executor.release(Release(request_id))
    came, _ = stage.back()
    found = int((stage.sums() == before).sum()) if came == stage.blocks else came
    return {
        "is_first": is_first,
        "bytes": stage.bytes,
        "lost": stage.blocks - found,
        "order_s": order_s,
        "waits_s": waits,
        "out_s": watch.ended_at - began,
    }


def _rested(executor: StageExecutor, blocks: int) -> dict[str, Any]:
    """Put a request away and bring it back, twice."""
    stage, run = _Stage.of(executor, blocks), dict[str, Any]()
    before = stage.sums()
    for turn in ("first", "second"):
        began = time.perf_counter()
        stage.order()
        with _Watch(executor) as watch:
            pass
        run[f"{turn}_out_s"] = watch.ended_at - began
        for rows_BW in executor.kv_memory.block_rows():
            rows_BW.zero_()
        came, run[f"{turn}_back_s"] = stage.back()
        assert came == blocks and (stage.sums() == before).all(), "all come back as they were"
    stage.end()
    return {"bytes": stage.bytes, **run}


def _kept_step(executor: StageExecutor, request_id: int) -> None:
    admission = Admission(request_id, ROWS, ROWS, SamplingParams(max_tokens=1))
    span = Span(request_id, 0, ROWS, samples=False)
    executor.step(Batch(0, PREFILL, -1, (span,), (admission,)), [7] * ROWS)


class _Watch:
    """Notes when all that leaves is copied; returns only then."""

    def __init__(self, executor: StageExecutor) -> None:
        (self.leaving, _) = executor.moving._leaving[-1]
        self.thread = threading.Thread(target=self._wait)

    def __enter__(self) -> "_Watch":
        self.thread.start()
        return self

    def _wait(self) -> None:
        while not self.leaving.is_gone:
            time.sleep(POLL_S)
        self.ended_at = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        self.thread.join()


def _timed_steps(waits: list[float]) -> AbstractContextManager[Any]:
    """Note for how long each step stands before it computes."""
    make_way = MovingBlocks.make_way

    def timed(moving: MovingBlocks, kv: KvBlocks, batch: Batch) -> None:
        began = time.perf_counter()
        make_way(moving, kv, batch)
        waits.append(time.perf_counter() - began)

    return patch.object(MovingBlocks, "make_way", timed)


def _memory_rate() -> float:
    """GB/s of plain copies of 512 MB, warm."""
    source, target = np.ones(2**29, np.uint8), np.ones(2**29, np.uint8)
    rates = []
    for _ in range(5):
        began = time.perf_counter()
        target[:] = source
        rates.append(len(source) / (time.perf_counter() - began) / 1e9)
    return max(rates)


if __name__ == "__main__":
    main()
