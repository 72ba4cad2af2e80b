"""A GB is 10**9 bytes and a GiB 2**30, typed and shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.units import GB, GIB, bytes_of_gb, gb_text, gib_text


def test_a_gigabyte_is_no_gibibyte():
    assert (bytes_of_gb(8), bytes_of_gb(0.5)) == (8_000_000_000, 500_000_000)
    assert (gb_text(8 * GIB), gib_text(8 * GB)) == ("8.6 GB", "7.5 GiB")


@pytest.mark.parametrize(
    ("size", "digits", "text"),
    [
        (0, 1, "0.0 GB"),
        (8_400_000_000, 1, "8.4 GB"),
        (8_400_000_000, 2, "8.40 GB"),
        (90_000_000, 1, "0.09 GB"),
        (250_000, 2, "0.00025 GB"),
    ],
)
def test_sizes_are_told_so_that_they_can_be_typed(size, digits, text):
    assert gb_text(size, digits) == text


@given(st.integers(0, 65536 * GB))
def test_what_is_written_in_gb_is_read_back_to_the_byte(size):
    assert bytes_of_gb(float(repr(size / GB))) == size
