"""Frames of a preamble: a closed schema, exact reads, and proofs that fit one connection only."""

import socket
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.errors import FrameError
from molink.transport.preamble import FRAME_BYTES_MAX, Hello, is_signed, sentence, sign
from molink.transport.relay.protocol import (
    RELAY_FRAMES,
    Answer,
    Called,
    Dial,
    Joined,
    Ping,
    Refused,
    Register,
    Registered,
    relay_token,
)

ANNA, BERT = "a" * 16, "b" * 16
KEY = relay_token(b"secret", ANNA)
FRAMES = [
    Hello.draw(),
    Register(ANNA, b"proof"),
    Dial(ANNA, b"proof", BERT, "ring"),
    Answer(ANNA, b"proof", b"ticket"),
    Registered(),
    Called(ANNA, "peer", b"ticket"),
    Joined(),
    Ping(),
    Refused("No.", b"ticket"),
]


@pytest.fixture
def ends():
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    yield ends
    for end in ends:
        end.close()


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
async def test_a_frame_arrives_as_it_was_and_nothing_behind_it_is_read(frame, ends):
    await RELAY_FRAMES.write(ends[0], frame)
    ends[0].send(b"payload")
    assert await RELAY_FRAMES.read(ends[1]) == frame
    assert ends[1].recv(100) == b"payload"


@given(st.binary(max_size=200))
def test_noise_is_refused(noise):
    try:
        frame = RELAY_FRAMES.decode(noise)
    except FrameError:
        return
    assert RELAY_FRAMES.decode(RELAY_FRAMES.encode(frame)[2:]) == frame


@pytest.mark.parametrize(
    "values",
    [
        ["dial", ANNA, b"proof", BERT],
        ["dial", ANNA, b"proof", BERT, "ring", 1],
        ["dial", ANNA, "proof", BERT, "ring"],
        ["dial", ANNA, b"proof", BERT, "../ring"],
        ["dial", "anna", b"proof", BERT, "ring"],
        ["dial", ANNA, b"p" * 301, BERT, "ring"],
        ["register", ANNA.upper(), b""],
        ["Ping"],
        ["Signed", ANNA, b""],
        [["hello"], b""],
        {},
    ],
)
def test_what_does_not_follow_the_schema_is_refused(values):
    with pytest.raises(FrameError):
        RELAY_FRAMES.decode(msgpack.packb(values))


async def test_a_length_above_the_limit_is_refused_before_it_is_read(ends):
    ends[0].send((FRAME_BYTES_MAX + 1).to_bytes(2, "big"))
    with pytest.raises(FrameError, match="at most"):
        await RELAY_FRAMES.read(ends[1])


async def test_a_frame_that_does_not_come_is_given_up(ends):
    ends[0].send(b"\0")
    with pytest.raises(TimeoutError):
        await RELAY_FRAMES.read(ends[1], within_s=0.05)
    ends[0].close()
    with pytest.raises(ConnectionError):
        await RELAY_FRAMES.read(ends[1])


def test_a_peer_that_does_not_read_is_noticed(ends):
    while RELAY_FRAMES.write_now(ends[0], Ping()):
        pass
    ends[1].close()
    assert not RELAY_FRAMES.write_now(ends[0], Ping())


def test_a_proof_fits_its_frame_its_key_and_its_connection():
    nonce, other = Hello.draw().nonce, Hello.draw().nonce
    frame = sign(Dial(ANNA, b"", BERT, "ring"), KEY, nonce)
    assert is_signed(frame, KEY, nonce)
    assert not is_signed(frame, KEY, other)
    assert not is_signed(frame, relay_token(b"another", ANNA), nonce)
    assert not is_signed(replace(frame, port_name="peer"), KEY, nonce)
    assert not is_signed(replace(frame, node_id=BERT), KEY, nonce)
    assert not is_signed(Register(ANNA, frame.proof), KEY, nonce)


def test_a_long_sentence_is_cut():
    assert len(sentence("x" * 1000)) == 300
    assert sentence("short") == "short"
