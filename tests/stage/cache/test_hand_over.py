"""Blocks that one stage has computed and another one takes are the same to the bit, or missing."""

import shutil
import socket
import threading
import time

import pytest

from molink.errors import FrameError
from molink.stage.cache import handed_blocks, handing
from molink.stage.cache.pair import ANSWER, HELLO, MAGIC, RECORD, computed_by, introduce
from molink.stage_protocol.pairing import Pairing
from molink_scheduler.batch import Release
from molink_scheduler.kv.changes import DropBlocks, KeepBlocks, KeptBlocks, TakeBlocks
from tests.stage.cache.paired_stages import (
    BLOCKS,
    EPOCH,
    REQUEST,
    SOURCE,
    TOKENS,
    Stage,
    wait_until,
)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "pair.sock")


@pytest.fixture
def pair(model, path):
    taker = Stage(model, Pairing(path, sends=False))
    return Stage(model, Pairing(path, sends=True)), taker


def test_rows_behind_blocks_that_were_taken_are_equal_to_the_bit(pair):
    giver, taker = pair
    giver.hand_over(BLOCKS)
    wanted = giver.step(REQUEST, 16 * BLOCKS, TOKENS).tobytes()
    assert taker.take() == BLOCKS
    assert taker.rows_behind() == wanted


def test_the_giver_keeps_what_it_hands_over_and_may_write_there_next(pair):
    giver, taker = pair
    giver.hand_over(BLOCKS)
    wanted = giver.step(REQUEST, 16 * BLOCKS, TOKENS).tobytes()
    giver.engine.release(Release(REQUEST), wiped=False)
    giver.cache.change(DropBlocks(((100, BLOCKS),)))
    giver.step(12, 0, TOKENS)
    assert taker.take() == BLOCKS and taker.rows_behind() == wanted


def test_blocks_that_are_still_on_their_way_are_waited_for(pair):
    giver, taker = pair
    giver.hand_over(4)
    taker.cache.change(TakeBlocks(0, ((20, BLOCKS),), SOURCE))
    threading.Timer(0.3, lambda: giver.hand_over(BLOCKS, 4)).start()
    assert taker.answer(0) == BLOCKS


def test_only_what_is_wanted_is_taken(pair):
    giver, taker = pair
    giver.hand_over(BLOCKS)
    assert taker.take(2, first=4) == 2
    giver.cache.change(KeepBlocks((KeptBlocks(REQUEST, 4, 200, 2),)))
    assert taker.take(2, fetch=1, first=3) == 0, "block 3 was not sent again, and block 4 was"


@pytest.mark.parametrize("source", [(EPOCH, 12), (EPOCH + 1, REQUEST)])
def test_what_never_comes_is_given_up(pair, monkeypatch, source):
    monkeypatch.setattr(handed_blocks, "WAIT_S", 0.2)
    giver, taker = pair
    giver.hand_over(BLOCKS)
    assert taker.take(source=source) == 0
    assert taker.take(fetch=1) == BLOCKS, "its blocks go to none but their own request"


def test_what_is_dropped_meanwhile_is_not_filled(pair):
    giver, taker = pair
    giver.hand_over(4)
    taker.cache.change(TakeBlocks(0, ((20, BLOCKS),), SOURCE))
    taker.cache.change(DropBlocks(((20, BLOCKS),)))
    giver.hand_over(BLOCKS, 4)
    assert taker.answer(0) == BLOCKS  # The head has given up, and expects an answer.
    assert not taker.engine.executor.kv.has(20)


def test_a_giver_that_is_gone_in_the_middle_is_not_waited_for(pair, monkeypatch):
    monkeypatch.setattr(handed_blocks, "WAIT_S", 600.0)  # `answer` waits for 20.
    giver, taker = pair
    giver.hand_over(4)
    taker.cache.change(TakeBlocks(0, ((20, BLOCKS),), SOURCE))
    wait_until(lambda: taker.held_blocks == 4)
    giver.end._link.close()
    giver.end._link = None
    assert taker.answer(0) == 4


def test_a_taker_that_is_gone_costs_the_giver_nothing(model, path, caplog, monkeypatch):
    monkeypatch.setattr(handing, "AGAIN_S", 0.0)
    giver = Stage(model, Pairing(path, sends=True))
    giver.hand_over(4)
    wait_until(lambda: "takes no KV" in caplog.text)
    taker = Stage(model, Pairing(path, sends=False))
    giver.hand_over(BLOCKS, 4)
    assert taker.take(2, first=4) == 2
    assert caplog.text.count("takes no KV") == 1


def test_layers_that_do_not_agree_are_refused_in_a_sentence(model, path, caplog):
    taker = Stage(model, Pairing(path, sends=False), layers=(0, 1))
    giver = Stage(model, Pairing(path, sends=True))
    giver.hand_over(2)
    wait_until(lambda: "layers 0 to 1" in caplog.text and "layers 0 to 2" in caplog.text)
    began = time.monotonic()
    assert taker.take(2) == 0 and time.monotonic() - began < 1.0


def test_two_folders_of_one_model_agree_and_those_of_two_do_not(model, path, tmp_path):
    """Agents keep weights in folders of their own."""
    shutil.copytree(model, tmp_path / "other folder")
    taker = Stage(tmp_path / "other folder", Pairing(path, sends=False))
    giver = Stage(model, Pairing(path, sends=True))
    giver.hand_over(BLOCKS)
    assert taker.take() == BLOCKS
    config = tmp_path / "other folder" / "config.json"
    config.write_text(config.read_text() + "\n")
    assert computed_by(taker.load, taker.layers) != giver.end.computes == taker.end.computes


def test_a_stage_without_a_pair_takes_nothing(model):
    assert Stage(model, None).take() == 0


def test_a_place_where_it_cannot_listen_is_told(model, tmp_path, caplog):
    stage = Stage(model, Pairing(str(tmp_path / "nowhere" / "pair.sock"), sends=False))
    assert "takes no KV" in caplog.text and stage.take() == 0


def test_after_the_next_epoch_begins_nothing_is_filled(pair):
    giver, taker = pair
    giver.hand_over(4)
    taker.cache.change(TakeBlocks(0, ((20, BLOCKS),), SOURCE))
    began = time.monotonic()
    taker.cache.begin(taker.layers.block_bytes, EPOCH + 1, chains_stay=False)
    assert time.monotonic() - began < 1.0
    assert taker.end._jobs.empty()


def test_a_stage_with_more_layers_than_it_had_takes_nothing(pair):
    giver, taker = pair
    giver.hand_over(BLOCKS)
    taker.cache.begin(2 * taker.layers.block_bytes, EPOCH + 1, chains_stay=False)
    assert taker.take() == 0


def test_what_nobody_takes_makes_room(pair, monkeypatch):
    giver, taker = pair
    monkeypatch.setattr(handed_blocks, "HELD_BYTES_MAX", 5 * giver.layers.block_bytes)
    giver.hand_over(4)
    for request in (30, 31):
        kept = KeptBlocks(REQUEST, 0, 300 + request, 2)
        giver.engine.blocks_out(KeepBlocks((kept,)))
        giver.cache.pair.kept(KeepBlocks((KeptBlocks(request, 0, 300 + request, 2),)), giver.engine)
    wait_until(lambda: (EPOCH, 31) in taker.end.handed._handed)
    held = taker.end.handed
    assert [*held._handed] == [
        (EPOCH, 30),
        (EPOCH, 31),
    ] and held.figures.held_bytes == 4 * held.block_bytes
    assert taker.take(2, source=(EPOCH, 31)) == 2
    assert held.figures.held_bytes == 2 * held.block_bytes


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n".ljust(HELLO.size),
        HELLO.pack(MAGIC, b"other layers"),
    ],
)
def test_who_says_something_else_is_not_let_in(pair, path, said):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        link.sendall(said)
        link.settimeout(20)
        came = b"".join(iter(lambda: link.recv(4096), b""))
    assert came == b"" or not ANSWER.unpack(came)[0]
    giver, taker = pair
    giver.hand_over(BLOCKS)
    assert taker.take() == BLOCKS


@pytest.mark.parametrize("count", [0, 2**20, 2**32 - 1])
def test_a_record_of_no_size_ends_its_link(pair, path, caplog, count):
    giver, _ = pair
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        introduce(link, giver.end.computes)
        link.sendall(RECORD.pack(EPOCH, REQUEST, 0, count))
        assert link.recv(1) == b""
    wait_until(lambda: "a record of" in caplog.text)


def test_a_stage_is_told_why_it_is_refused(pair, path):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        with pytest.raises(
            FrameError, match=r"one stage has layers 7 to 9, and the other layers 0"
        ):
            introduce(link, "layers 7 to 9")
