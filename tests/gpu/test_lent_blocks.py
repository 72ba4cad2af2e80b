"""Blocks that a lender holds, on a card where there is one: what it gives for decode rows, drafts
and a prompt is what one in main memory gives, and what comes back is what was put."""

import numpy as np
import pytest
import torch

from molink.engine.layers.held_blocks import HeldBlocks
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine_protocol.lender import LentKv, LentLayer, LentSpan
from tests.gpu.device import DEVICE

KV_HEADS, HEADS, SIZE, PLACES = 2, 4, 32, 24
LAYERS = (LentLayer(3, KV_HEADS, SIZE, SIZE), LentLayer(4, KV_HEADS, SIZE, SIZE))
SPANS = (LentSpan(1, 250, range(3, 15)), LentSpan(3, 70, (1, 0, 7, 9)), LentSpan(20, 96, range(6)))
VARIANT = AttentionVariant(SIZE**-0.5, 5.0)


def filled(held: HeldBlocks, kv_dtype: str) -> np.ndarray:
    """Bytes of all places, of numbers that are some."""
    like = HeldBlocks.of(LentKv(LAYERS, "float32", kv_dtype), PLACES)
    drawn = torch.Generator().manual_seed(5)
    for layer in like.pool.layers.values():
        for rows in (layer.keys, layer.values):
            numbers = torch.randn(like.pool.slots, KV_HEADS, SIZE, generator=drawn)
            rows.write(torch.arange(like.pool.slots), numbers)
    packed = torch.cat(like.pool.block_rows(), dim=1).numpy()
    held.put(range(PLACES), packed)
    return packed


def attended(held: HeldBlocks, spans=SPANS) -> list[torch.Tensor]:
    held.plan(spans)
    drawn = torch.Generator().manual_seed(6)
    q_RHA = torch.randn(held.rows_planned, HEADS, SIZE, generator=drawn)
    parts = [held.attend(one.layer, q_RHA, None, VARIANT) for one in LAYERS]
    assert all(part.out_THV.device.type == "cpu" for part in parts)
    return [tensor for part in parts for tensor in (part.out_THV, part.log_sums_TH)]


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_a_device_gives_what_main_memory_gives(kv_dtype):
    kv = LentKv(LAYERS, "float32", kv_dtype)
    here, there = HeldBlocks.of(kv, PLACES), HeldBlocks.of(kv, PLACES, DEVICE)
    packed = filled(here, kv_dtype)
    assert (filled(there, kv_dtype) == packed).all()
    there.warm_up()
    for got, wanted in zip(attended(there), attended(here), strict=True):
        assert torch.allclose(got, wanted, atol=2e-5)
    taken = [one.take(4, [7, 2]) for one in (here, there)]
    assert taken[0].tolist() == taken[1].tolist()


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_what_is_kept_of_a_card_lies_in_tensors_of_its_own(kv_dtype):
    held = HeldBlocks.of(LentKv(LAYERS, "float32", kv_dtype), PLACES, DEVICE)
    packed = filled(held, kv_dtype)
    wanted = attended(held, (LentSpan(2, 250, (3, 20, 5)),))
    held.keep(8, [(20, 1)])
    held.shrink(8)
    assert held.pool.slots == 8 * 16
    left_bytes = sum(rows.untyped_storage().nbytes() for rows in held.pool.block_rows())
    assert left_bytes == packed[:8].size, "the others' memory is free"
    got = attended(held, (LentSpan(2, 250, (3, 1, 5)),))
    assert all(torch.allclose(a, b, atol=2e-5) for a, b in zip(got, wanted, strict=True))
    held.put([1], packed[:1])
    assert held.take(3, [1]).tolist() == held.take(3, [0]).tolist()
