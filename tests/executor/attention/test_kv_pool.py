import psutil
import torch

from molink.executor.attention.kv_pool import KvPool


def test_gathered_slots_come_in_the_order_asked_for():
    pool = KvPool(32)
    keys, values = torch.randn(5, 2, 3), torch.randn(5, 2, 4)
    layer = pool.write(0, torch.tensor([9, 1, 30, 4, 2]), keys, values)
    order = torch.tensor([30, 9, 2])
    assert torch.equal(pool.gather(layer.keys, order, 0).rows_SKA, keys[[2, 0, 4]])
    assert torch.equal(pool.gather(layer.values, order, 1).rows_SKA, values[[2, 0, 4]])


def test_scratch_is_reused():
    pool = KvPool(64)
    layer = pool.write(0, torch.tensor([0]), torch.ones(1, 1, 2), torch.ones(1, 1, 2))
    first = pool.gather(layer.keys, torch.arange(8), 0).rows_SKA
    again = pool.gather(layer.keys, torch.arange(5), 0).rows_SKA
    assert again.data_ptr() == first.data_ptr()


def test_memory_is_committed_only_when_written():
    before = psutil.Process().memory_info().rss
    pool = KvPool(1 << 20)
    pool.write(0, torch.tensor([5]), torch.ones(1, 4, 32), torch.ones(1, 4, 32))
    assert psutil.Process().memory_info().rss - before < 50_000_000
    assert pool.token_bytes == 2 * 4 * 32 * 4


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
