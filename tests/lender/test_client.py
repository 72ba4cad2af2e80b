"""A stage's end of a lender's link: what it believes, and when it gives the lender up."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict

import numpy as np
import pytest

from molink.engine_protocol.lender import LentKv, LentLayer, LentSpan
from molink.errors import LenderLostError
from molink.lender.client import LenderClient
from molink.lender.protocol import HEADER, Frame, Kind, LenderLink, Receiver, send
from tests.lender.links import sealed_pair

KV = LentKv((LentLayer(0, 2, 4, 4), LentLayer(1, 2, 4, 6)), "float32", "auto")
INCARNATION = 77
Q_RHA = np.ones((2, 4, 4), np.float32)
PLAN = (LentSpan(1, 40, (0, 1)), LentSpan(1, 16, (2,)))
SOON_S = (0.02, 0.02)


@pytest.fixture(params=[socket.socketpair, sealed_pair], ids=("own PC", "LAN"))
def lender(request: pytest.FixtureRequest) -> Iterator[tuple[LenderClient, LenderLink]]:
    """A client that has begun, and the lender's end of its link, from which all was read."""
    ours, theirs = request.param()
    with closing(ours), closing(theirs):
        send(theirs, Frame(Kind.HELLO, incarnation=INCARNATION), [hello(8)])
        client = LenderClient(ours, SOON_S)
        client.hold(KV, 8)
        assert Receiver(theirs).receive()[0].kind is Kind.HELLO
        yield client, theirs


def hello(places: int) -> bytes:
    """What a stage begins with, and a lender that has room answers."""
    return json.dumps(asdict(KV) | {"places": places}).encode()


@pytest.mark.parametrize(
    "frame, content, why",
    [
        (Frame(Kind.HELLO, incarnation=1), hello(7), "not ready for 8 blocks"),
        (Frame(Kind.HELLO, incarnation=1), hello(8)[:-1], "not ready for 8 blocks"),
        (Frame(Kind.HELLO), hello(8), "begins with HELLO"),
        (Frame(Kind.ANSWER, incarnation=1), hello(8), "begins with ANSWER"),
        (Frame(Kind.REFUSED), b"it has no room\n\x1b[2J", "it has no room\ufffd\ufffd"),
    ],
)
def test_one_that_begins_otherwise_is_lost(frame: Frame, content: bytes, why: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(theirs, frame, [content])
        with pytest.raises(LenderLostError, match=why):
            LenderClient(ours, SOON_S).hold(KV, 8)


def answer(layer: int, *, value: float = 0.5) -> list[bytes]:
    size = KV.layers[layer].value_size
    return [
        np.full((2, 4, size), value, np.float32).tobytes(),
        np.zeros((2, 4), np.float32).tobytes(),
    ]


def ask(client: LenderClient, layer: int = 0) -> int:
    """Ask for the plan's rows; the number of the ask."""
    client.plan(PLAN)
    client.ask(layer, Q_RHA, 0.5, None, None)
    return client._asked.number


def test_an_answer_has_the_layers_own_shape(lender: tuple[LenderClient, LenderLink]) -> None:
    client, theirs = lender
    for layer in (0, 1):
        number = ask(client, layer)
        send(theirs, Frame(Kind.ANSWER, layer, number, INCARNATION), answer(layer))
        out_RHV, sums_RH = client.answer()
        assert out_RHV.shape == (2, 4, KV.layers[layer].value_size)
        assert sums_RH.shape == (2, 4)


def test_a_plan_is_told_once_for_all_layers(lender: tuple[LenderClient, LenderLink]) -> None:
    client, theirs = lender
    ask(client, 0)
    ask(client, 1)
    client.plan((PLAN[0],))
    receiver = Receiver(theirs)
    kinds = [receiver.receive()[0].kind for _ in range(4)]
    assert kinds == [Kind.PLAN, Kind.ASK, Kind.ASK, Kind.PLAN]


@pytest.mark.parametrize(
    "frame, parts, why",
    [
        (Frame(Kind.ANSWER, 0, 1, INCARNATION - 1), answer(0), "not the one that was given"),
        (Frame(Kind.ANSWER, 0, 0, INCARNATION), answer(0), "ANSWER 0 answers 1"),
        (Frame(Kind.ROWS, 0, 1, INCARNATION), answer(0), "ROWS 1 answers 1"),
        (Frame(Kind.ANSWER, 0, 1, INCARNATION), answer(1), "an answer of 2 rows has"),
        (Frame(Kind.ANSWER, 0, 1, INCARNATION), answer(0)[:1], "an answer of 2 rows has"),
        (
            Frame(Kind.ANSWER, 0, 1, INCARNATION),
            [answer(0)[0], np.full((2, 4), np.nan, np.float32).tobytes()],
            "its numbers are none",
        ),
        (
            Frame(Kind.ANSWER, 0, 1, INCARNATION),
            answer(0, value=np.nan),
            "its numbers are none",
        ),
    ],
    ids=("an old incarnation", "doubled", "rows", "another layer's", "half", "sums", "values"),
)
def test_what_is_not_the_answer_loses_the_lender(
    lender: tuple[LenderClient, LenderLink], frame: Frame, parts: list[bytes], why: str
) -> None:
    client, theirs = lender
    ask(client)
    send(theirs, frame, parts)
    with pytest.raises(LenderLostError, match=why):
        client.answer()
    with pytest.raises(LenderLostError):
        ask(client)


def test_an_answer_that_was_given_before_loses_the_lender(
    lender: tuple[LenderClient, LenderLink],
) -> None:
    client, theirs = lender
    for _ in range(2):
        send(theirs, Frame(Kind.ANSWER, 0, 1, INCARNATION), answer(0))
    ask(client)
    client.answer()
    ask(client)
    with pytest.raises(LenderLostError, match="ANSWER 1 answers 2"):
        client.answer()


def test_a_late_answer_finds_nobody(lender: tuple[LenderClient, LenderLink]) -> None:
    client, _ = lender
    ask(client)
    with pytest.raises(LenderLostError, match="has not answered within 20 ms"):
        client.answer()


def test_half_an_answer_is_a_lender_lost(lender: tuple[LenderClient, LenderLink]) -> None:
    client, theirs = lender
    ask(client)
    theirs.sendall(HEADER.pack(Kind.ANSWER, 0, 1, INCARNATION, 0.0, 0.0, 0, 999) + b"a part")
    theirs.close()
    with pytest.raises(LenderLostError, match=r"closed|reset"):
        client.answer()


def test_a_lender_that_is_gone_takes_no_blocks(lender: tuple[LenderClient, LenderLink]) -> None:
    client, theirs = lender
    theirs.close()
    with pytest.raises(LenderLostError, match="it takes nothing"):
        client.put([0], np.zeros((1, 64), np.uint8))
