"""A sealed link: what is sent comes, and nothing else does."""

import socket
import struct
import threading
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.engine_protocol.lender import LentKv, LentLayer
from molink.errors import FrameError, LenderLostError
from molink.lender.client import LenderClient
from molink.lender.lan.sealed_link import RECORD_BYTES_MAX, SealedLink
from molink.lender.protocol import Frame, Kind, Receiver, send
from tests.lender.links import sealed_pair

OWN_KEY, THEIR_KEY = bytes(range(32)), bytes(range(32, 64))
KV = LentKv((LentLayer(0, 2, 4, 4),), "float32", "auto")


def records(*contents: bytes) -> list[bytes]:
    """What a link sends for each of these."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = SealedLink(ours, OWN_KEY, THEIR_KEY)
        sent = []
        for content in contents:
            link.sendmsg([content])
            sent.append(theirs.recv(2**20))
        return sent


def opened(*came: bytes) -> bytes:
    """What a link takes of these bytes, of which it is the other end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"".join(came))
        theirs.shutdown(socket.SHUT_WR)
        link, room, taken = SealedLink(ours, THEIR_KEY, OWN_KEY), memoryview(bytearray(64)), b""
        while True:
            try:
                taken += room[: link.recv_into(room)]
            except ConnectionResetError:
                return taken


def test_what_is_sent_comes_and_is_not_to_be_read_on_its_way() -> None:
    sent = records(b"first one", b"second one")
    assert opened(*sent) == b"first onesecond one"
    assert all(b"one" not in record for record in sent)
    assert sent[0][4:] != records(b"other one", b"first one")[1][4:]


@pytest.mark.parametrize(
    "came",
    [(0, 0), (1,), (1, 0), (0, 2), (0, 1, 1), (0, 1, 0)],
    ids=["doubled", "first left out", "changed places", "one left out", "last doubled", "replayed"],
)
def test_records_that_come_otherwise_than_they_were_sent_do_not_open(came: tuple[int, ...]) -> None:
    sent = records(b"one", b"two", b"three")
    with pytest.raises(FrameError, match="does not open"):
        opened(*(sent[number] for number in came))


@given(st.integers(4 * 8, (4 + 5 + 16) * 8 - 1))
def test_a_bit_that_is_flipped_is_found(bit: int) -> None:
    (record,) = records(b"bytes")
    altered = bytearray(record)
    altered[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError, match="does not open"):
        opened(bytes(altered))


def test_what_one_end_has_sent_is_not_taken_back_from_the_other() -> None:
    """Both directions have a key of their own."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = SealedLink(ours, OWN_KEY, THEIR_KEY)
        link.sendmsg([b"mine"])
        theirs.sendall(theirs.recv(100))
        with pytest.raises(FrameError, match="does not open"):
            link.recv_into(memoryview(bytearray(10)))


@pytest.mark.parametrize("length", [0, 16, RECORD_BYTES_MAX + 17, 2**32 - 1])
def test_a_record_of_impossible_length_is_refused_before_it_comes(length: int) -> None:
    with pytest.raises(FrameError, match=f"no {length:,} bytes"):
        opened(struct.pack("<I", length))


@given(st.lists(st.sampled_from((0, 1, 70_000, 2**20, 2**20 + 1, 3 * 2**20)), max_size=4))
def test_frames_of_any_size_come_whole(sizes: list[int]) -> None:
    ours, theirs = sealed_pair()
    contents = [bytes([number]) * size for number, size in enumerate(sizes)]

    def send_all() -> None:
        for content in contents:
            send(ours, Frame(Kind.PUT, number=len(content)), [content])

    with closing(ours), closing(theirs):
        sender = threading.Thread(target=send_all)
        sender.start()
        receiver = Receiver(theirs)
        for content in contents:
            frame, got = receiver.receive()
            assert (frame.number, bytes(got)) == (len(content), content)
        sender.join()


def test_bytes_that_trickle_do_not_make_the_wait_longer() -> None:
    ours, theirs = socket.socketpair()
    (record,) = records(b"a record of many bytes")
    is_over = threading.Event()

    def trickle() -> None:
        for byte in record:
            theirs.sendall(bytes([byte]))
            if is_over.wait(0.02):
                return

    with ours, theirs:
        link = SealedLink(ours, THEIR_KEY, OWN_KEY)
        trickling = threading.Thread(target=trickle)
        trickling.start()
        link.settimeout(0.1)
        with pytest.raises(TimeoutError):
            link.recv_into(memoryview(bytearray(100)))
        is_over.set()
        trickling.join()


def test_a_lender_whose_record_does_not_open_is_lost_with_a_sentence() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = LenderClient(SealedLink(ours, OWN_KEY, THEIR_KEY), where="at 10.0.0.7:4100")
        other = SealedLink(theirs, OWN_KEY, THEIR_KEY)  # The key is not what it seals by.
        send(other, Frame(Kind.HELLO, incarnation=1), [b"{}"])
        with pytest.raises(LenderLostError, match=r"at 10\.0\.0\.7:4100 is lost: record 0 does"):
            client.hold(KV, 1)
        assert client.is_lost
