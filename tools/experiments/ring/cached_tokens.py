"""How long does it take to bring cached KV back from host memory or disk, and to compute it again?

    python -m tools.experiments.ring.cached_tokens MODEL --out DIR

One stage with all layers of MODEL, on the CPU. It computes a prompt in spans of 128 rows, puts the
prompt's blocks away through the thread that a stage has for it, and brings them back: from host
memory, and from an encrypted file whose pages the system has been asked to forget. Beside it what
the stage's own loop pays for: the copy out of the blocks. Medians of the rounds; a minute.
"""

import queue
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click
import torch

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import describe
from molink.executor.loading import load_stage
from molink.executor.packed_blocks import PackedBlocks
from molink.executor.stage import StageExecutor
from molink.stage.cache.store import CacheStore
from molink.stage_protocol.cache_room import CacheRoom
from molink.stage_protocol.messages import StageWork
from molink_scheduler.batch import PREFILL, Admission, Batch, Fetched, Release, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS
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
@rounds_option(3)
def main(out: Path, model: str, tokens: int, dtype: str, threads: int, rounds: int) -> None:
    """Measure what it takes to have the KV of a prompt again."""
    torch.set_num_threads(threads)
    blocks = tokens // BLOCK_TOKENS
    executor = _loaded(model, dtype, threads, blocks)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        trial = _Trial.of(executor, blocks, folder)
        runs = [
            {
                "compute": _compute(executor, blocks),
                "copy out, in the loop": trial.copy_out(),
                "from host memory": trial.back_from(HOST),
                "from the file": trial.back_from(FILE),
            }
            for _ in range(rounds)
        ]
    middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    facts = {"model": model, "dtype": dtype, "threads": threads, "blocks": blocks}
    sizes = {"block_bytes": trial.blocks.block_bytes}
    write_report(out, "cached_tokens", facts | sizes | {"runs": runs, "medians_s": middle})
    size_mb = blocks * trial.blocks.block_bytes / 1e6
    rows = [
        (name, f"{1e3 * taken:,.0f}", f"{1e6 * taken / blocks:,.0f}", f"{size_mb / taken:,.0f}")
        for name, taken in middle.items()
    ]
    show(f"{blocks * BLOCK_TOKENS} tokens, {size_mb:.0f} MB\n")
    show(markdown_table(("", "ms", "us a block", "MB/s"), rows))


def _loaded(model: str, dtype: str, threads: int, blocks: int) -> StageExecutor:
    """All layers, and room for the prompt twice."""
    layers = describe(open_checkpoint(model)).layers
    work = StageWork((0, layers), "cpu", dtype, 2 * blocks * BLOCK_TOKENS, threads)
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
        store.start(packed)
        return cls(packed, store, answers, count)

    def copy_out(self) -> float:
        """Seconds of the copy that is taken before the blocks are used again."""
        began = time.perf_counter()
        self.blocks.take([range(self.count)])
        return time.perf_counter() - began

    def back_from(self, tier: int) -> float:
        """Seconds until all blocks are where they were, from when they are asked for."""
        numbers, size = range(self.count), self.blocks.block_bytes
        step = max(1, 2**27 // size)
        for first in range(0, self.count, step):
            some = numbers[first : first + step]
            self.store.put(tier, some, self.blocks.take([some]))
            self._fetch([])
        if tier == FILE:
            self.store.settle()
        began = time.perf_counter()
        assert self._fetch(numbers) == self.count, "all blocks come back"
        return time.perf_counter() - began

    def _fetch(self, numbers: "range | list[int]") -> int:
        """Also waits for all that was asked for before."""
        self.store.fetch(0, numbers, [numbers], self.blocks)
        return self.answers.get(timeout=ANSWER_S).blocks


if __name__ == "__main__":
    main()
