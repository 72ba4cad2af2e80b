"""Rows that are no numbers, or go beyond a format, are found in every format."""

import math

import pytest
import torch

from molink.engine.device.elements import elements_of
from molink.stage.unfit_rows import unfit_rows

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def unfit(rows: torch.Tensor, dtype: str):
    found = unfit_rows(elements_of(rows), dtype)
    return None if found is None else (found.lost_T.tolist(), found.beyond_T.tolist())


def largest(dtype: str) -> float:
    return torch.finfo(DTYPES[dtype]).max


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lost", [math.inf, -math.inf, math.nan])
def test_rows_that_are_no_numbers_are_found_in_every_format(dtype, lost):
    rows = torch.full((3, 4), largest(dtype), dtype=DTYPES[dtype])
    assert unfit(rows, dtype) is None and unfit(-rows, dtype) is None
    rows[2, 3] = lost
    assert unfit(rows, dtype) == ([False, False, True], [False, False, False])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("held", DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_number_that_fits_is_the_last_that_does(dtype, held, sign):
    """Also where the format in which rows came has no number between it and the next one."""
    most = torch.tensor(min(largest(dtype), largest(held))).to(DTYPES[held])
    if most.double() > largest(dtype):  # It was rounded up.
        most = beside(most, -1)
    rows = torch.zeros(2, 3, dtype=DTYPES[held])
    rows[0, 1] = sign * most
    assert unfit(rows, dtype) is None
    rows[0, 1] = sign * beside(most, 1)
    is_number = bool(rows.isfinite().all())
    assert unfit(rows, dtype) == ([not is_number, False], [is_number, False])


def beside(number: torch.Tensor, step: int) -> torch.Tensor:
    bits = torch.int32 if number.dtype == torch.float32 else torch.int16
    return (number.view(bits) + step).view(number.dtype)


def test_rows_beyond_the_own_format_are_told_apart_from_those_that_are_none():
    rows = torch.full((3, 4), 60_000.0, dtype=torch.bfloat16)
    assert unfit(rows, "float16") is None
    rows[1, 2] = -70_000.0
    assert unfit(rows, "bfloat16") is None
    assert unfit(rows, "float16") == ([False, False, False], [False, True, False])
    rows[1, 3] = math.nan
    assert unfit(rows, "float16") == ([False, True, False], [False, False, False])
