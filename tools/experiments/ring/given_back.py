"""How soon does a PC have memory back that a stage holds cached KV in, and what does watching cost?

    python -m tools.experiments.ring.given_back --out DIR

A store with blocks of the size that a third of Llama-3-8B has, filled with --gb of real memory, and
its watch, which is told that others need the memory: seconds until the process holds a tenth of it.
Beside it one look at the PC's memory, and what a stage measures of its store when it loads. Medians
of the rounds.
"""

import queue
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import click
import psutil
import torch

from molink.engine.memory.arriving_blocks import ArrivingBlocks
from molink.engine.memory.cached_blocks import ArrivingTogether, BlocksOfParts
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.leaving_blocks import LeavingBlocks
from molink.engine.memory.moving_blocks import MovingBlocks
from molink.engine.memory.packed_blocks import PackedBlocks
from molink.hardware.host import MainMemory, read_main_memory
from molink.stage.cache.host_share import HostShare
from molink.stage.cache.host_watch import HostWatch
from molink.stage.cache.store import CacheStore
from molink.stage_protocol.cache_room import CacheRoom
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks
from molink_scheduler.kv.changes import Fetched
from molink_scheduler.kv.tiers import HOST
from molink_scheduler.units import GB, MB
from tools.experiments.harness.experiment import (
    experiment,
    markdown_table,
    rounds_option,
    show,
    write_report,
)

__all__ = ["main"]

LAYERS, HEADS, WIDTH = 11, 8, 128
"""Of a third of Llama-3-8B."""

POOL_BLOCKS = 16
LOOKS = 400


@experiment
@click.option("--gb", default=2.0, show_default=True, help="Of cached KV, in GB.")
@rounds_option(5)
def main(out: Path, gb: float, rounds: int) -> None:
    """Measure how soon memory is given back."""
    trial = _Trial.of(int(gb * GB))
    runs = [trial.run() for _ in range(rounds)]
    middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    write_report(out, "given_back", {"gb": gb, "runs": runs, "medians": middle})
    rows = [(name, f"{value:,.3f}") for name, value in middle.items()]
    show(markdown_table(("", "median"), rows))


@dataclass(slots=True)
class _Part:
    """Blocks of a device, as the store knows them."""

    kv: KvBlocks
    kv_memory: KvPool
    moving: MovingBlocks = field(default_factory=MovingBlocks)


@dataclass(slots=True)
class _Trial:
    """A store, its watch, and the PC's memory as the watch is told."""

    blocks: PackedBlocks
    store: CacheStore
    answers: "queue.SimpleQueue[Fetched]"
    watch: HostWatch
    count: int
    load_ms: float
    is_short: bool = False

    @classmethod
    def of(cls, size_bytes: int) -> "_Trial":
        pool = KvPool(POOL_BLOCKS * BLOCK_TOKENS)
        rows = torch.ones(POOL_BLOCKS * BLOCK_TOKENS, HEADS, WIDTH, dtype=torch.bfloat16)
        with torch.inference_mode():
            for layer in range(LAYERS):
                pool.write(layer, torch.arange(len(rows)), rows, rows)
        blocks, answers = PackedBlocks((pool,)), queue.SimpleQueue[Fetched]()
        store = CacheStore(CacheRoom(size_bytes), blocks.block_bytes, answers.put)
        began = time.perf_counter()
        store.start(BlocksOfParts([_Part(KvBlocks(POOL_BLOCKS), pool)]), POOL_BLOCKS)
        load_ms = 1e3 * (time.perf_counter() - began)
        share = HostShare(size_bytes)
        count = size_bytes // blocks.block_bytes
        trial = cls(blocks, store, answers, HostWatch(), count, load_ms)
        trial.watch = HostWatch(share, store, trial.read)
        trial.watch.begin()
        return trial

    def read(self) -> MainMemory:
        """The PC's memory; all of it is others' while it is short."""
        memory = read_main_memory()
        return MainMemory(memory.total_bytes, 0) if self.is_short else memory

    def run(self) -> dict[str, float]:
        """Fill, and give back."""
        empty = _resident_bytes()
        self._fill()
        filled, began = _resident_bytes(), time.perf_counter()
        self.is_short = True
        while _resident_bytes() > empty + 0.1 * (filled - empty):
            time.sleep(0.005)
        gone = time.perf_counter() - began
        self.is_short = False
        self.watch.look()
        began = time.perf_counter()
        for _ in range(LOOKS):
            self.watch.look()
        look_ms = 1e3 * (time.perf_counter() - began) / LOOKS
        return {
            "MB held": (filled - empty) / MB,
            "s until nine tenths are given back": gone,
            "ms a look": look_ms,
            "ms that a stage loads longer": self.load_ms,
        }

    def _fill(self) -> None:
        numbers = range(self.count)
        self.store.put(
            HOST, numbers, LeavingBlocks(self.blocks, tuple(numbers), [[0] * self.count])
        )
        nothing = ArrivingTogether(self.blocks, [ArrivingBlocks((), [])])
        self.store.fetch(0, nothing)
        self.answers.get(timeout=60)


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main()
