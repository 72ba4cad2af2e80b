"""A pair in two PCs: nobody else in the LAN reads, sends or takes what is handed over."""

import socket
import threading
from dataclasses import replace

import pytest

from molink.lender.lan.handshake import GREETING, Opening
from molink.stage.cache import handed_blocks, handing, taking
from molink.stage_protocol.messages import HoldLinks, SetPair
from molink.stage_protocol.pairing import Pairing, PairLink
from molink_scheduler.kv.changes import TakeBlocks
from tests.stage.cache.paired_stages import (
    BLOCKS,
    EPOCH,
    REQUEST,
    SOURCE,
    TOKENS,
    Stage,
    wait_until,
)

KEY, OTHER_KEY = "5a" * 32, "a5" * 32
LINK = PairLink(7, KEY)


@pytest.fixture(autouse=True)
def _quick_tries(monkeypatch):
    monkeypatch.setattr(handing, "AGAIN_S", 0.05)


@pytest.fixture(scope="module")
def stages(model):
    return Stage(model, None), Stage(model, None)


@pytest.fixture
def taker(stages):
    taker = stages[1]
    taker.cache.pair.become(Pairing(link=LINK))
    yield taker
    taker.leave()


@pytest.fixture
def giver(stages):
    yield stages[0]
    stages[0].leave()


def meet(giver, port, link=LINK):
    giver.cache.pair.become(Pairing(sends=True, link=replace(link, host="127.0.0.1", port=port)))


@pytest.fixture
def pair(giver, taker):
    meet(giver, taker.health.port)
    wait_until(lambda: giver.health.linked and taker.health.linked)
    return giver, taker


def test_rows_behind_blocks_that_came_sealed_are_equal_to_the_bit(pair):
    giver, taker = pair
    giver.hand_over(BLOCKS)
    wanted = giver.step(REQUEST, 16 * BLOCKS, TOKENS).tobytes()
    assert taker.take() == BLOCKS
    assert taker.rows_behind() == wanted


def test_both_ends_count_what_has_moved_and_what_has_not(pair, monkeypatch):
    monkeypatch.setattr(handed_blocks, "WAIT_S", 0.1)
    giver, taker = pair
    giver.hand_over(4)
    wait_until(lambda: taker.held_blocks == 4)
    assert taker.health.held_byte_s > 0
    assert taker.take() == 4
    sent, came, size = giver.health, taker.health, giver.layers.block_bytes
    assert (sent.number, sent.sends, sent.blocks, sent.size_bytes) == (7, True, 4, 4 * size)
    assert (came.number, came.blocks, came.used, came.lost) == (7, 4, 4, BLOCKS - 4)
    assert came.seconds >= 0.1 and came.held_bytes == sent.held_bytes == 0


class Listener:
    """A port between both ends which keeps what goes through it."""

    def __init__(self, port):
        self._to, self.heard = port, bytearray()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        here, _ = self._server.accept()
        there = socket.create_connection(("127.0.0.1", self._to))
        threading.Thread(target=self._pass_on, args=(there, here), daemon=True).start()
        self._pass_on(here, there)

    def _pass_on(self, source, target):
        while came := source.recv(2**16):
            self.heard += came
            target.sendall(came)


def test_who_listens_in_the_lan_reads_neither_layers_nor_blocks(giver, taker):
    between = Listener(taker.health.port)
    meet(giver, between.port)
    giver.hand_over(BLOCKS)
    wait_until(lambda: taker.held_blocks == BLOCKS)
    sizes = BLOCKS * giver.layers.block_bytes
    assert len(between.heard) > sizes
    assert b"layers" not in between.heard and b"MoLH" not in between.heard
    for block_W in taker.end.handed._handed[SOURCE].blocks.values():
        block = block_W.tobytes()
        assert not any(block[at : at + 64] in between.heard for at in range(0, len(block), 64))


@pytest.mark.parametrize("link", [PairLink(7, OTHER_KEY), PairLink(8, KEY)])
def test_who_has_another_key_or_number_is_told_that_he_is_not_let_in(giver, taker, link):
    meet(giver, taker.health.port, link)
    wait_until(lambda: "is not here, or its key is another" in giver.health.why)
    giver.hand_over(2)
    wait_until(lambda: giver.health.lost == 2)
    assert not giver.health.linked and not taker.health.linked and taker.health.blocks == 0


def test_an_opening_that_was_heard_and_is_sent_again_brings_nothing(pair):
    giver, taker = pair
    with socket.create_connection(("127.0.0.1", taker.health.port)) as link:
        link.sendall(Opening.of(7, bytes.fromhex(KEY)).packed())
        link.settimeout(20)
        assert GREETING.unpack(link.recv(GREETING.size))[0]
        link.sendall((64).to_bytes(4, "little") + bytes(64))
        assert link.recv(1) == b""
    giver.hand_over(BLOCKS)
    assert taker.take() == BLOCKS, "its own pair goes on"


def test_strangers_who_say_nothing_are_few(pair):
    _, taker = pair
    links = [
        socket.create_connection(("127.0.0.1", taker.health.port))
        for _ in range(2 * taking.LINKS_MAX)
    ]
    wait_until(lambda: len(taker.end._open) == taking.LINKS_MAX)
    assert len(taker.end._open) == taking.LINKS_MAX
    for link in links:
        link.close()


@pytest.mark.parametrize("which", ["giver", "taker"])
def test_a_pair_that_ends_in_the_middle_leaves_the_rest_to_be_computed(pair, monkeypatch, which):
    """Its cell is left: what has come is taken, the rest is not waited for."""
    monkeypatch.setattr(handed_blocks, "WAIT_S", 600.0)
    giver, taker = pair
    giver.hand_over(4)
    taker.cache.change(TakeBlocks(0, ((20, BLOCKS),), SOURCE))
    wait_until(lambda: taker.health.blocks == 4)
    ended = {"giver": giver, "taker": taker}[which]
    ended.cache.steered(lambda command: pytest.fail(f"{command}"))(SetPair())
    assert ended.health is None
    giver.hand_over(BLOCKS, 4)
    assert taker.answer(0) == 4
    assert taker.take(2, fetch=1, first=4) == 0


def test_a_stage_may_be_paired_anew_while_it_serves(pair):
    giver, taker = pair
    old, link = taker.health.port, PairLink(9, OTHER_KEY)
    taker.cache.pair.become(Pairing(link=link))
    assert taker.health.number == 9
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", old))
    meet(giver, taker.health.port, link)
    wait_until(lambda: giver.health.linked)
    giver.hand_over(BLOCKS)
    assert taker.take(source=(EPOCH, REQUEST)) == BLOCKS


def test_other_commands_pass(taker):
    passed = []
    taker.cache.steered(passed.append)(HoldLinks())
    assert passed == [HoldLinks()]


@pytest.mark.parametrize(
    "make",
    [
        Pairing,
        lambda: Pairing("/a", link=LINK),
        lambda: Pairing(sends=True, link=LINK),
        lambda: PairLink(1, "ff"),
    ],
)
def test_a_pair_without_a_way_or_a_key_is_none(make):
    with pytest.raises(ValueError, match=r"pair|told"):
        make()
