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


@given(st.lists(st.sampled_from((0, 1, 30_000, 65_000, 70_001, 140_000)), max_size=8))
def test_frames_that_come_together_come_whole(sizes: list[int]) -> None:
    """Some end in the room that there is, some behind it."""
    ours, theirs = socket.socketpair()
    contents = [bytes([number]) * size for number, size in enumerate(sizes)]

    def send_all() -> None:
        for content in contents:
            send(ours, Frame(Kind.PUT, number=len(content)), [content])

    with ours, theirs:
        sender = threading.Thread(target=send_all)
        sender.start()
        receiver = Receiver(theirs)
        for content in contents:
            frame, got = receiver.receive()
            assert (frame.number, bytes(got)) == (len(content), content)
        sender.join()


@pytest.mark.parametrize("kind, size", [(0, 0), (99, 0), (Kind.PUT, FRAME_BYTES_MAX + 1)])
def test_what_is_no_frame_is_refused(kind: int, size: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(HEADER.pack(kind, 0, 0, 0, 0.0, 0.0, 0, size))
        with pytest.raises(FrameError):
            Receiver(theirs).receive()


def test_a_link_that_ends_within_a_frame_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(HEADER.pack(Kind.ROWS, 0, 0, 0, 0.0, 0.0, 0, 100) + b"half")
        with pytest.raises(ConnectionError):
            Receiver(theirs).receive()
