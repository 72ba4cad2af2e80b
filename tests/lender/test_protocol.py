"""Frames between a stage and its lender."""

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.errors import FrameError
from molink.lender.protocol import FRAME_BYTES_MAX, HEADER, Frame, Kind, Receiver, send

frames = st.builds(
    Frame,
    st.sampled_from(Kind),
    layer=st.integers(0, 2**16 - 1),
    number=st.integers(0, 2**32 - 1),
    incarnation=st.integers(0, 2**63 - 1),
    scale=st.sampled_from((0.0, 0.125)),
    softcap=st.sampled_from((0.0, 30.0)),
    window=st.integers(0, 2**20),
)


@given(st.lists(st.tuples(frames, st.lists(st.binary(max_size=300), max_size=3)), max_size=5))
def test_frames_come_as_they_were_sent(sent: list[tuple[Frame, list[bytes]]]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for frame, parts in sent:
            send(ours, frame, parts)
        receiver = Receiver(theirs)
        for frame, parts in sent:
            got, content = receiver.receive()
            assert (got, bytes(content)) == (frame, b"".join(parts))


def test_a_frame_larger_than_the_sockets_memory_comes_whole() -> None:
    ours, theirs = socket.socketpair()
    parts = [bytes(range(256)) * 2**13, b"end" * 2**20]
    with ours, theirs:
        sender = threading.Thread(target=send, args=(ours, Frame(Kind.PUT), parts))
        sender.start()
        _, content = Receiver(theirs).receive()
        sender.join()
        assert bytes(content) == b"".join(parts)


@pytest.mark.parametrize("kind, size", [(0, 0), (9, 0), (Kind.PUT, FRAME_BYTES_MAX + 1)])
def test_what_is_no_frame_is_refused(kind: int, size: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(HEADER.pack(kind, 0, 0, 0, size, 0.0, 0.0, 0))
        with pytest.raises(FrameError):
            Receiver(theirs).receive()


def test_a_link_that_ends_within_a_frame_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(HEADER.pack(Kind.ROWS, 0, 0, 0, 100, 0.0, 0.0, 0) + b"half")
        with pytest.raises(ConnectionError):
            Receiver(theirs).receive()
