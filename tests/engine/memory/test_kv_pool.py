import sys

import psutil
import pytest
import torch

from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.ragged_batch import RaggedBatch, RaggedSpan


def test_gathered_blocks_come_in_the_order_asked_for():
    pool = KvPool(64)
    keys, values = torch.randn(64, 2, 3), torch.randn(64, 2, 4)
    layer = pool.write(0, torch.arange(64), keys, values)
    order = torch.tensor([3, 0])
    slots = [*range(48, 64), *range(16)]
    assert torch.equal(pool.gather(layer.keys, order, 0).rows_SKA, keys[slots])
    assert torch.equal(pool.gather(layer.values, order, 1).rows_SKA, values[slots])


@pytest.mark.parametrize("blocks", [(1, 2, 3), (1, 3, 2)])
@pytest.mark.parametrize("window", [None, 4, 16, 30])
def test_a_span_reads_what_its_rows_see(blocks, window):
    pool, keys, rows = KvPool(64), torch.randn(64, 1, 3), 4
    layer = pool.write(0, torch.arange(64), keys, keys)
    batch = RaggedBatch.of([RaggedSpan(0, rows, 36, 40, blocks)], torch.device("cpu"))
    seen = batch.seen(0, window)
    whole = torch.cat([keys[16 * block : 16 * block + 16] for block in blocks])[:40]
    assert torch.equal(pool.read(layer.keys, seen).rows_SKA, whole[-(window or 40) - rows + 1 :])
    assert (seen.blocks_B is None) == (blocks == (1, 2, 3) or window == 4)


def test_scratch_is_reused():
    pool = KvPool(160)
    layer = pool.write(0, torch.tensor([0]), torch.ones(1, 1, 2), torch.ones(1, 1, 2))
    first = pool.gather(layer.keys, torch.arange(8), 0).rows_SKA
    again = pool.gather(layer.keys, torch.arange(5), 0).rows_SKA
    assert again.data_ptr() == first.data_ptr()


def test_a_pool_holds_whole_blocks():
    for slots in (0, 8, 40):
        with pytest.raises(ValueError, match="whole blocks"):
            KvPool(slots)


def test_memory_is_committed_only_when_written():
    before = psutil.Process().memory_info().rss
    pool = KvPool(1 << 20)
    pool.write(0, torch.tensor([5]), torch.ones(1, 4, 32), torch.ones(1, 4, 32))
    assert psutil.Process().memory_info().rss - before < 50_000_000
    assert pool.token_bytes == 2 * 4 * 32 * 4


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the process keeps it")
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_memory_of_free_blocks_goes_back_to_the_system(kv_dtype):
    """Others' keys stay; what was given back can be written again."""
    pool, ones = KvPool(1 << 16, kv_dtype), torch.ones(1 << 16, 4, 64)
    layer = pool.write(0, torch.arange(1 << 16), ones, ones)
    before = psutil.Process().memory_info().rss
    pool.give_back([(0, 1), (3, (1 << 12) - 3)])
    given_back = before - psutil.Process().memory_info().rss
    assert given_back > 0.9 * pool.token_bytes * (1 << 16)
    assert torch.allclose(layer.keys.numbers(torch.float32)[16:48], ones[:32], atol=0.01)
    assert not layer.values.numbers(torch.float32)[1024:-256].any(), "but for parts of pages"
    pool.write(0, torch.tensor([5000]), ones[:1], ones[:1])
    assert torch.allclose(layer.keys.numbers(torch.float32)[5000], ones[0], atol=0.01)


def test_a_resized_pool_keeps_shapes_and_starts_empty():
    pool = KvPool(16)
    pool.write(3, torch.tensor([0]), torch.ones(1, 2, 4), torch.ones(1, 2, 6))
    larger = pool.resized(64)
    assert larger.layers[3].values.rows_SKA.shape == (64, 2, 6)
    assert not larger.layers[3].keys.rows_SKA.any()


def test_an_int8_pool_takes_one_byte_a_number_and_two_a_scale():
    pool = KvPool(64, "int8")
    pool.write(0, torch.tensor([5]), torch.ones(1, 4, 32), torch.ones(1, 4, 24))
    assert pool.token_bytes == 4 * (32 + 24) + 2 * 4 * 2
    assert pool.resized(32).token_bytes == pool.token_bytes
    assert pool.resized(32).kv_dtype == "int8"
