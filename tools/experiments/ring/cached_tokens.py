"""How long does it take to bring cached KV back from host memory or disk, and to compute it again?

    python -m tools.experiments.ring.cached_tokens MODEL --out DIR

One stage with all layers of MODEL, on the CPU or with --device on a card. It computes a prompt in
spans of 128 rows, puts the prompt's blocks away through the thread that a stage has for it, and
brings them back: from host memory, and from an encrypted file whose pages the system has been asked
to forget: when the fetch is answered, when the first layer and when all of it is there, and when
128 rows behind it are computed, by a step that waits for each layer, and by one that waits for all.
Beside it the copy out of the blocks, which a thread makes beside the loop. Medians of the rounds; a
minute.
"""

import queue
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import click
import torch

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import describe
from molink.engine.loading import load_stage
from molink.engine.memory.arriving_blocks import ArrivingBlocks
from molink.engine.memory.cached_blocks import ArrivingTogether, BlocksOfParts
from molink.engine.memory.leaving_blocks import LeavingBlocks
from molink.engine.memory.packed_blocks import PackedBlocks
from molink.engine.step.stage import StageExecutor
from molink.stage.cache.store import CacheStore
from molink.stage_protocol.cache_room import CacheRoom
from molink.stage_protocol.messages import StageWork
from molink_scheduler.batch import PREFILL, Admission, Batch, Release, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.changes import Fetched
from molink_scheduler.kv.tiers import FILE, HOST
from molink_scheduler.request import SamplingParams
from tools.experiments.harness.experiment import (
    experiment,
    markdown_table,
    rounds_option,
    show,
    write_report,
)

__all__ = ["main"]

SPAN_TOKENS = 128
ANSWER_S = 120.0
"""For which blocks are waited for."""


@experiment
@click.argument("model")
@click.option("--tokens", default=2000, show_default=True, help="Of the prompt, in whole blocks.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32")
@click.option("--threads", default=1, show_default=True, help="Compute threads of the stage.")
@click.option("--device", default="cpu", show_default=True, help="Of the stage.")
@rounds_option(3)
def main(
    out: Path, model: str, tokens: int, dtype: str, threads: int, device: str, rounds: int
) -> None:
    """Measure what it takes to have the KV of a prompt again."""
    torch.set_num_threads(threads)
    blocks = tokens // BLOCK_TOKENS
    executor = _loaded(model, StageWork((0, 0), device, dtype, threads=threads), blocks)
    _compute(executor, blocks)  # Kernels are compiled and memory is taken.
    with tempfile.TemporaryDirectory(dir=out) as folder:
        trial = _Trial.of(executor, blocks, folder)
        runs = [
            {
                "compute": _compute(executor, blocks),
                "copy out": trial.copy_out(),
                **_named("from host memory", trial.back_from(HOST)),
                **_named("from the file", trial.back_from(FILE)),
                **trial.spans(),
            }
            for _ in range(rounds)
        ]
    middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    facts = {"model": model, "device": device, "dtype": dtype, "threads": threads, "blocks": blocks}
    sizes = {"block_bytes": trial.blocks.block_bytes}
    write_report(out, "cached_tokens", facts | sizes | {"runs": runs, "medians_s": middle})
    size_mb = blocks * trial.blocks.block_bytes / 1e6
    rows = [
        (name, f"{1e3 * taken:,.0f}", f"{1e6 * taken / blocks:,.0f}", f"{size_mb / taken:,.0f}")
        for name, taken in middle.items()
    ]
    show(f"{blocks * BLOCK_TOKENS} tokens, {size_mb:.0f} MB\n")
    show(markdown_table(("", "ms", "us a block", "MB/s"), rows))


def _named(what: str, seconds: dict[str, float]) -> dict[str, float]:
    return {f"{what}: {until}": taken for until, taken in seconds.items()}


def _loaded(model: str, work: StageWork, blocks: int) -> StageExecutor:
    """All layers, and room for the prompt twice."""
    layers = describe(open_checkpoint(model)).layers
    work = replace(work, layers=(0, layers), kv_tokens=2 * blocks * BLOCK_TOKENS)
    return load_stage(model, work, lambda fraction: None)


def _compute(executor: StageExecutor, blocks: int) -> float:
    """Seconds to compute the prompt."""
    tokens = blocks * BLOCK_TOKENS
    admission = Admission(1, tokens + 1, tokens + 2, SamplingParams(max_tokens=1))
    began = time.perf_counter()
    for start in range(0, tokens, SPAN_TOKENS):
        end = min(tokens, start + SPAN_TOKENS)
        new = () if start else (admission,)
        batch = Batch(0, PREFILL, -1, (Span(1, start, end, False),), new)
        executor.step(batch, [(7 * at) % 1000 for at in range(start, end)])
    taken = time.perf_counter() - began
    executor.release(Release(1))
    return taken


@dataclass(slots=True)
class _Trial:
    """Blocks that go away and come back, and the answers of the thread that does it."""

    executor: StageExecutor
    blocks: PackedBlocks
    store: CacheStore
    answers: "queue.Queue[Fetched]"
    count: int

    @classmethod
    def of(cls, executor: StageExecutor, count: int, folder: str) -> "_Trial":
        packed = PackedBlocks((executor.kv_memory,))
        answers: queue.Queue[Fetched] = queue.Queue(maxsize=1)
        room_bytes = 2 * count * packed.block_bytes
        room = CacheRoom(room_bytes, room_bytes, folder)
        store = CacheStore(room, packed.block_bytes, answers.put)
        store.start(BlocksOfParts([executor]), executor.kv.blocks_total)
        return cls(executor, packed, store, answers, count)

    def spans(self) -> dict[str, float]:
        """Seconds until the rows behind the blocks are computed, layer by layer and not."""
        return {
            f"span behind, {where}, {how}": self.span_behind(tier, waits_for_all=waits)
            for tier, where in ((HOST, "host memory"), (FILE, "file"))
            for how, waits in (("all layers first", True), ("layer by layer", False))
        }

    @property
    def first_layer(self) -> int:
        """The one that is computed first."""
        return min(self.executor.kv_memory.block_rows_by_layer())

    def copy_out(self) -> float:
        """Seconds until the blocks are in host memory."""
        began = time.perf_counter()
        self._put_away(HOST)
        taken = time.perf_counter() - began
        self.store.drop(range(self.count))
        return taken

    def back_from(self, tier: int) -> dict[str, float]:
        """Seconds since blocks were asked for, until each of what a request waits for."""
        numbers = tuple(range(self.count))
        arriving = ArrivingBlocks(numbers, list(numbers))
        self._put_away(tier)
        began = time.perf_counter()
        self._fetch(arriving)
        answered = time.perf_counter() - began
        arriving.await_layer(self.first_layer, None)
        if self.executor.card is not None:  # Until here it is the card that waits.
            torch.cuda.current_stream(self.executor.device).synchronize()
        first = time.perf_counter() - began
        arriving.wait()
        whole = time.perf_counter() - began
        return {"answered": answered, "first layer": first, "all layers": whole}

    def span_behind(self, tier: int, *, waits_for_all: bool) -> float:
        """Seconds since blocks were asked for, until the rows behind them are computed."""
        numbers, start = tuple(range(self.count)), self.count * BLOCK_TOKENS
        end = start + SPAN_TOKENS
        self._put_away(tier)
        arriving = self.executor.moving.bring_back(self.executor.kv, numbers)
        began = time.perf_counter()
        self._fetch(arriving)
        if waits_for_all:
            arriving.wait()
        cached = ((0, self.count),)
        admission = Admission(1, end, end + 1, SamplingParams(max_tokens=1), cached=cached)
        batch = Batch(0, PREFILL, -1, (Span(1, start, end, False),), (admission,))
        self.executor.step(batch, [(7 * at) % 1000 for at in range(start, end)])
        taken = time.perf_counter() - began
        arriving.wait()
        self.executor.release(Release(1))
        self.executor.kv.drop(numbers)
        return taken

    def _put_away(self, tier: int) -> None:
        """Also waits for all that was asked for before."""
        numbers = tuple(range(self.count))
        self.store.put(tier, numbers, LeavingBlocks(self.blocks, numbers, [numbers]))
        self.store.fetch(0, ArrivingTogether(self.blocks, [ArrivingBlocks((), [])]))
        self.answers.get(timeout=ANSWER_S)
        if tier == FILE:
            self.store.settle()

    def _fetch(self, arriving: ArrivingBlocks) -> None:
        self.store.fetch(0, ArrivingTogether(self.blocks, [arriving]))
        found = self.answers.get(timeout=ANSWER_S).blocks
        assert found == self.count, "all blocks come back"


if __name__ == "__main__":
    main()
