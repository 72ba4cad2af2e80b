"""What a neighbour in the ring, a relay, or anybody who connects to a port can send."""

import struct

import msgpack

from molink.errors import FrameError
from molink.transport.peer.protocol import PEER_FRAMES
from molink.transport.preamble import LENGTH
from molink.transport.relay.protocol import RELAY_FRAMES
from molink.transport.stun import _Answers, _Mirror, parse_stun
from molink.wire import codecs
from molink.wire.chunks import ChunkHeader, Reassembly, decode_link_frame
from molink.wire.elements import ELEMENT_BYTES, TensorHeader
from molink.wire.frames import ANYBODY, decode_message
from tests.fuzz.target import MIB, Target, golden, golden_hex, joined, split

# -- messages and links ---------------------------------------------------------------------------


def _message(data: bytes) -> object:
    return decode_message(split(data))


def _message_header(data: bytes) -> object:
    """The same with nothing around it, so that values in it can be changed one by one."""
    return decode_message([data])


MESSAGES = [
    [bytes.fromhex(frame) for frame in line.split(" ")] for line in golden("wire-frames").values()
]
CHUNKS = golden_hex("wire-chunks")


def _transfers(data: bytes) -> None:
    """What a link does with pairs of frames, one after the other."""
    transfers, parts = Reassembly(), split(data)
    for frame, piece in zip(parts[::2], parts[1::2], strict=False):
        try:
            header = decode_link_frame(frame)
        except FrameError:
            continue
        frames = transfers.take(header, piece) if isinstance(header, ChunkHeader) else None
        if frames is None:
            continue
        try:
            decode_message(frames)
        except FrameError:
            continue


def _transfer_seeds() -> tuple[bytes, ...]:
    message = MESSAGES[0]
    header, buffer = message[0], b"".join(message[1:])
    whole, size = header + buffer, len(header + buffer)
    cut = size // 2
    first = ChunkHeader(0, 0, 0, size, len(header)).encode(), whole[:cut]
    second = ChunkHeader(1, 0, cut, size, len(header)).encode(), whole[cut:]
    other = ChunkHeader(1, 1, 0, 3, 1).encode(), b"abc"
    alone = ChunkHeader(0, 0, 0, size, len(header)).encode(), whole
    return tuple(
        joined(part for pair in pairs for part in pair)
        for pairs in ((first, second), (first, other, second), (alone, other), (first, first))
    )


# -- packed activations ---------------------------------------------------------------------------

_SHAPE = struct.Struct("<BBH")
"""Element type, rows, width: at most 255 x 65,535."""


def _codec(name: str) -> Target:
    def run(data: bytes) -> object:
        if len(data) < _SHAPE.size:
            return None
        kind, rows, width = _SHAPE.unpack_from(data)
        dtype = sorted(ELEMENT_BYTES)[kind % len(ELEMENT_BYTES)]
        return codecs.decode(name, TensorHeader(dtype, rows, width, name), data[_SHAPE.size :])

    return Target(
        f"codec-{name}",
        run,
        (FrameError,),
        _packed(name),
        # The announced tensor, and as much again while it is put together.
        memory_bytes=3 * 255 * 65_535 * 4,
    )


def _packed(name: str) -> tuple[bytes, ...]:
    found = []
    for key, text in golden("wire-packed").items():
        codec, dtype, shape = key.split("_")
        if codec == name:
            rows, width = map(int, shape.split("x"))
            found.append(_SHAPE.pack(sorted(ELEMENT_BYTES).index(dtype), rows, width))
            found[-1] += bytes.fromhex(text)
    for line in golden("wire-lossless").values() if name == "lossless" else ():
        dtype, text = line.split(" ")
        found.append(_SHAPE.pack(sorted(ELEMENT_BYTES).index(dtype), 2, 640) + bytes.fromhex(text))
    return tuple(found)


# -- frames in front of a connection, and datagrams -----------------------------------------------


def _bodies(codec: str) -> tuple[bytes, ...]:
    return tuple(frame[LENGTH.size :] for frame in golden_hex(codec))


class _Datagrams:
    """Transport that takes everything."""

    def sendto(self, data: bytes, address: object) -> None:
        assert len(data) < 100


def _stun_question(data: bytes) -> None:
    mirror = _Mirror(_Answers(), 3479)
    mirror.connection_made(_Datagrams())
    mirror.datagram_received(data, ("192.0.2.1", 40_000))


def _stun_answer(data: bytes) -> object:
    """As an agent looks at what comes back."""
    answer = parse_stun(data)
    if answer is None:
        return None
    bytes(answer.transaction_id)
    return answer.attributes.get("XOR-MAPPED-ADDRESS"), answer.attributes.get("OTHER-ADDRESS")


STUN = tuple(
    bytes.fromhex(golden("transport-dialogues")[name]).ljust(20, b"\1")
    for name in ("a_stun_server_answers", "an_agent_asks_a_stun_server")
)

TARGETS = (
    Target(
        "wire-message",
        _message,
        (FrameError,),
        tuple(map(joined, MESSAGES)),
    ),
    Target(
        "wire-message-header",
        _message_header,
        (FrameError,),
        tuple(message[0] for message in MESSAGES),
        "msgpack",
    ),
    Target("link-frame", decode_link_frame, (FrameError,), CHUNKS, "msgpack"),
    Target(
        "link-transfers",
        _transfers,
        (),
        _transfer_seeds(),
        memory_bytes=2 * ANYBODY.message_bytes_max + 2 * MIB,
    ),
    *map(_codec, codecs.CODECS),
    Target("relay-frame", RELAY_FRAMES.decode, (FrameError,), _bodies("relay-frames"), "msgpack"),
    Target("peer-frame", PEER_FRAMES.decode, (FrameError,), _bodies("peer-frames"), "msgpack"),
    Target("stun-question", _stun_question, (), STUN),
    Target("stun-answer", _stun_answer, (), STUN),
)

assert all(msgpack.unpackb(frame) for frame in CHUNKS)
