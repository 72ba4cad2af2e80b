"""Blocks in a file: read as they were written, or not at all."""

import os
from pathlib import Path

import pytest

from molink.stage.cache.sealed_file import TAG_BYTES, SealedFile

BLOCK = bytes(range(100))


@pytest.fixture
def file(tmp_path):
    return SealedFile(tmp_path / "new", slots_max=3, block_bytes=100)


def test_a_block_is_read_as_it_was_written(file):
    assert [file.write(number, bytes([number]) * 100) for number in (7, 8, 9, 10)] == [
        *[True] * 3,
        False,
    ]
    file.drop(8)
    assert file.write(11, BLOCK)
    assert [file.read(number) for number in (7, 8, 11)] == [b"\x07" * 100, None, BLOCK]


def test_the_disk_sees_neither_names_nor_contents(file, tmp_path):
    file.write(1, BLOCK)
    assert list((tmp_path / "new").iterdir()) == []
    file._file.seek(0)
    assert BLOCK not in file._file.read()


@pytest.mark.parametrize("where", [0, 50, 100 + TAG_BYTES - 1])
def test_an_altered_block_is_lost(file, where):
    file.write(1, BLOCK)
    file._file.seek(where)
    byte = file._file.read(1)
    file._file.seek(where)
    file._file.write(bytes([byte[0] ^ 1]))
    assert file.read(1) is None


def test_a_truncated_file_has_lost_what_is_behind(file):
    file.write(1, BLOCK)
    file.write(2, BLOCK)
    os.ftruncate(file._file.fileno(), 100 + TAG_BYTES + 30)
    assert [file.read(1), file.read(2)] == [BLOCK, None]


def test_an_older_block_of_the_same_slot_is_lost(file):
    """Also one of the same number: each was written with a nonce of its own."""
    file.write(1, BLOCK)
    file._file.seek(0)
    older = file._file.read()
    file.drop(1)
    file.write(1, bytes(100))
    file._file.seek(0)
    file._file.write(older)
    assert file.read(1) is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is full")
def test_a_full_disk_ends_the_file_at_what_is_written(file):
    file.write(1, BLOCK)
    whole = file._file
    with Path("/dev/full").open("r+b", buffering=0) as full:
        file._file = full
        with pytest.raises(OSError, match="No space"):
            file.write(2, BLOCK)
        file._file = whole
    assert not file.write(2, BLOCK)
    file.drop(1)
    assert file.write(3, BLOCK) and file.read(3) == BLOCK
