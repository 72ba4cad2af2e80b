"""What a stage launches from step to step is compiled once: neither a longer table of blocks nor
another number of rows, keys or sequences makes Triton compile in mid-service.

A driver stands in for a card: launches are bound, specialized and compiled, and not run."""

from functools import partial
from random import Random

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes with the test extra, on Linux")

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from molink.engine.kernels.cuda import fused, ragged_attention
from molink.engine.kernels.cuda.fused import TritonFused
from molink.engine.kernels.cuda.fused_kernels import (
    gate_rows,
    multiply_experts,
    norm_rows,
    turn_and_store,
)
from molink.engine.kernels.cuda.fused_math import ExpertCall, Gate, Rotation, Turn
from molink.engine.kernels.cuda.ragged_attention import RaggedAttention
from molink.engine.kernels.cuda.ragged_kernels import attend_tiles, merge_parts
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import LayerKv
from molink.engine.memory.kv_rows import KvRows, quantize
from molink.engine.memory.ragged_batch import RaggedBatch, RaggedSpan

CPU = torch.device("cpu")
SLOTS, HEADS, KV_HEADS, SIZE = 4096, 8, 2, 64

KERNELS = (attend_tiles, merge_parts, norm_rows, gate_rows, turn_and_store, multiply_experts)


class Card:
    """Stand in for the driver of an RTX 30."""

    def get_current_target(self):
        return GPUTarget("cuda", 86, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Number of kernels compiled so far."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_active", Card())
    for module in (ragged_attention, fused):
        monkeypatch.setattr(
            module, "launched", lambda kernel, grid: partial(kernel.run, grid=grid, warmup=True)
        )
    for kernel in KERNELS:
        kernel.device_caches.clear()
    yield lambda: sum(len(kernel.device_caches[0][0]) for kernel in KERNELS)
    for kernel in KERNELS:
        kernel.device_caches.clear()


def random_batch(random):
    """Spans as they come: numbers of 1 and multiples of 16 are what Triton would specialize."""
    spans, row = [], 0
    for _ in range(random.choice((1, 2, 5, 16, 17))):
        rows = random.choice((1, 1, 1, 4, 16, 33))
        earlier = random.choice((0, 1, 16, 200, 255))
        blocks = tuple(range(-(-(earlier + rows) // 16)))
        spans.append(RaggedSpan(row, rows, earlier, earlier + rows, blocks))
        row += rows
    return row, RaggedBatch.of(spans, CPU)


@pytest.mark.parametrize("kv", ["same", "int8"])
def test_steps_compile_nothing_new(kv, compiled):
    random = Random(0)
    numbers = torch.zeros(SLOTS, KV_HEADS, SIZE, dtype=torch.bfloat16)
    kv_rows = KvRows(numbers) if kv == "same" else KvRows(*quantize(numbers))
    layer, variant = LayerKv(kv_rows, kv_rows), AttentionVariant(0.125, 30, torch.zeros(HEADS))
    for step in range(30):
        rows, batch = random_batch(random)
        q_HTA = torch.zeros(HEADS, rows, SIZE, dtype=torch.bfloat16)
        window = random.choice((1, 16, 17, 4096))
        RaggedAttention().attend(q_HTA.transpose(0, 1), layer, batch, window, variant)
        if step == 9:
            before = compiled()
    assert compiled() == before == 3


def between_products(rows, kv_rows, slot):
    """What a layer launches beside attention, over heads that lie side by side in one product or
    each for itself."""
    half, heads = torch.bfloat16, HEADS + 2 * KV_HEADS
    one_product = torch.zeros(rows, heads, SIZE, dtype=half)
    each = torch.zeros(heads, rows, SIZE, dtype=half).transpose(0, 1)
    tables = torch.zeros(2, rows, SIZE, dtype=half)
    turn = Turn(Rotation(SIZE, neighbours=False, step=1), *tables)
    slots = torch.full((2, rows + slot), slot)[1, slot:]
    layer, operators = LayerKv(kv_rows, kv_rows), TritonFused()
    for x in (one_product, each):
        q, k, v = x.split([HEADS, KV_HEADS, KV_HEADS], 1)
        operators.write(q, k, v, turn, slots, layer)
        operators.normed(q[None], torch.ones(SIZE), 1e-6)
    operators.normed(torch.zeros(1, rows, 96, dtype=half), torch.ones(96), 1e-6)
    x = operators.gated(torch.zeros(rows, 192, dtype=half), Gate("silu"))
    weight, experts = torch.zeros(4, 96, 64, dtype=half), torch.zeros(3 * rows, dtype=torch.int64)
    operators.expert_product(ExpertCall(x, weight, None, experts, 3, None))


@pytest.mark.parametrize("kv", ["same", "int8"])
def test_what_stands_between_products_compiles_nothing_new(kv, compiled):
    random = Random(0)
    numbers = torch.zeros(SLOTS, KV_HEADS, SIZE, dtype=torch.bfloat16)
    kv_rows = KvRows(numbers) if kv == "same" else KvRows(*quantize(numbers))
    between_products(5, kv_rows, 3)
    before = compiled()
    for _ in range(20):
        between_products(random.choice((1, 2, 16, 17, 170)), kv_rows, random.choice((0, 1, 16)))
    assert compiled() == before == 5
