"""Encrypted links: who may speak, who no longer may, and what a listener on the wire sees."""

import pytest
import zmq

from molink.control.identity import key_from_z85
from molink.transport import curve
from molink.transport.curve import WAITING_MAX, CurveGuard
from molink.wire.curve_keys import KEYS_MAX, CurveKeys
from molink_scheduler.batch import BatchClass
from tests.transport.link.two_ends import (
    ARRIVES_WITHIN_S,
    HEADER,
    RECEIVER,
    SENDER,
    STRANGER,
    TwoEnds,
    Wiretap,
    keys,
    public,
)

REFUSED_AFTER_S = 0.5
"""A link that opens does so within milliseconds on loopback."""

COMES_THROUGH_WITHIN_S = 3.0
"""Less than a handshake's time: it was kept waiting, not sent away."""

DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL


def test_messages_of_any_size_arrive_over_an_encrypted_link():
    with TwoEnds.encrypted(public(SENDER)) as ends:
        link = ends.opened(public(RECEIVER))
        buffers = [bytes([number]) * size for number, size in enumerate((1, 300_000, 70_000))]
        for buffer in buffers:
            ends.send(link, PREFILL, buffer)
        assert [ends.next_message() for _ in buffers] == [[HEADER, one] for one in buffers]
        assert ends.inbound.messages_refused == 0


def test_nothing_can_be_read_on_the_wire():
    secret = b"the residual stream of somebody's prompt"
    for encrypted in (False, True):
        pair = (keys(RECEIVER, public(SENDER)), keys(SENDER)) if encrypted else ()
        with TwoEnds(*pair) as ends:
            tap = Wiretap(ends.inbound.port)
            link = ends.opened(public(RECEIVER) if encrypted else None)
            ends.move(link, tap.address)
            assert ends.moved().moved
            ends.send(link, DECODE, secret)
            assert ends.next_message() == [HEADER, secret]
            assert (secret in tap.seen) is not encrypted


def test_a_key_that_is_not_allowed_opens_no_link():
    with TwoEnds.encrypted(public(STRANGER)) as ends:
        assert not ends.sender.open(ends.link(public(RECEIVER)), REFUSED_AFTER_S)


def test_a_key_that_is_allowed_later_comes_through_by_itself():
    with TwoEnds.encrypted() as ends:
        link = ends.link(public(RECEIVER))
        assert not ends.sender.open(link, REFUSED_AFTER_S)
        ends.guard.allow([public(SENDER)])
        assert ends.sender.open(link, COMES_THROUGH_WITHIN_S)
        ends.send(link, DECODE, b"late")
        assert ends.next_message() == [HEADER, b"late"]


def test_a_receiver_with_another_key_is_not_spoken_to():
    with TwoEnds.encrypted(public(SENDER)) as ends:
        assert not ends.sender.open(ends.link(public(STRANGER)), REFUSED_AFTER_S)


def test_plain_and_encrypted_do_not_mix():
    with TwoEnds.encrypted(public(SENDER)) as ends:
        assert not ends.sender.open(ends.link(None), REFUSED_AFTER_S)
    with TwoEnds(None, keys(SENDER)) as ends:
        assert not ends.sender.open(ends.link(public(RECEIVER)), REFUSED_AFTER_S)


def test_a_key_that_is_struck_off_is_not_heard_on_the_connection_that_it_has():
    with TwoEnds.encrypted(public(SENDER)) as ends:
        link = ends.opened(public(RECEIVER))
        ends.send(link, DECODE, b"before")
        assert ends.next_message() == [HEADER, b"before"]
        ends.guard.allow([public(STRANGER)])
        ends.send(link, DECODE, b"after")
        while not ends.inbound.messages_refused:
            ends.receiver.wake()
        assert ends.inbox.empty() and link.pacer.in_flight_bytes > 0
        ends.guard.allow([public(SENDER)])
        ends.send(link, DECODE, b"welcome again")
        assert ends.next_message() == [HEADER, b"after"]  # Repeated: the far end misses it.
        assert ends.next_message() == [HEADER, b"welcome again"]
        assert ends.inbound.messages_refused == 1


def test_two_senders_on_one_port_get_their_own_answers():
    """With DEALER at both ends each would get every second answer."""
    with TwoEnds.encrypted(public(SENDER)) as ends:
        links = [ends.link(public(RECEIVER)) for _ in range(2)]
        for link in links:
            link.connections.stream = 1  # Or a heartbeat of one would void what the other counts.
            assert ends.sender.open(link, ARRIVES_WITHIN_S)
        for number in range(40):
            link = links[number % 2]
            link.sender._next_sequence = number
            ends.send(link, DECODE, bytes([number]))
            assert ends.next_message() == [HEADER, bytes([number])]
        while any(link.pacer.in_flight_bytes for link in links):
            ends.sender.wake()
        assert [link.pacer.acks_refused for link in links] == [0, 0]


@pytest.mark.parametrize("key", ["", "x" * 39, "ä" * 40, 7])
def test_what_is_no_key_is_refused(key):
    with pytest.raises(ValueError):
        CurveKeys(public(SENDER), keys(SENDER).secret, (key,))
    with pytest.raises(ValueError):
        CurveKeys(public(SENDER), key)


def test_the_list_is_limited_and_the_secret_not_shown():
    own = keys(SENDER)
    with pytest.raises(ValueError):
        CurveKeys(own.public, own.secret, (own.public,) * (KEYS_MAX + 1))
    assert own.secret not in repr(own)


@pytest.fixture
def asking():
    """The guard that allows SENDER, and a socket on which ZeroMQ would ask it."""
    context: zmq.Context = zmq.Context()
    guard = CurveGuard(context, keys(RECEIVER, public(SENDER)))
    socket = context.socket(zmq.DEALER)
    socket.connect("inproc://zeromq.zap.01")
    socket.rcvtimeo = 10_000
    yield guard, socket
    guard.close()
    context.destroy(linger=0)


def question(number: int, key: bytes, mechanism: bytes = b"CURVE") -> list[bytes]:
    return [b"", b"1.0", b"%d" % number, b"molink-0", b"127.0.0.1", b"", mechanism, key]


def raw(number: int) -> bytes:
    return key_from_z85(public(number))


def test_an_allowed_key_is_answered_while_others_wait(asking):
    guard, socket = asking
    for number in range(WAITING_MAX):
        socket.send_multipart(question(number, raw(STRANGER + number)))
    socket.send_multipart(question(1000, raw(SENDER)))
    expected = [b"", b"1.0", b"1000", b"200", b"OK", public(SENDER).encode(), b""]
    assert socket.recv_multipart() == expected
    socket.send_multipart(question(1001, raw(STRANGER)))
    assert socket.recv_multipart()[2:4] == [b"1001", b"300"]  # Too many wait already.
    guard.allow([public(STRANGER)])
    assert socket.recv_multipart()[2:4] == [b"0", b"200"]


def test_a_key_that_waited_long_enough_is_told_to_come_again(asking, monkeypatch):
    monkeypatch.setattr(curve, "WAIT_S", 0.05)
    _, socket = asking
    socket.send_multipart(question(7, raw(STRANGER)))
    assert socket.recv_multipart()[2:4] == [b"7", b"300"]


def test_a_question_that_is_none_is_answered_with_no(asking):
    _, socket = asking
    for frames in ([b"", b"1.0", b"7"], question(7, b"key"), question(7, raw(SENDER), b"PLAIN")):
        socket.send_multipart(frames)
        assert socket.recv_multipart()[2:4] == [b"7", b"300"]
