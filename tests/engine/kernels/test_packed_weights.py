"""Every form gives back the numbers that its definition says, whole and by rows."""

import pytest
import torch

from molink.engine.kernels.packed_weights import (
    BLOCK_ROWS,
    E2M1,
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    Mxfp4Weight,
    QuantizedWeight,
    joined,
)

OUTPUTS, INPUTS, GROUP = BLOCK_ROWS + 5, 64, 32


def bytes_of(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def made(kind: str, outputs: int = OUTPUTS, seed: int = 0) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.rand(outputs, INPUTS // GROUP, generator=generator)
    if kind == "int4":
        return Int4Weight(bytes_of(generator, outputs, INPUTS // 2), scale, scale - 0.5)
    if kind == "mxfp4":
        exponents = 120 + bytes_of(generator, outputs, INPUTS // GROUP) % 12
        return Mxfp4Weight(bytes_of(generator, outputs, INPUTS // 2), exponents)
    if kind == "int8":
        return Int8Weight(bytes_of(generator, outputs, INPUTS).view(torch.int8), scale)
    if kind == "int8 with zeros":
        codes = bytes_of(generator, outputs, INPUTS).view(torch.int8)
        return Int8Weight(codes, scale, scale - 0.5)
    codes = torch.randn(outputs, INPUTS, generator=generator).to(torch.float8_e4m3fn)
    return Fp8Weight(codes, scale)


KINDS = ("int4", "mxfp4", "int8", "int8 with zeros", "fp8")


def number(weight: QuantizedWeight, row: int, column: int) -> float:
    """One number of a matrix, by the words of the class."""
    group = column // GROUP
    if isinstance(weight, Int4Weight | Mxfp4Weight):
        byte = int(weight.codes[row, column // 2])
        code = byte >> 4 if column % 2 else byte & 15
        if isinstance(weight, Mxfp4Weight):
            return E2M1[code] * 2.0 ** (int(weight.exponents[row, group]) - 127)
        return float(weight.scale[row, group] * (code - 8) + weight.zero[row, group])
    assert isinstance(weight, Int8Weight | Fp8Weight)
    value = weight.scale[row, group] * weight.codes[row, column].float()
    zero = weight.zero if isinstance(weight, Int8Weight) else None
    return float(value if zero is None else value + zero[row, group])


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_the_definition(kind):
    weight = made(kind)
    assert weight.shape == (OUTPUTS, INPUTS)
    assert weight.group == GROUP
    whole = weight.dequantized(torch.float32)
    for row in (0, 1, BLOCK_ROWS, OUTPUTS - 1):
        for column in (0, 1, 30, 33, INPUTS - 1):
            assert float(whole[row, column]) == number(weight, row, column)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_a_part_of_the_whole(kind):
    weight = made(kind)
    part = weight.rows(3, 11)
    assert part.shape == (8, INPUTS)
    assert torch.equal(part.dequantized(torch.float32), weight.dequantized(torch.float32)[3:11])
    assert part.codes.data_ptr() == weight.codes[3:].data_ptr()


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_stand_one_above_the_other(kind):
    parts = [made(kind, 3, seed=1), made(kind, 5, seed=2)]
    whole = joined(parts)
    wanted = torch.cat([part.dequantized(torch.float32) for part in parts])
    assert torch.equal(whole.dequantized(torch.float32), wanted)
    assert whole.nbytes == sum(part.nbytes for part in parts)


def test_different_forms_are_not_joined():
    wider = made("int4")
    assert isinstance(wider, Int4Weight)
    coarser = Int4Weight(wider.codes, wider.scale[:, :1], wider.zero[:, :1])
    for other in (made("mxfp4"), made("int8"), coarser):
        assert wider.form != other.form
        with pytest.raises(ValueError, match="of one form"):
            joined([wider, other])
    assert made("int8").form != made("int8 with zeros").form


def test_four_bits_with_scales_of_sixteen_take_five_bits_a_weight():
    weight = made("int4")
    small = Int4Weight(weight.codes, weight.scale.bfloat16(), weight.zero.bfloat16())
    assert small.nbytes * 8 == 5 * OUTPUTS * INPUTS


def test_numbers_are_rounded_once():
    weight = made("int4")
    wanted = weight.dequantized(torch.float32).bfloat16()
    assert torch.equal(weight.dequantized(torch.bfloat16), wanted)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Int4Weight(
            torch.zeros(4, 16, dtype=torch.uint8), torch.ones(4, 3), torch.ones(4, 3)
        ),
        lambda: Int4Weight(
            torch.zeros(4, 16, dtype=torch.uint8), torch.ones(4, 1), torch.ones(4, 2)
        ),
        lambda: Int4Weight(torch.zeros(4, 16), torch.ones(4, 1), torch.ones(4, 1)),
        lambda: Mxfp4Weight(
            torch.zeros(4, 32, dtype=torch.uint8), torch.zeros(4, 1, dtype=torch.uint8)
        ),
        lambda: Int8Weight(torch.zeros(4, 32, dtype=torch.int8), torch.ones(3, 1)),
        lambda: Fp8Weight(torch.zeros(4, 32), torch.ones(4, 1)),
    ],
)
def test_what_does_not_fit_is_no_weight(build):
    with pytest.raises(ValueError):
        build()
