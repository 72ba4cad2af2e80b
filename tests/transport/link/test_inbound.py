"""The receiving end: each port for one key, what waits is bounded, and nothing is left open."""

import errno
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from molink.transport.link import inbound
from molink.transport.link.inbound import (
    LINK_PORTS,
    WAITING_BYTES_MAX,
    WAITING_MESSAGES_MAX,
    InboundLink,
)
from molink.transport.link.paced_link import PacedLink
from molink.transport.link.process_links import ProcessLinks
from molink.wire.chunks import ChunkHeader, decode_link_frame, encode_hello
from molink.wire.frames import FROM_COORDINATOR, FROM_TAIL, Cancel, encode_message
from molink_scheduler.batch import BatchClass
from tests.transport.link.two_ends import (
    ARRIVES_WITHIN_S,
    RECEIVER,
    SENDER,
    STRANGER,
    TwoEnds,
    keys,
    public,
)

DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL
QUIET_MS = 200
RINGS = 50


def waits(ends: TwoEnds) -> int:
    """Messages that the link's thread has handed over, once it hands over no more."""
    count = -1
    while count < ends.inbox.qsize() or not ends.inbound._is_paused:
        count = ends.inbox.qsize()
        ends.receiver.wake()
    return count


def stays(ends: TwoEnds, link: PacedLink) -> bool:
    """Something stays unacknowledged; what was acknowledged last may be the newest that had left,
    so the sender is given time for the next."""
    deadline = time.monotonic() + ARRIVES_WITHIN_S
    while link.sender.oldest is None and time.monotonic() < deadline:
        ends.sender.wake()
    return link.sender.oldest is not None


@pytest.mark.parametrize("size", [10, 300_000])
def test_what_waits_for_its_reader_is_bounded_and_the_rest_stays_with_the_sender(monkeypatch, size):
    monkeypatch.setattr(inbound, "WAITING_MESSAGES_MAX", 20)
    monkeypatch.setattr(inbound, "WAITING_BYTES_MAX", 5 * 300_000)
    with TwoEnds() as ends:
        link = ends.opened()
        numbers = [b"%3d" % number for number in range(60)]
        for number in numbers:
            ends.send(link, PREFILL, number.ljust(size))
        assert waits(ends) == (20 if size == 10 else 5)
        assert stays(ends, link), "what is not read is not acknowledged"
        taken = [ends.next_message()[1][:3] for _ in numbers]
        assert taken == numbers
        assert ends.inbound.refused_count == 0


def test_decode_is_not_kept_back_by_requests(monkeypatch):
    """Each link is bounded by itself."""
    monkeypatch.setattr(inbound, "WAITING_MESSAGES_MAX", 3)
    context: zmq.Context = zmq.Context()
    full, other = (InboundLink.bind(context, "127.0.0.1") for _ in range(2))
    for _ in range(3):
        full.counted([memoryview(b"x")])
    assert not full.may_read() and other.may_read()
    context.destroy(linger=0)


def test_a_reader_that_takes_everything_meanwhile_is_noticed():
    """It looks between the thread's two looks at what waits."""
    context: zmq.Context = zmq.Context()
    link = InboundLink.bind(context, "127.0.0.1")
    waiting = [link.counted([memoryview(b"x")]) for _ in range(WAITING_MESSAGES_MAX)]
    assert not link.may_read()
    woken = [link.taken(one) for one in waiting]
    assert woken.count(True) == 1 and woken.index(True) == WAITING_MESSAGES_MAX // 2 - 1
    assert link.may_read()
    large = link.counted([memoryview(bytes(WAITING_BYTES_MAX))])
    assert not link.may_read()
    assert link.taken(large) and link.may_read()
    context.destroy(linger=0)


def open_links(allowed: tuple[str, ...], deliver: Callable) -> ProcessLinks:
    roles = FROM_TAIL, FROM_COORDINATOR
    return ProcessLinks.bind("head", "127.0.0.1", roles, deliver, print, keys(RECEIVER, *allowed))


def dealer(context: zmq.Context, number: int, port: int) -> zmq.Socket:
    """A peer with the pair of this number, as it would be in another process."""
    socket = context.socket(zmq.DEALER)
    socket.linger, own = 0, keys(number)
    socket.curve_publickey, socket.curve_secretkey = own.public.encode(), own.secret.encode()
    socket.curve_serverkey = public(RECEIVER).encode()
    socket.connect(f"tcp://127.0.0.1:{port}")
    return socket


def test_each_port_is_for_one_key():
    """The tail may not come to the port of the coordinator, nor the other way round."""
    tail, coordinator = SENDER, STRANGER
    links = open_links((public(tail), public(coordinator)), lambda arrived: None)
    ports = [link.port for link in links.inbound]
    with zmq.Context() as context:
        sockets = [dealer(context, *peer) for peer in zip((coordinator, tail), ports, strict=True)]
        sockets += [dealer(context, *peer) for peer in zip((tail, coordinator), ports, strict=True)]
        for socket in sockets:
            socket.send(encode_hello())
        for socket in sockets[2:]:
            assert socket.poll(30_000)
        assert not any(socket.poll(QUIET_MS) for socket in sockets[:2])
        for socket in sockets:
            socket.close()
    links.close()


def test_what_is_not_its_senders_to_say_is_counted_under_its_link():
    arrived = []
    links = open_links((public(SENDER), public(SENDER)), arrived.append)
    header = encode_message(Cancel(7), 0)[0]
    with zmq.Context() as context:
        for link in links.inbound:
            with dealer(context, SENDER, link.port) as socket:
                chunk = ChunkHeader(0, 1, 0, len(header), len(header)).encode()
                socket.send_multipart([chunk, header])
                assert socket.poll(30_000)
                socket.send_multipart([chunk, header, b"one frame more"])
                socket.send_multipart([b"", b""])
                socket.send(encode_hello())
                assert socket.poll(30_000)
                decode_link_frame(socket.recv())
                while link.frames_refused < 2:
                    links.thread.wake()
    assert [links.decode(one) for one in arrived] == [None, Cancel(7)]
    assert [link.refused_count for link in links.inbound] == [3, 2]
    assert links.frames_refused == 5
    links.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_links_leave_no_descriptors_behind():
    """A ring that failed every few seconds once used all of them up in an hour or two."""

    def ring() -> None:
        links = open_links((public(SENDER),), lambda arrived: None)
        links.close()
        links.thread.wake()  # Somebody may still ask; the pipe's numbers are others' by now.

    ring()
    before = open_files()
    for _ in range(RINGS):
        ring()
    assert open_files() <= before + 2


def test_a_port_that_cannot_be_bound_leaves_nothing_either():
    before = open_files()
    for _ in range(10):
        with pytest.raises(Exception, match="Cannot listen"):
            ProcessLinks.bind("head", "192.0.2.1", (FROM_TAIL,), print, print, keys(RECEIVER))
    assert open_files() <= before + 2


def test_a_message_that_no_link_can_honestly_bring_ends_its_connection_and_nothing_else():
    """ZeroMQ itself refuses it, before it is in memory."""
    with TwoEnds() as ends:
        socket = ends.contexts[0].socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(ends.address)
        socket.send(bytes(inbound.CHUNK_BYTES_MAX + 1))
        link = ends.opened()
        ends.send(link, DECODE, b"fine")
        assert ends.next_message()[1] == b"fine"
        assert ends.inbound.refused_count == 0
        socket.close()


def test_a_flood_that_brings_nothing_is_read_slowly(monkeypatch):
    """68,000 greetings a second took a core, and were counted, nothing else."""
    monkeypatch.setattr(inbound, "NOISE_PER_S", 10.0)
    monkeypatch.setattr(inbound, "NOISE_BURST", 20.0)
    now = [0.0]
    context: zmq.Context = zmq.Context()
    link = InboundLink.bind(context, "127.0.0.1")
    link.clock = lambda: now[0]
    with context.socket(zmq.DEALER) as flood:
        flood.connect(f"tcp://127.0.0.1:{link.port}")
        for _ in range(100):
            flood.send(encode_hello())

        def read_until_it_pauses() -> int:
            before = link.messages_received
            while not link.pause_s():
                if link.receive() is not None:
                    link.greeted()
            return link.messages_received - before

        assert read_until_it_pauses() == 21 and link.receive() is None
        now[0] += 1.0
        assert 9 <= read_until_it_pauses() <= 11, "ten a second from then on"
    context.destroy(linger=0)


def test_links_take_the_ports_that_a_firewall_lets_through():
    context: zmq.Context = zmq.Context()
    probe = InboundLink.bind(context, "127.0.0.1")
    first = probe.port
    links = [InboundLink.bind(context, "127.0.0.1", first_port=first) for _ in range(2)]
    assert all(first < link.port < first + LINK_PORTS for link in links)
    assert len({link.port for link in links}) == 2
    context.destroy(linger=0)


def test_where_none_of_them_is_free_any_will_do(monkeypatch):
    monkeypatch.setattr(inbound, "LINK_PORTS", 1)
    context: zmq.Context = zmq.Context()
    taken = InboundLink.bind(context, "127.0.0.1")
    assert InboundLink.bind(context, "127.0.0.1", first_port=taken.port).port != taken.port
    context.destroy(linger=0)


@pytest.mark.parametrize("number", [errno.EADDRINUSE, errno.EACCES])
def test_a_port_that_is_another_s_or_not_for_this_user_is_passed_over(number):
    class Refusing:
        def bind(self, address):
            if address.endswith(":900"):
                raise zmq.ZMQError(number)

    assert inbound._bound(Refusing(), "tcp://127.0.0.1", 900) == 901


def test_an_address_that_is_not_of_this_machine_is_no_taken_port():
    class Refusing:
        def bind(self, address):
            raise zmq.ZMQError(errno.EADDRNOTAVAIL)

    with pytest.raises(zmq.ZMQError):
        inbound._bound(Refusing(), "tcp://192.0.2.1", 900)
