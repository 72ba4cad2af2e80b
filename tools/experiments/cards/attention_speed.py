"""How near does the attention kernel come to reading its keys once, and with which sizes?

    python -m tools.experiments.cards.attention_speed --out DIR

Decode rows over scattered blocks in bf16, 32 query heads on 8 kv heads of 128: 16 rows of 1,024
keys read 67 MB. Its constants were chosen by what compiles without spilling; here each is changed
while the others stay. Times are the card's own.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import torch

from molink.engine.kernels.cuda.attention_kind import AttentionKind, Launch, Tiling
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import LayerKv
from molink.engine.memory.kv_rows import KvRows
from molink.engine.memory.ragged_batch import RaggedBatch, RaggedSpan
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from tools.experiments.cards.figures import Figure, card_options, keep
from tools.experiments.cards.timing import device_us
from tools.experiments.harness.experiment import experiment

__all__ = ["main"]

GROUP, KV_HEADS, SIZE = 4, 8, 128

CASES = ((1, 1_024), (16, 1_024), (16, 8_192), (64, 1_024))
"""Rows, keys of each."""

SHARE_OF_MEMORY = (0.4, 1.0)
"""Of an H200's 4.8 TB/s, predicted for 16 rows of 1,024 keys and more: 16 to 40 us."""

H200_BYTES_PER_S = 4.8e12

SPLITS, WARPS, STAGES = (1, 4, 8, 16, 32), (2, 4, 8), (1, 2, 3, 4)

VARIED = (16, 1_024)

TINY = Tiling(splits=2, steps_min=1)
"""Triton's interpreter takes milliseconds for every program."""


@experiment
@card_options
def main(out: Path, device: str) -> None:
    """Print microseconds of the kernel."""
    keep(out, "attention_speed", torch.device(device), _figures(torch.device(device)))


def _figures(device: torch.device) -> Iterator[Figure]:
    small = device.type == "cpu"
    for rows, keys in ((1, 40),) if small else CASES:
        call, size = _call(rows, keys, device, TINY if small else Tiling())
        us = device_us(call, device)
        yield Figure(f"{rows} x {keys:,} keys", us, "us")
        share = size / (us * 1e-6) / H200_BYTES_PER_S
        bounds = SHARE_OF_MEMORY if rows > 1 else (None, None)
        yield Figure(f"{rows} x {keys:,} keys, of an H200's memory", share, "", *bounds)
    rows, keys = (1, 40) if small else VARIED
    for splits in SPLITS[:1] if small else SPLITS:
        call, _ = _call(rows, keys, device, replace(Tiling(), splits=splits))
        yield Figure(f"with {splits} splits", device_us(call, device), "us")
    for name, values in (("num_warps", WARPS), ("num_stages", STAGES)):
        for value in values[:1] if small else values:
            with _launched_with(**{name: value}):
                call, _ = _call(rows, keys, device, TINY if small else Tiling())
                yield Figure(f"with {name} {value}", device_us(call, device), "us")


def _call(
    rows: int, keys: int, device: torch.device, tiling: Tiling
) -> tuple[Callable[[], Any], int]:
    """A call of the kernel, and the bytes that it reads at least."""
    from molink.engine.kernels.cuda.ragged_attention import RaggedAttention  # Imports Triton.

    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    kv_heads = 1 if device.type == "cpu" else KV_HEADS
    blocks = list(range(rows * blocks_for(keys)))
    Random(0).shuffle(blocks)
    shape = len(blocks) * BLOCK_TOKENS, kv_heads, SIZE
    pool = torch.randn(shape, device=device, dtype=dtype)
    layer = LayerKv(KvRows(pool), KvRows(torch.randn_like(pool)))
    count = blocks_for(keys)
    spans = [
        RaggedSpan(row, 1, keys - 1, keys, blocks[row * count : (row + 1) * count])
        for row in range(rows)
    ]
    batch, variant = RaggedBatch.of(spans, device), AttentionVariant(SIZE**-0.5, None, None)
    q_THA = torch.randn(rows, GROUP * kv_heads, SIZE, device=device, dtype=dtype)
    kernels = RaggedAttention(tiling)
    read_bytes = 2 * rows * keys * kv_heads * SIZE * dtype.itemsize
    return (lambda: kernels.attend(q_THA, layer, batch, None, variant)), read_bytes


def _launched_with(**options: int) -> AbstractContextManager[Any]:
    """Compile kernels with other options meanwhile."""
    plain = AttentionKind.launch

    def launch(kind: AttentionKind, *given: Any, **named: Any) -> Launch:
        made = plain(kind, *given, **named)
        return Launch(made.constants, made.options | options)

    return mock.patch.object(AttentionKind, "launch", launch)


if __name__ == "__main__":
    main()
