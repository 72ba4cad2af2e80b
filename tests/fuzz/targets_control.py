"""What a member, a stranger at the broker, who brings an invite, or a router can say."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import nacl.utils
from nacl.public import Box, PrivateKey, PublicKey

from molink.control.broker.packets import (
    Kind,
    Message,
    PacketError,
    encode,
    encode_publish,
    encode_text,
    read_connect,
    read_filters,
    read_publish,
    take_packet,
)
from molink.control.broker.permissions import COORDINATOR_NAME
from molink.control.broker.routing import Router
from molink.control.broker.session import Session, Sessions
from molink.control.identity import KeyPair
from molink.control.messages.invites import Invite
from molink.control.messages.joining import JoinAnswer, open_request
from molink.control.messages.sealing import _base64, open_answer
from molink.control.messages.topics import ALL_TOPICS, ROOT, Topic, UnreadableError, read_message
from molink.errors import ControlError, UserError
from tests.fuzz.target import Target, golden, golden_bytes, json_seeds

NODE = "abcdefghijklmnop"

# -- topics ---------------------------------------------------------------------------------------


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def _heard(path: str, data: bytes) -> None:
    """Read it, and write it again as something that a browser could read."""
    message = read_message(path, data, False).message
    json.loads(message.model_dump_json(), parse_constant=_refuse_constant)


def _payload(topic: Topic[Any]) -> Target:
    path = topic.of(NODE)
    name = path.removeprefix(f"{ROOT}/").removeprefix(f"node/{NODE}/").replace("/", "-")
    seeds = tuple(
        text.partition(" ")[2].encode()
        for text in golden("control-payloads").values()
        if text.startswith(f"{path} ")
    )
    return Target(f"payload-{name}", partial(_heard, path), (UnreadableError,), seeds, "json")


def _topic(data: bytes) -> object:
    return read_message(data.decode("utf-8", "replace"), b"{}", False)


# -- MQTT -----------------------------------------------------------------------------------------


PACKETS_MAX = 8
"""Of one input: the next is read as this one is."""


def _packets(data: bytes) -> None:
    """Every packet of a stream of bytes, read as each kind that has a reader."""
    buffer = bytearray(data)
    for _ in range(PACKETS_MAX):
        if (packet := take_packet(buffer, 2**20)) is None:
            return
        for read in (read_connect, read_publish, read_filters):
            try:
                read(packet)
            except PacketError:
                continue


class _Transport:
    """Connection that takes everything, and counts it."""

    def __init__(self) -> None:
        self.written = 0
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += len(data)

    def close(self) -> None:
        self.closed = True

    abort = pause_reading = resume_reading = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


LOOP = asyncio.new_event_loop()
"""A session belongs to a loop; this one never runs long."""


def _session(before: bytes, data: bytes) -> None:
    """A connection to the embedded broker, from its first byte to its last."""

    async def talk() -> None:
        session = Session(Router(), lambda name, password: True, Sessions())
        transport = _Transport()
        session.connection_made(transport)
        if before:
            session.data_received(before)
            assert not transport.closed
        session.data_received(data)
        session.end_if_lost()
        session.end()
        session.connection_lost(None)

    LOOP.run_until_complete(talk())


def _connect(name: str) -> bytes:
    texts = (name, name, "password")
    body = encode_text("MQTT") + b"\x04\xc2\x00\x3c" + b"".join(map(encode_text, texts))
    return encode(Kind.CONNECT, body)


def _subscribe(*filters: str) -> bytes:
    body = b"".join(encode_text(one) + b"\x01" for one in filters)
    return encode(Kind.SUBSCRIBE, b"\0\x01" + body, flags=2)


SAID = encode_publish(Message(f"{ROOT}/node/{NODE}/said/health", b"{}", 0, False), 0)
STATE = encode_publish(Message(f"{ROOT}/node/{NODE}/said/profile", b"{}", 1, True), 7)
TOLD = _subscribe(f"{ROOT}/node/{NODE}/told/#", f"{ROOT}/coordinator/said/presence")
PACKETS = (
    _connect(NODE),
    TOLD,
    SAID,
    STATE,
    STATE + SAID,
    encode(Kind.UNSUBSCRIBE, b"\0\x02" + encode_text(f"{ROOT}/#"), flags=2),
    encode(Kind.PINGREQ) + encode(Kind.PUBACK, b"\0\7"),
    encode(Kind.DISCONNECT),
)

# -- invites and joining --------------------------------------------------------------------------

PAIR = KeyPair.of_secret(bytes(range(32)))
COORDINATOR_PAIR = KeyPair.of_secret(bytes(range(100, 132)))


def _text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "replace"))


def _request(data: bytes) -> object:
    """As the coordinator opens it."""
    return open_request(data, COORDINATOR_PAIR)


def _answer(data: bytes) -> object:
    """As an agent opens it."""
    return open_answer(data, PAIR, JoinAnswer, COORDINATOR_PAIR.public)


def _well_sealed(
    sender: KeyPair, receiver: KeyPair, opened: Callable[[bytes], object], data: bytes
) -> object:
    """Sealed as it should be by one who may, around anything."""
    box = Box(PrivateKey(sender.secret), PublicKey(receiver.public))
    closed = box.encrypt(data, nacl.utils.random(Box.NONCE_SIZE))
    fields = {
        "key": sender.public_z85,
        "nonce": _base64(closed.nonce),
        "sealed": _base64(closed.ciphertext),
    }
    return opened(json.dumps(fields).encode())


def _plain(kind: str) -> tuple[bytes, ...]:
    return tuple(
        text.encode()
        for text in golden("control-sealed-content").values()
        if json.loads(text)["kind"] == kind
    )


TARGETS = (
    *map(_payload, ALL_TOPICS),
    Target(
        "topic",
        _topic,
        (UnreadableError,),
        tuple(topic.of(NODE).encode() for topic in ALL_TOPICS),
    ),
    Target("mqtt-packets", _packets, (PacketError,), PACKETS),
    Target("mqtt-stranger", partial(_session, b""), (), PACKETS),
    Target("mqtt-member", partial(_session, _connect(NODE)), (), PACKETS[1:]),
    Target("mqtt-coordinator", partial(_session, _connect(COORDINATOR_NAME)), (), PACKETS[1:]),
    Target(
        "invite", _text(Invite.parse), (UserError, ControlError), golden_bytes("control-invites")
    ),
    Target(
        "sealed-join-request",
        _request,
        (ControlError,),
        golden_bytes("control-sealed"),
        "json",
    ),
    Target(
        "join-request",
        partial(_well_sealed, PAIR, COORDINATOR_PAIR, _request),
        (ControlError,),
        _plain("JoinRequest") + json_seeds({"kind": "Voucher", "message": {"request": "{}"}}),
        "json",
    ),
    Target(
        "join-answer",
        partial(_well_sealed, COORDINATOR_PAIR, PAIR, _answer),
        (ControlError,),
        _plain("JoinAnswer"),
        "json",
    ),
)
