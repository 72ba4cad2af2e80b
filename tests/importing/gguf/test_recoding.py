"""Types that no kernel reads come out of an import as eight bits that mean what the file means."""

import tracemalloc
from dataclasses import replace

import gguf
import numpy as np
import pytest

from molink.checkpoint.gguf.block_types import RECODED_TYPES
from molink.checkpoint.gguf.header import read_gguf
from molink.importing.gguf.recoding import pieces_of, whole
from tests.checkpoint.gguf.written import Tensor, write_gguf

BLOCKS = {number: kind for number, kind in RECODED_TYPES.items() if kind.values > 1}
SCALES = {
    "Q2_K": (80, 82), "Q3_K": (108,), "IQ1_S": (0,), "TQ1_0": (52,), "TQ2_0": (64,),
    "IQ4_NL": (0,), "IQ4_XS": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,),
    "IQ3_XXS": (0,), "IQ3_S": (0,), "Q1_0": (0,), "Q2_0": (0,),
}  # fmt: skip
"""Where a block has numbers of fp16, which drawn bytes would make no numbers."""


def drawn(kind, rows, inputs):
    """Blocks whose codes are any bytes and whose scales are moderate."""
    random = np.random.default_rng(rows + inputs)
    blocks = random.integers(0, 256, (rows, inputs // kind.values, kind.size), dtype=np.uint8)
    scales = random.uniform(0.001, 0.01, (*blocks.shape[:2], 1)).astype(np.float16)
    for at in SCALES.get(kind.name, ()):
        blocks[..., at : at + 2] = scales.view(np.uint8)
    if kind.name == "Q8_K":
        blocks[..., :4] = scales.astype(np.float32).view(np.uint8)
    if kind.name == "NVFP4":
        blocks[..., :4] = random.integers(40, 80, (*blocks.shape[:2], 4))
    if kind.name == "IQ1_M":  # Its scale is spread over the high bits of four words.
        words = blocks[..., 48:56].view(np.uint16)
        words[:] = words & 0x0FFF
        bits = scales.view(np.uint16)
        for at in range(4):
            words[..., at] |= ((bits[..., 0] >> (4 * at)) & 15) << 12
    return blocks


def numbers_of(kind, blocks):
    """By the format's own package, but for the types that it does not read."""
    if kind.name in ("Q1_0", "Q2_0"):
        bits = np.unpackbits(blocks[..., 2:], axis=-1, bitorder="little").astype(np.float32)
        codes = 2 * bits - 1 if kind.name == "Q1_0" else bits[..., ::2] + 2 * bits[..., 1::2] - 1
        scale = blocks[..., :2].copy().view(np.float16).astype(np.float32)
        return (scale * codes).reshape(len(blocks), -1)
    if kind.name == "Q8_K":
        scale = blocks[..., :4].copy().view(np.float32)
        return (scale * blocks[..., 4:260].view(np.int8)).reshape(len(blocks), -1)
    raw = blocks.reshape(len(blocks), -1)
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind.name])


def only_tensor(tmp_path, number, shape, data):
    path = write_gguf(tmp_path / "m.gguf", {}, [Tensor("m", shape[::-1], number, data)])
    return read_gguf(path).tensors[0]


@pytest.mark.parametrize("number", BLOCKS, ids=lambda one: BLOCKS[one].name)
def test_every_type_of_blocks_means_the_same_in_8_bits(tmp_path, number):
    kind = BLOCKS[number]
    blocks = drawn(kind, 6, 512)
    tensor = only_tensor(tmp_path, number, (6, 512), blocks.tobytes())
    assert (tensor.type.name, tensor.stored.type, tensor.is_plain) == ("q8_0", kind, False)
    raw = whole(tensor).reshape(6, -1)
    assert raw.nbytes == tensor.stop - tensor.start == 6 * tensor.row_bytes
    found = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q8_0).reshape(-1, 32)
    wanted = numbers_of(kind, blocks).reshape(-1, 32)
    assert np.isfinite(wanted).all() and np.unique(wanted).size > 2
    largest = np.abs(wanted).max(1, keepdims=True)
    # Half a step of eight bits, and the scale in fp16, at the smallest of which steps are coarse.
    assert (np.abs(found - wanted) <= largest * (0.5 / 127 + 2**-10) + 1e-6).all()


@pytest.mark.parametrize("number", [24, 25, 26, 27, 28])
def test_plain_numbers_of_other_types_become_fp32(tmp_path, number):
    kind = ("<i1", "<i2", "<i4", "<i8", "<f8")[number - 24]
    values = np.array([-128, 0, 1, 2, 3, 100, 127, 5], kind)
    tensor = only_tensor(tmp_path, number, (8,), values.tobytes())
    assert tensor.type.name == "F32" and tensor.is_plain
    assert whole(tensor).view(np.float32).tolist() == values.tolist()


def test_a_part_of_a_stack_is_that_part_written_anew(tmp_path):
    """As experts are cut out of their stack: three matrices of four rows."""
    kind = BLOCKS[23]
    tensor = only_tensor(tmp_path, 23, (3, 4, 256), drawn(kind, 12, 256).tobytes())
    everything = whole(tensor).tobytes()
    size = 4 * tensor.row_bytes
    for expert in range(3):
        start = expert * size
        part = replace(tensor, shape=(4, 256), start=start, stop=start + size)
        assert whole(part).tobytes() == everything[start : start + size]


def test_a_large_tensor_is_written_anew_in_little_memory(tmp_path):
    """As fp32 it would be 64 MB."""
    kind = BLOCKS[35]
    rows, inputs = 4096, 4096
    one = drawn(kind, 64, inputs).tobytes()
    tensor = only_tensor(tmp_path, 35, (rows, inputs), one * (rows // 64))
    first = next(iter(pieces_of(tensor, tensor.start, tensor.stop)))  # Loads the package.
    tracemalloc.start()
    try:
        size = sum(len(piece) for piece in pieces_of(tensor, tensor.start, tensor.stop))
        assert tracemalloc.get_traced_memory()[1] < 24 * 2**20
    finally:
        tracemalloc.stop()
    assert size == tensor.stop - tensor.start and size % len(first) == 0
