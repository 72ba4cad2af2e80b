"""The packets that a broker reads and writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.control.broker.packets import (
    Kind,
    Message,
    Packet,
    PacketError,
    UnsupportedVersionError,
    encode,
    encode_publish,
    encode_text,
    read_connect,
    read_filters,
    read_publish,
    take_packet,
)

messages = st.builds(
    Message, st.text(max_size=20), st.binary(max_size=300), st.integers(0, 1), st.booleans()
)


def first_packet(data):
    return take_packet(bytearray(data), 2**20)


@given(st.lists(messages, max_size=5), st.integers(1, 50))
def test_messages_come_out_as_they_went_in_however_they_are_cut(sent, size):
    stream = b"".join(encode_publish(one, number) for number, one in enumerate(sent, start=1))
    buffer, came = bytearray(), []
    for start in range(0, len(stream), size):
        buffer += stream[start : start + size]
        while (packet := take_packet(buffer, 2**20)) is not None:
            came.append(read_publish(packet))
    assert came == [(one, n if one.qos else 0) for n, one in enumerate(sent, start=1)]
    assert not buffer


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151])
def test_lengths(size):
    data = encode(Kind.PUBLISH, bytes(size))
    assert take_packet(bytearray(data), 2**21) == Packet(Kind.PUBLISH, 0, bytes(size))
    assert take_packet(bytearray(data[:-1]), 2**21) is None
    if size:
        with pytest.raises(PacketError, match="too long"):
            take_packet(bytearray(data[:5]), size - 1)


def test_a_length_that_does_not_end_is_refused():
    assert first_packet(b"\x30\x80\x80\x80") is None
    with pytest.raises(PacketError, match="does not end"):
        first_packet(b"\x30\x80\x80\x80\x80")


def connect(flags, *fields, level=4, name="MQTT"):
    body = encode_text(name) + bytes((level, flags, 0, 60)) + b"".join(map(encode_text, fields))
    return Packet(Kind.CONNECT, 0, body)


def test_a_connect():
    will = read_connect(connect(0xEE, "id", "topic", "gone", "user", "secret")).will
    assert will == Message("topic", b"gone", 1, True)
    plain = read_connect(connect(0xC2, "id", "user", "secret"))
    assert (plain.client_id, plain.username, plain.password) == ("id", "user", "secret")
    assert (plain.keepalive_s, plain.will) == (60, None)
    assert read_connect(connect(0x02, "id")).username == ""


@pytest.mark.parametrize(
    "bad",
    [
        connect(0xC2, "id", "user"),
        connect(0xC2, "id", "user", "secret", "more"),
        connect(0xC3, "id", "user", "secret"),
        Packet(Kind.CONNECT, 0, connect(0xC2, "id", "user").body + b"\0\1\xff"),
    ],
    ids=["short", "long", "reserved flag", "no UTF-8"],
)
def test_a_connect_that_is_none(bad):
    with pytest.raises(PacketError):
        read_connect(bad)


@pytest.mark.parametrize(
    ("level", "name", "answer"),
    [(5, "MQTT", b"\x20\3\0\x84\0"), (3, "MQIsdp", b"\x20\2\0\1"), (6, "MQTT", b"\x20\2\0\1")],
)
def test_another_version_is_told_so(level, name, answer):
    with pytest.raises(UnsupportedVersionError) as refusal:
        read_connect(connect(0xC2, "id", "user", "secret", level=level, name=name))
    assert refusal.value.answer == answer


@pytest.mark.parametrize(
    "bad", [Packet(Kind.PUBLISH, 4, b"\0\1a\0\1x"), Packet(Kind.PUBLISH, 2, b"\0\1a\0\0x")]
)
def test_a_message_with_a_qos_or_an_id_that_is_none(bad):
    with pytest.raises(PacketError):
        read_publish(bad)


def test_filters():
    body = b"\0\7" + encode_text("a/#") + b"\1" + encode_text("b") + b"\0"
    assert read_filters(Packet(Kind.SUBSCRIBE, 2, body)) == (7, [("a/#", 1), ("b", 0)])
    body = b"\0\7" + encode_text("a/#") + encode_text("b")
    assert read_filters(Packet(Kind.UNSUBSCRIBE, 2, body)) == (7, [("a/#", 0), ("b", 0)])
    with pytest.raises(PacketError):
        read_filters(Packet(Kind.SUBSCRIBE, 0, body))
    many = b"\0\7" + (encode_text("a") + b"\0") * 10**5
    with pytest.raises(PacketError, match="too many"):
        read_filters(Packet(Kind.SUBSCRIBE, 2, many))


@given(st.sampled_from(Kind), st.integers(0, 15), st.binary(max_size=80))
def test_no_bytes_raise_anything_else(kind, flags, body):
    for read in (read_connect, read_publish, read_filters):
        try:
            found = read(Packet(kind, flags, body))
        except PacketError as error:
            assert str(error)
        else:
            assert found is not None
