import pytest
import torch

from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.kv_rows import KvRows, quantize

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def written(rows: torch.Tensor, slots: list[int], of: int = 64) -> KvRows:
    kept = KvRows.zeros(of, rows, "int8")
    kept.write(torch.tensor(slots), rows)
    return kept


def test_numbers_are_codes_times_scales_exactly():
    rows = torch.randn(9, 3, 32)
    codes, scales = quantize(rows)
    exact = codes.double() * scales.double()[..., None]
    assert torch.equal(KvRows(codes, scales).numbers(torch.float32).double(), exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-4, 1.0, 300.0])
def test_a_number_is_off_by_half_a_step_of_its_head_at_most(dtype, size):
    rows = (torch.randn(50, 3, 64) * size).to(dtype)
    rows[7, 1] = 0
    rows[8, 2, 5] = 100 * size  # Which every dtype can write.
    codes, scales = quantize(rows)
    steps = scales.float()[..., None]
    # Beside the rounding to codes: the scale's own rounding, which only the largest number feels.
    off = (KvRows(codes, scales).numbers(torch.float32) - rows.float()).abs()
    assert (off <= steps * (0.5 + 1e-3)).all()
    assert codes.abs().amax() == 127
    assert not codes[7, 1].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_come_in_the_format_asked_for(dtype):
    rows = torch.randn(5, 2, 16) * 100
    kept = KvRows(*quantize(rows))
    exact = kept.numbers(torch.float32)
    assert torch.equal(kept.numbers(dtype), exact.to(dtype))


def test_a_token_is_rounded_by_itself():
    rows = torch.randn(6, 2, 16)
    together = written(rows, [4, 9, 2, 30, 31, 7])
    alone = written(rows[2:3], [2])
    assert torch.equal(together.numbers(torch.float32)[2], alone.numbers(torch.float32)[2])


def test_codes_and_scales_go_together_through_views_and_gathers():
    rows = torch.randn(64, 2, 16)
    kept = written(rows, list(range(64)))
    whole = kept.numbers(torch.float32)
    assert torch.equal(kept.between(5, 20).numbers(torch.float32), whole[5:20])
    gathered = KvPool(64).gather(kept, torch.tensor([2, 0])).numbers(torch.float32)
    assert torch.equal(gathered, torch.cat([whole[32:48], whole[:16]]))


def test_slots_that_nobody_wrote_are_zero():
    kept = written(torch.randn(1, 2, 16), [3])
    assert not kept.numbers(torch.bfloat16)[[0, 63]].any()
