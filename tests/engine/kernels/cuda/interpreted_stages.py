"""Serves tiny models twice, once with torch's attention and once with the kernel in Triton's
interpreter, which has to be chosen before Triton is imported: so this is a process of its own.

    python -m tests.engine.kernels.cuda.interpreted_stages FOLDER NAME:KV_DTYPE ...

Prints JSON for each: the tokens of both, how often the kernel computed, why it did not, and whether
rows of a recorded step get the same bits, and its padding zeros.
"""

import json
import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch

from molink.engine.kernels.cuda.attention_kind import Tiling
from molink.engine.kernels.cuda.ragged_attention import RaggedAttention
from molink.engine.layers.attention_choice import AttentionChoice
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import LayerKv
from molink.engine.memory.kv_rows import KvRows
from molink.engine.memory.ragged_batch import DecodeTables, RaggedBatch, RaggedSpan
from tests.engine.ring_driver import Job, RingDriver, load_stages
from tests.engine.tiny_models import LAYERS, save_tiny

SMALL_TILES = Tiling(keys=16, many_rows=16, splits=2, steps_min=1)
"""The interpreter takes milliseconds for every program."""

SPAN_TOKENS = 11
"""More rows than are split, with some left over."""


class Counted:
    """The kernel, and how often it computed."""

    def __init__(self):
        self.kernels, self.calls = RaggedAttention(SMALL_TILES), 0

    def attend(self, *given, **how):
        self.calls += 1
        return self.kernels.attend(*given, **how)


def tokens_of(stages):
    jobs = [Job(0, [7], 4), Job(1, list(range(3, 22)), 3, scattered=True), Job(2, [9, 4, 8], 3)]
    return RingDriver(stages, span_tokens=SPAN_TOKENS).run(jobs)


def recorded_rows_agree():
    """Of rows that the host knows, and of those that only tensors tell of, one of them padding."""
    tables, keys, slots = ((5, 2), (1,), (7, 3, 0)), (20, 9, 48), torch.randn(128, 2, 16)
    spans = [RaggedSpan(n, 1, keys[n] - 1, keys[n], tables[n]) for n in range(3)]
    blocks = torch.zeros(4, 8, dtype=torch.int32)
    for row, table in zip(blocks, tables, strict=False):
        row[: len(table)] = torch.tensor(table)
    blocks[3] = 6  # Left by another step.
    keys_S = torch.tensor([*keys, 0], dtype=torch.int32)
    layer, variant = LayerKv(KvRows(slots), KvRows(slots)), AttentionVariant(0.25, 9, torch.ones(4))
    q_THA, kernels = torch.randn(4, 4, 16), RaggedAttention(SMALL_TILES)
    known = RaggedBatch.of(spans, q_THA.device)
    tables = DecodeTables.over((keys_S - 1).clamp(min=0), keys_S, blocks)
    wanted, got = (
        kernels.attend(q_THA, layer, batch, 30, variant).out_THV for batch in (known, tables)
    )
    return torch.equal(got[:3], wanted[:3]) and not got[3].any()


def check(name, kv_dtype, folder):
    save_tiny(name, folder)
    stages = load_stages(folder, (0, 3, LAYERS), kv_dtype=kv_dtype)
    by_torch = tokens_of(stages)
    kernels = Counted()
    for stage in stages:
        stage.attention = AttentionChoice(stage.device, kernels)
    by_kernel = tokens_of(stages)
    fallbacks = [stage.fallbacks.attention for stage in stages]
    agree = recorded_rows_agree()
    return by_torch, by_kernel, kernels.calls, fallbacks, agree


def main(folder, *cases):
    torch.set_num_threads(1)
    print(json.dumps({case: check(*case.split(":"), Path(folder, case)) for case in cases}))


if __name__ == "__main__":
    main(*sys.argv[1:])
