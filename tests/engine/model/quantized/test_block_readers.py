"""Blocks of GGUF files become the numbers that the format's own package makes of them."""

import pytest
import torch

from molink.checkpoint.gguf.block_types import BLOCK_TYPES, block_type_named
from molink.engine.kernels.packed_weights import Int4Weight, Mxfp4Weight
from molink.engine.model.quantized.block_readers import BLOCK_ROWS, READERS, read_blocks
from tests.engine.model.quantized.blocks import TYPES, blocks_of, exact

EXACT = ("q4_0", "q5_0", "q8_0", "q6_k", "mxfp4")
"""Types without an offset: one product for each number."""

NOT_ALL_CODES = 1.4
"""The largest number that a group can hold, of the largest that is in it: codes are drawn."""


def drawn(name: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    plain = torch.randn(BLOCK_ROWS + 3, 512, generator=generator) * 0.05
    return blocks_of(plain, name)


@pytest.mark.parametrize("name", TYPES)
def test_numbers_are_those_of_the_file(name):
    raw = drawn(name)
    wanted = exact(raw, name)
    got = read_blocks(raw, name, torch.float32).dequantized(torch.float32)
    assert wanted.std() > 0.01
    if name in EXACT:
        assert torch.equal(got, wanted)
    else:
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6 * float(wanted.abs().max()))


@pytest.mark.parametrize("name", TYPES)
def test_four_bits_stay_four_and_groups_are_those_of_the_file(name):
    weight = read_blocks(drawn(name), name, torch.bfloat16)
    block = block_type_named(name)
    assert weight.group == block.group
    assert isinstance(weight, Int4Weight | Mxfp4Weight) == (block.bits == 4)
    assert all(
        part.dtype == torch.bfloat16
        for part in weight.tensors().values()
        if part.is_floating_point()
    )


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"])
def test_scales_of_bf16_lose_one_rounding_of_the_largest_weight(name):
    """Codes lie around their middle: |scale (q - middle)| + |zero| is the largest number that the
    group can hold. Codes from zero up would lose three times as much to an offset of their size."""
    raw = drawn(name)
    weight = read_blocks(raw, name, torch.bfloat16)
    off = weight.dequantized(torch.float32) - exact(raw, name)
    groups = (-1, weight.shape[1] // weight.group, weight.group)
    largest = exact(raw, name).view(groups).abs().amax(-1)
    assert (off.view(groups).abs().amax(-1) <= 2**-8 * NOT_ALL_CODES * largest).all()


def test_every_type_has_a_reader():
    assert set(READERS) == {block.name for block in BLOCK_TYPES.values()} == set(TYPES)
