"""Blocks in a file that outlives its process: the next one reads what it may believe, as it was."""

import errno
import os
from dataclasses import replace
from random import Random

import pytest

from molink.stage.cache.kept_index import BlockIndex
from molink.stage.cache.sealed_file import NONCE_BYTES, SealedFile
from molink.stage.cache.tier_blocks import TierBlocks
from molink.stage_protocol.cache_room import KeptFiles
from molink_scheduler.kv.changes import AwayBlocks, RetainBlocks
from molink_scheduler.kv.tiers import CacheTiers

SIZE = 100


def block(number):
    return bytes([number % 251]) * SIZE


@pytest.fixture
def kept(tmp_path):
    for name in ("blocks", "index"):
        (tmp_path / name).touch()
    given = KeptFiles(str(tmp_path / "blocks"), str(tmp_path / "index"), "ab" * 32, 1)
    return given.for_layers(b"layers 2-4")


def opened(kept, start=1, slots=8):
    """The file as a further process opens it, whatever the one before was about to do."""
    return SealedFile("nowhere", slots, SIZE, replace(kept, start=start))


def filled(kept, numbers=(3, 4, 9), directory=7):
    file = opened(kept)
    file.clear(8, SIZE, directory)
    for number in numbers:
        assert file.write(number, block(number))
    return file


def test_the_next_process_reads_what_the_one_before_has_written(kept):
    filled(kept).drop(4)
    file = opened(kept, start=2)
    assert (file.directory, file.numbers(), file.unread) == (7, {3, 9}, None)
    assert [file.read(number) for number in (3, 4, 9)] == [block(3), None, block(9)]
    assert file.write(5, block(5)) and file._slots[5][0] == 1, "where the dropped one was"
    assert opened(kept, start=3).read(5) == block(5)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_was_done_before_blocks_are_read_as_they_were(kept, seed):
    random, held, file = Random(seed), {}, filled(kept, ())
    for step in range(60):
        number, choice = random.randrange(20), random.random()
        if choice < 0.55 and number not in held:
            if file.write(number, block(number + step)):
                held[number] = block(number + step)
            assert len(held) == 8 or number in held
        elif choice < 0.85:
            file.drop(number)
            held.pop(number, None)
        elif choice < 0.9:
            file.clear(8, SIZE, step + 8)
            held.clear()
        else:
            file = opened(kept, start=2 + step)
        assert file.numbers() == held.keys()
    assert {number: opened(kept, start=99).read(number) for number in held} == held


@pytest.mark.parametrize("other", [b"layers 2-5", b""])
def test_who_computes_other_kv_believes_nothing(tmp_path, kept, other):
    filled(kept)
    given = KeptFiles(str(tmp_path / "blocks"), str(tmp_path / "index"), "ab" * 32)
    file = opened(given.for_layers(other), start=2)
    assert not file.numbers() and "other layers" in str(file.unread)
    file._slots = filled(kept)._slots
    assert file.read(3) is None, "nor could it read them"


def test_a_block_that_another_directory_numbers_is_lost(kept):
    """A disk that could not be cleared has it still, in a slot that the index names."""
    filled(kept)
    file = opened(kept, start=2)
    file.directory = 8
    assert file.read(3) is None


def test_no_nonce_comes_twice(kept):
    """As two processes count alike, each counts from its own number on."""
    nonces = [nonce for start in (1, 2, 3) for _, nonce in opened_with(kept, start).values()]
    assert len(set(nonces)) == 9 and {len(one) for one in nonces} == {NONCE_BYTES}


def opened_with(kept, start):
    file = opened(kept, start)
    file.clear(8, SIZE, 7)
    for number in (3, 4, 9):
        file.write(number, block(number))
    return file._slots


def test_what_was_written_in_part_when_the_process_ended_is_lost(kept, monkeypatch):
    """The entry comes last; of two entries for a number the newer is meant."""
    file = filled(kept, (3,))
    monkeypatch.setattr(BlockIndex, "put", lambda *given: None)
    file.write(4, block(4))
    file.drop(3)
    file.write(5, bytes(SIZE))  # Where 3 was.
    assert opened(kept, start=2).numbers() == set()


@pytest.mark.parametrize(("where", "lost"), [(0, {3}), (SIZE + 15, {3}), (SIZE + 16 + 5, {4})])
def test_an_altered_block_is_lost_alone(kept, tmp_path, where, lost):
    filled(kept)
    with (tmp_path / "blocks").open("r+b") as raw:
        raw.seek(where)
        byte = raw.read(1)
        raw.seek(where)
        raw.write(bytes([byte[0] ^ 1]))
    file = opened(kept, start=2)
    assert {number for number in (3, 4, 9) if file.read(number) != block(number)} == lost


@pytest.mark.parametrize("size", range(0, 90, 7))
def test_an_index_that_is_cut_off_names_fewer(kept, tmp_path, size):
    filled(kept)
    os.truncate(tmp_path / "index", size)
    file = opened(kept, start=2)
    assert file.numbers() <= {3, 4, 9}
    assert all(file.read(number) == block(number) for number in file.numbers())
    assert file.write(20, block(20)) and file.read(20) == block(20)


@pytest.mark.parametrize("seed", range(20))
def test_an_index_of_noise_names_nothing_that_is_read(kept, tmp_path, seed):
    """The first bytes are as they were in half of the trials."""
    filled(kept)
    whole, begin = (tmp_path / "index").read_bytes(), 24 * (seed % 2)
    (tmp_path / "index").write_bytes(whole[:begin] + Random(seed).randbytes(200))
    file = opened(kept, start=2)
    assert [file.read(number) for number in file.numbers()] == [None] * len(file.numbers())


def test_a_disk_that_cannot_read_the_index_costs_what_is_in_the_file(kept, monkeypatch, caplog):
    filled(kept)

    def fails(*given):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(BlockIndex, "read", fails)
    blocks = TierBlocks("nowhere", SIZE, CacheTiers(0, 8), kept)
    assert blocks.held() == AwayBlocks()
    assert "stage before has left in the file is not used: Input/output error" in caplog.text


def test_files_that_cannot_be_opened_leave_one_that_ends_with_the_stage(tmp_path, kept, caplog):
    (tmp_path / "index").unlink()
    blocks = TierBlocks(str(tmp_path / "own"), SIZE, CacheTiers(0, 8), kept)
    assert blocks.file.write(1, block(1)) and blocks.file.read(1) == block(1)
    assert "cannot be opened, so what it holds ends with it: No such file" in caplog.text


def test_the_head_s_word_ends_what_it_does_not_name(tmp_path, kept):
    filled(kept)
    blocks = TierBlocks("nowhere", SIZE, CacheTiers(0, 8), replace(kept, start=2))
    assert blocks.held() == AwayBlocks(file=((3, 2), (9, 1)), directory=7)
    blocks.retain(RetainBlocks(away=AwayBlocks(file=((4, 1),), directory=7)))
    assert opened(kept, start=3).numbers() == {4}
    blocks.retain(RetainBlocks(away=AwayBlocks(directory=8)))
    last = opened(kept, start=4)
    assert (last.directory, last.numbers()) == (8, set())


@pytest.mark.parametrize("names", ["blocks", "index"])
def test_what_a_stage_before_has_left_is_tried_before_it_is_offered(tmp_path, kept, names, caplog):
    """One block that is none costs them all: the disk is asked for nothing in vain."""
    filled(kept)
    blocks = TierBlocks("nowhere", SIZE, CacheTiers(0, 8), replace(kept, start=2))
    assert blocks.readable(8) == [3, 4, 9]
    (tmp_path / names).write_bytes(bytes(500))
    blocks = TierBlocks("nowhere", SIZE, CacheTiers(0, 8), replace(kept, start=3))
    assert blocks.readable(8) == [] and not blocks.file.numbers()
    assert "altered" in caplog.text
