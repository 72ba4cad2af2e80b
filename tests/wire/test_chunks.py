"""Pieces become messages again; what does not fit is dropped and counted, and the link goes on."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.errors import FrameError
from molink.wire.chunks import (
    Ack,
    ChunkHeader,
    LinkHello,
    Missing,
    Reassembly,
    Welcome,
    decode_link_frame,
    encode_ack,
    encode_hello,
    encode_missing,
    encode_welcome,
)


def chunks_of(transfer_id: int, header: bytes, buffer: bytes, size: int, first: int = 0):
    """A transfer in pieces of `size`, numbered from `first`."""
    whole = header + buffer
    offsets = range(0, len(whole), size)
    return [
        (
            ChunkHeader(first + n, transfer_id, offset, len(whole), len(header)),
            whole[offset : offset + size],
        )
        for n, offset in enumerate(offsets)
    ]


def take_all(reassembly: Reassembly, chunks) -> list[list[bytes]]:
    taken = [reassembly.take(header, piece) for header, piece in chunks]
    return [[bytes(frame) for frame in frames] for frames in taken if frames is not None]


@given(st.binary(min_size=1, max_size=40), st.binary(max_size=200), st.integers(1, 64))
def test_any_cut_gives_the_message_back(header, buffer, size):
    expected = [header, buffer] if buffer else [header]
    reassembly = Reassembly()
    assert take_all(reassembly, chunks_of(1, header, buffer, size)) == [expected]
    assert reassembly.chunks_refused == 0


def test_two_transfers_interleave():
    bulk, urgent = chunks_of(1, b"bulk", bytes(40), 10), chunks_of(2, b"now", b"!", 99, first=2)
    mixed = [*bulk[:2], *urgent, *((_renumber(h, h.sequence + 1), p) for h, p in bulk[2:])]
    assert take_all(Reassembly(), mixed) == [[b"now", b"!"], [b"bulk", bytes(40)]]


def _renumber(header: ChunkHeader, sequence: int) -> ChunkHeader:
    return ChunkHeader(
        sequence, header.transfer_id, header.offset, header.transfer_bytes, header.header_bytes
    )


def test_a_duplicate_is_dropped_and_counted():
    reassembly, chunks = Reassembly(), chunks_of(1, b"head", bytes(20), 8)
    assert take_all(reassembly, [chunks[0], chunks[0], *chunks[1:]]) == [[b"head", bytes(20)]]
    assert (reassembly.chunks_out_of_turn, reassembly.chunks_refused) == (1, 0)


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 30))
def test_however_chunks_are_repeated_each_is_taken_once_and_in_its_turn(starts, length):
    """Every connection carries a stretch of them, from some number on."""
    chunks = [chunk for n in range(10) for chunk in chunks_of(n, b"%d" % n, b"", 99, first=n)]
    reassembly = Reassembly()
    taken = []
    for start in [*starts, 0]:
        taken += take_all(reassembly, chunks[start : start + length])
    assert taken == [[b"%d" % n] for n in range(len(taken))]
    assert len(taken) >= min(length, 10)


@pytest.mark.parametrize("broken", ["hole", "longer", "unknown"])
def test_what_does_not_fit_is_dropped_and_the_next_message_arrives(broken):
    reassembly, chunks = Reassembly(), chunks_of(1, b"head", bytes(20), 8)
    if broken == "hole":
        chunks[1] = (replace(chunks[1][0], offset=9), chunks[1][1])
    elif broken == "longer":
        chunks[-1] = (chunks[-1][0], bytes(99))
    else:
        chunks[0] = (replace(chunks[0][0], transfer_id=7), chunks[0][1])
    good = chunks_of(2, b"next", b"!", 99, first=len(chunks))
    assert take_all(reassembly, [*chunks, *good]) == [[b"next", b"!"]]
    assert reassembly.chunks_refused >= 1


def test_announced_sizes_are_bounded():
    header = ChunkHeader(0, 1, 0, 2**40, 10).encode()
    with pytest.raises(FrameError):
        decode_link_frame(header)
    with pytest.raises(FrameError):
        decode_link_frame(ChunkHeader(0, 1, 0, 10, 11).encode())


def test_link_frames_come_back_as_they_were():
    header = ChunkHeader(5, 6, 7, 800, 9)
    assert decode_link_frame(header.encode()) == header
    assert decode_link_frame(encode_ack((1, 2))) == Ack((1, 2))
    assert decode_link_frame(encode_hello()) == LinkHello()
    assert decode_link_frame(encode_welcome(7)) == Welcome(7)
    assert decode_link_frame(encode_missing(7)) == Missing(7)


@given(st.binary(max_size=40))
def test_noise_is_a_frame_error(frame):
    with pytest.raises(FrameError):
        decode_link_frame(frame)


def test_chunks_count_from_zero_when_another_sender_greets():
    reassembly = Reassembly()
    reassembly.greeted(7)
    whole = ChunkHeader(0, 0, 0, 4, 2)
    assert reassembly.take(whole, b"head") is not None
    assert reassembly.take(ChunkHeader(1, 1, 0, 8, 2), b"half") is None
    reassembly.greeted(7)
    assert reassembly.next_sequence == 2, "the same sender, over another connection"
    reassembly.greeted(8)
    assert reassembly.take(ChunkHeader(2, 1, 4, 8, 2), b"rest") is None
    assert reassembly.take(whole, b"next") is not None
